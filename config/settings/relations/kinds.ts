import type { InferenceKind } from '../../../core/kinds/inference.ts';
import { type TrainerKind, trainers } from '../../../core/kinds/trainers.ts';
import { type RatchetConfig, settingsByPath } from '../index.ts';
import { tinker, torch } from '../trainer.ts';
import { embeddedRelations, vllmRelations } from './inference.ts';
import { problem, type Relations } from './problem.ts';
import { tinkerInferenceRelations, tinkerTrainerRelations, tinkerWarnings } from './tinker.ts';

/** Requirements of one kind of trainer or inference. */
interface OfKind {
  /** Settings of its table that are refused beside every other kind. */
  readonly ownKeys?: readonly string[];
  readonly relations?: (config: RatchetConfig) => Relations;
  readonly warnings?: (config: RatchetConfig) => Iterable<string>;
}

const kinds: {
  readonly trainer: Readonly<Record<TrainerKind, OfKind>>;
  readonly inference: Readonly<Record<InferenceKind, OfKind>>;
} = {
  trainer: {
    onnx: {},
    torch: { ownKeys: Object.keys(torch), relations: torchRelations },
    tinker: { ownKeys: Object.keys(tinker), relations: tinkerTrainerRelations, warnings: tinkerWarnings },
    module: {},
  },
  inference: {
    embedded: { ownKeys: ['memory_gb', 'quantize'], relations: embeddedRelations },
    openai: {},
    vllm: { ownKeys: ['program', 'weights_agent'], relations: vllmRelations },
    tinker: { relations: tinkerInferenceRelations },
    module: {},
  },
};

export function* kindRelations(config: RatchetConfig): Relations {
  for (const table of ['trainer', 'inference'] as const) {
    const written: Readonly<Record<string, unknown>> = config[table];
    for (const [kind, { ownKeys = [], relations }] of Object.entries<OfKind>(kinds[table])) {
      if (kind === config[table].kind) {
        yield* relations?.(config) ?? [];
        continue;
      }
      for (const key of ownKeys) {
        if (written[key] === defaultOf(`${table}.${key}`)) continue;
        const expected = `kind = "${kind}" beside it: no other ${table} has such a setting`;
        yield problem([`${table}.${key}`, `${table}.kind`], expected, `kind = "${config[table].kind}"`);
      }
    }
  }
}

export function* kindWarnings(config: RatchetConfig): Iterable<string> {
  const { kind, ac_freq: every } = config.trainer;
  if (every !== undefined && !trainers[kind].recomputes)
    yield `trainer.ac_freq (${every}) has no effect with kind = "${kind}": that trainer decides which activations it keeps.`;
  yield* kinds.trainer[config.trainer.kind].warnings?.(config) ?? [];
  yield* kinds.inference[config.inference.kind].warnings?.(config) ?? [];
}

function* torchRelations({ trainer }: RatchetConfig): Relations {
  const { ranks, gpu_ids: gpus } = trainer;
  if (ranks !== undefined && gpus !== undefined && ranks !== gpus.length)
    yield problem(['trainer.ranks', 'trainer.gpu_ids'], `${gpus.length}, one for each of gpu_ids`, String(ranks));
}

/** The value of a setting that nobody wrote. */
function defaultOf(path: string): unknown {
  return settingsByPath.get(path)?.written.safeParse(undefined).data;
}
