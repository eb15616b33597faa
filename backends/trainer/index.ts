import type { TrainerSpec } from '../../config/run-spec.ts';
import { present } from '../../core/present.ts';
import type { RankOptions } from '../torch/protocol.ts';
import { loadTrainer } from './module.ts';
import { OnnxTrainer } from './onnx.ts';
import { TinkerTrainer } from './tinker.ts';
import { TorchTrainer } from './torch.ts';
import type { Trainer } from './types.ts';

export type { SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

/** Settings of a run as python/ratchet_torch reads them. */
function rankOptions(spec: TrainerSpec & { kind: 'torch' }): Omit<RankOptions, 'threads'> {
  const { ranks, acFreq: ac_freq, dtype, attn, compile } = spec;
  return {
    ranks,
    ...present({
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
export async function openTrainer(spec: TrainerSpec, say: (line: string) => void = () => undefined): Promise<Trainer> {
  switch (spec.kind) {
    case 'onnx':
      return new OnnxTrainer({
        threads: spec.threads,
        provider: spec.provider,
        ...present({ recomputesEvery: spec.acFreq }),
      });
    case 'torch': {
      return new TorchTrainer({ python: spec.program, ...rankOptions(spec), threads: 1 }, { say });
    }
    case 'tinker':
      return new TinkerTrainer(spec, { say });
    case 'module':
      return loadTrainer(spec);
    default:
      return spec satisfies never;
  }
}
