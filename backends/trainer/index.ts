import type { TrainerSpec } from '../../config/run-spec.ts';
import { present } from '../../core/present.ts';
import { loadTrainer } from './module.ts';
import { OnnxTrainer } from './onnx.ts';
import { TinkerTrainer } from './tinker.ts';
import type { Trainer } from './types.ts';

export type { SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

/** `say` is told what a server elsewhere is waited for. */
export async function openTrainer(spec: TrainerSpec, say: (line: string) => void = () => undefined): Promise<Trainer> {
  switch (spec.kind) {
    case 'onnx':
      return new OnnxTrainer({
        threads: spec.threads,
        provider: spec.provider,
        ...present({ recomputesEvery: spec.acFreq }),
      });
    case 'tinker':
      return new TinkerTrainer(spec, { say });
    case 'module':
      return loadTrainer(spec);
    default:
      return spec satisfies never;
  }
}
