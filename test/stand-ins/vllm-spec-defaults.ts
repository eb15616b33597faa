import type { VllmSpec } from '../../config/models/vllm-spec.ts';

/** What a run file that says no more than `kind = "vllm"` has, of a run that trains all weights of a model that is served as it is. */
export const vllmSpecDefaults: VllmSpec = {
  program: null,
  port: null,
  host: '127.0.0.1',
  gpuIds: null,
  args: {},
  loraRank: null,
  servesBase: true,
  weights: 'auto',
  weightsAgent: null,
};
