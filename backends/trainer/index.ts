import type { TrainerSpec } from '../../config/run-spec.ts';
import { present } from '../../core/present.ts';
import { findTorchPython } from '../torch/find-python.ts';
import { loadTrainer } from './module.ts';
import { OnnxTrainer } from './onnx.ts';
import { TinkerTrainer } from './tinker.ts';
import { TorchTrainer } from './torch.ts';
import type { AnyTrainer } from './types.ts';

export type { AnyTrainer, SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

/** Tests make several files of small models with it. */
export const shardSizeVariable = 'RATCHET_TORCH_SHARD_SIZE';

/** `say` receives messages about waiting for a remote server. */
export async function openTrainer(
  spec: TrainerSpec,
  say: (line: string) => void = () => undefined,
): Promise<AnyTrainer> {
  switch (spec.kind) {
    case 'onnx':
      return new OnnxTrainer({
        threads: spec.threads,
        provider: spec.provider,
        ...present({ recomputesEvery: spec.acFreq }),
      });
    case 'torch': {
      const { program, ranks, dtype, acFreq } = spec;
      const python = await findTorchPython(program, process.cwd());
      const more = present({ ac_freq: acFreq, shard_size: process.env[shardSizeVariable] });
      return new TorchTrainer({ python, ranks, dtype, threads: 1, ...more }, { say });
    }
    case 'tinker':
      return new TinkerTrainer(spec, { say });
    case 'module':
      return loadTrainer(spec);
    default:
      return spec satisfies never;
  }
}
