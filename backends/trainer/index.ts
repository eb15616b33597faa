import type { TrainerSpec } from '../../core/spec/run-spec.ts';
import { OnnxTrainer } from './onnx.ts';
import type { Trainer } from './types.ts';

export type { SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

export function openTrainer(spec: TrainerSpec): Trainer {
  switch (spec.kind) {
    case 'onnx':
      return new OnnxTrainer({ threads: spec.threads, provider: spec.provider });
    default:
      return spec.kind satisfies never;
  }
}
