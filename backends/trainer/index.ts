import type { TrainerSpec } from '../../core/spec/run-spec.ts';
import { loadTrainer } from './module.ts';
import { OnnxTrainer } from './onnx.ts';
import type { Trainer } from './types.ts';

export type { SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

export async function openTrainer(spec: TrainerSpec): Promise<Trainer> {
  switch (spec.kind) {
    case 'onnx':
      return new OnnxTrainer({ threads: spec.threads, provider: spec.provider });
    case 'module':
      return loadTrainer(spec);
    default:
      return spec satisfies never;
  }
}
