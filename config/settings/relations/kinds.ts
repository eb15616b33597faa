import type { InferenceKind } from '../../../core/kinds/inference.ts';
import { type TrainerKind, trainers } from '../../../core/kinds/trainers.ts';
import { knownModel } from '../../models/known-models.ts';
import { type RatchetConfig, settingsByPath } from '../index.ts';
import { loraSpec } from '../optimizer.ts';
import { tinker } from '../tinker.ts';
import { keysOfPrimeRl } from '../prime-rl.ts';
import { torch } from '../torch.ts';
import { embeddedRelations, vllmRelations } from './inference.ts';
import { primeRlRelations } from './prime-rl.ts';
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
    'prime-rl': { ownKeys: keysOfPrimeRl, relations: primeRlRelations },
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
  yield* routerRelations(config);
  yield* wholeModuleRelations(config);
  for (const table of ['trainer', 'inference'] as const) {
    const written: Readonly<Record<string, unknown>> = config[table];
    const ofKind = kinds[table] as Readonly<Record<string, OfKind>>;
    const own = ofKind[config[table].kind]?.ownKeys ?? [];
    const refused = new Set<string>();
    for (const [kind, { ownKeys = [], relations }] of Object.entries(ofKind)) {
      if (kind === config[table].kind) {
        yield* relations?.(config) ?? [];
        continue;
      }
      for (const key of ownKeys) {
        const path = `${table}.${key}`;
        if (own.includes(key) || refused.has(key) || isEqual(written[key], defaultOf(path))) continue;
        refused.add(key);
        const having = Object.keys(ofKind).filter((each) => ofKind[each]!.ownKeys?.includes(key));
        const expected = `kind = ${having.map((each) => `"${each}"`).join(' or ')} beside it: no other ${table} has such a setting`;
        yield problem([path, `${table}.kind`], expected, `kind = "${config[table].kind}"`);
      }
    }
  }
}

export function* kindWarnings(config: RatchetConfig): Iterable<string> {
  const { kind, ac_freq: every } = config.trainer;
  if (every !== undefined && !trainers[kind].recomputes)
    yield `trainer.ac_freq (${every}) has no effect with kind = "${kind}": that trainer decides which activations it keeps.`;
  if (kind !== 'onnx') {
    for (const key of ['threads', 'provider'] as const) {
      const value = config.trainer[key];
      if (value !== defaultOf(`trainer.${key}`))
        yield `trainer.${key} (${value}) has no effect with kind = "${kind}": it is the embedded engine’s.`;
    }
  }
  const why = config.trainer.freeze_moe_router === true ? routersThatStay(config) : null;
  if (why !== null) yield `trainer.freeze_moe_router has no effect here: ${why}.`;
  yield* kinds.trainer[config.trainer.kind].warnings?.(config) ?? [];
  yield* kinds.inference[config.inference.kind].warnings?.(config) ?? [];
}

/** Why no router would move in any case; null = one would, or might. */
function routersThatStay(config: RatchetConfig): string | null {
  const known = knownModel(config.model);
  if (known?.shape.experts === null) return `${known.name} has no experts`;
  return loraSpec(config) !== null && config.sft === undefined ? 'adapters leave routers as they are' : null;
}

function* routerRelations(config: RatchetConfig): Relations {
  const { kind, freeze_moe_router: isFrozen = false } = config.trainer;
  if (!isFrozen || trainers[kind].freezesRouters || routersThatStay(config) !== null) return;
  const expected =
    'false, kind = "torch", or [lora] without a warm-up ([sft]): where all weights are trained, routers are trained with their experts';
  yield problem(['trainer.freeze_moe_router', 'trainer.kind'], expected, 'true');
}

function* wholeModuleRelations({ lora, trainer: { kind }, inference }: RatchetConfig): Relations {
  const names = lora?.modules_to_save ?? [];
  if (names.length === 0) return;
  const at = ['lora.modules_to_save', 'trainer.kind', 'inference.kind'];
  const say = (expected: string) => problem(at, expected, JSON.stringify(names));
  if (kind !== 'torch')
    yield say('an empty list, or kind = "torch": beside its adapters no other trainer trains anything');
  else if (inference.kind === 'vllm') yield say('an empty list: vLLM loads no adapter that has whole modules');
  else if (inference.kind === 'embedded')
    yield say('an empty list: the embedded engine loads no adapter that has whole modules');
}

function* torchRelations(config: RatchetConfig): Relations {
  const { ranks, gpu_ids: gpus, gpus: count, load_in_4bit: isShort } = config.trainer;
  if (count !== undefined && gpus !== undefined && count !== gpus.length)
    yield problem(['trainer.gpus', 'trainer.gpu_ids'], `${gpus.length}, as many as gpu_ids lists`, String(count));
  else if (count !== undefined && ranks !== undefined && count !== ranks)
    yield problem(['trainer.gpus', 'trainer.ranks'], `${ranks}, one for each of ranks`, String(count));
  if (ranks !== undefined && gpus !== undefined && ranks !== gpus.length)
    yield problem(['trainer.ranks', 'trainer.gpu_ids'], `${gpus.length}, one for each of gpu_ids`, String(ranks));
  const twice = gpus?.find((gpu, i) => gpus.indexOf(gpu) !== i);
  if (twice !== undefined)
    yield problem(['trainer.gpu_ids'], 'each GPU once: ranks cannot share one', JSON.stringify(gpus));
  if (isShort && loraSpec(config) === null)
    yield problem(
      ['trainer.load_in_4bit', 'lora'],
      'false, or adapters ([lora]): weights of 4 bits cannot be trained',
      'true',
    );
}

function isEqual(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** The value of a setting that nobody wrote. */
function defaultOf(path: string): unknown {
  return settingsByPath.get(path)?.written.safeParse(undefined).data;
}
