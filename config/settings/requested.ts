import { z } from 'zod';
import type { KeyPath } from '../toml/positions.ts';
import { args, whole } from '../toml/values.ts';
import type { RunSpec } from '../run-spec.ts';
import type { RatchetConfig } from './index.ts';

/**
 * GPUs and vLLM arguments of the processes that another system would start for the run. They choose the sampler and the
 * trainer (cli/start/), and the vLLM arguments name the parsers of the model's answers.
 */
export const RequestedSpec = z.strictObject({
  trainerGpus: whole(1).nullable().default(null),
  inferenceGpus: whole(0).nullable().default(null),
  vllm: args().default({}),
});
export type RequestedSpec = z.infer<typeof RequestedSpec>;

export function requestedSpec({ trainer, inference }: RatchetConfig): { requested?: RequestedSpec } {
  const isOnOneGpu = trainer.provider === 'cuda' && trainer.gpus === 1;
  const { gpus, vllm = {} } = inference.kind === 'vllm' ? {} : inference;
  return withRequested({ trainerGpus: isOnOneGpu ? null : (trainer.gpus ?? null), inferenceGpus: gpus ?? null, vllm });
}

/** Left out if it requests nothing. */
export function withRequested(requested: RequestedSpec): { requested?: RequestedSpec } {
  const { trainerGpus, inferenceGpus, vllm } = requested;
  return trainerGpus === null && inferenceGpus === null && Object.keys(vllm).length === 0 ? {} : { requested };
}

/** Warnings of requests that neither the trainer nor the sampler of the run uses. */
export function unusedRequests(
  { requested, trainer, inference }: Pick<RunSpec, 'requested' | 'trainer' | 'inference'>,
  nameInFile: (path: KeyPath) => string,
): { readonly gpus: string[]; readonly vllm: string[] } {
  const { trainerGpus = null, inferenceGpus = null, vllm = {} } = requested ?? {};
  const names = Object.keys(vllm).map((key) => nameInFile(['inference', 'vllm', key]));
  const decides =
    'provider' in trainer
      ? 'the embedded engine trains on the CPU, or on one GPU with provider = "cuda"'
      : `trainer.kind = "${trainer.kind}" decides`;
  const ofVllm = `for a vLLM that is started (--inference.kind vllm); here inference.kind = "${inference.kind}"`;
  return {
    gpus: [
      ...(trainerGpus === null ? [] : [`trainer.gpus = ${trainerGpus} has no effect: ${decides}`]),
      ...(inferenceGpus === null ? [] : [`inference.gpus = ${inferenceGpus} has no effect: ${ofVllm}`]),
    ],
    vllm: names.length === 0 ? [] : [`${names.join(', ')} without effect: ${ofVllm}`],
  };
}
