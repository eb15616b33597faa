import type { InferenceSpec } from '../../core/spec/run-spec.ts';
import { EmbeddedInference } from './embedded.ts';
import { ModuleInference } from './module.ts';
import type { Inference } from './types.ts';

export type { Inference, Sample, SampleRequest, ScoreRequest, ServedPolicy } from './types.ts';

/** `defaultUrl` is the policy server this machine's `ratchet dev` started. */
export function openInference(spec: InferenceSpec, defaultUrl: string): Inference {
  switch (spec.kind) {
    case 'embedded':
      return new EmbeddedInference(spec.url ?? defaultUrl, spec.provider);
    case 'module':
      return new ModuleInference(spec);
    default:
      return spec satisfies never;
  }
}
