import type { TrainerSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import { findTorchPython } from '../torch/find-python.ts';
import { type NodesPlace, nodesPlace } from '../torch/node-link.ts';
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
      const { program, ranks, dtype, acFreq, gpuIds: gpus, launcher, rankTimeoutS } = spec;
      const python = await findTorchPython(program, process.cwd());
      const options = { ranks, dtype, launcher, timeout_s: rankTimeoutS, threads: 1 };
      const nodes = nodesOf(spec.nodes);
      const more = present({ ac_freq: acFreq, shard_size: process.env[shardSizeVariable], gpus, nodes });
      return new TorchTrainer({ python, ...options, ...more }, { say });
    }
    case 'tinker':
      return new TinkerTrainer(spec, { say });
    case 'module':
      return loadTrainer(spec);
    default:
      return spec satisfies never;
  }
}

/** The other nodes join where torch.distributed's variables say that this one is. */
function nodesOf(count: number): { readonly count: number; readonly place: NodesPlace } | undefined {
  if (count === 1) return undefined;
  const place = nodesPlace(process.env);
  if (place !== null) return { count, place };
  throw new RatchetError(
    'ConfigInvalid',
    `[trainer] nodes = ${count}: the other nodes join the GPU worker of the run, and it does not know where it is reached. Set MASTER_ADDR (and MASTER_PORT, 29500 if missing) to an address of its machine when it is started.`,
  );
}
