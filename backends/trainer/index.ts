import type { TrainerSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import { trustedPrimeRlPython } from '../prime-rl/find-python.ts';
import { findTorchPython } from '../torch/find-python.ts';
import { type NodesPlace, nodesPlace } from '../nodes/node-link.ts';
import type { Table } from '../prime-rl/settings-file.ts';
import type { RankOptions } from '../torch/protocol.ts';
import { loadTrainer } from './module.ts';
import { OnnxTrainer } from './onnx.ts';
import { PrimeRlTrainer } from './prime-rl.ts';
import { TinkerTrainer } from './tinker.ts';
import { TorchTrainer } from './torch.ts';
import type { AnyTrainer } from './types.ts';

export type { AnyTrainer, SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

/** Tests make several files of small models with it. */
export const shardSizeVariable = 'RATCHET_TORCH_SHARD_SIZE';

/** Settings of a run as python/ratchet_torch reads them. */
function rankOptions(spec: TrainerSpec & { kind: 'torch' }): Omit<RankOptions, 'threads'> {
  const { ranks, acFreq: ac_freq, gpuIds: gpus, launcher, rankTimeoutS: timeout_s, dtype, attn, compile } = spec;
  return {
    ranks,
    launcher,
    timeout_s,
    ...present({
      gpus,
      shard_size: process.env[shardSizeVariable],
      ac_freq,
      dtype,
      attn,
      compile,
      optimization_dtype: spec.optimizationDtype,
      reduce_dtype: spec.reduceDtype,
      load_in_4bit: spec.loadIn4bit,
      use_liger: spec.useLiger,
      fsdp_cpu_offload: spec.fsdpCpuOffload,
      optim_cpu_offload: spec.optimCpuOffload,
      freeze_moe_router: spec.freezeMoeRouter,
    }),
  };
}

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
      const python = await findTorchPython(spec.program, process.cwd());
      return new TorchTrainer(
        { python, ...rankOptions(spec), threads: 1, ...present({ nodes: nodesOf(spec.nodes) }) },
        { say },
      );
    }
    case 'prime-rl': {
      const { program, primeRl, kind: _, nodes, ...settings } = spec;
      const python = await trustedPrimeRlPython(program, process.cwd());
      return new PrimeRlTrainer({ ...settings, python, more: primeRl as Table, nodes: nodesOf(nodes ?? 1) }, { say });
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
