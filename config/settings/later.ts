import type { z } from 'zod';
import { present } from '../../core/present.ts';
import { args, atLeastZero, choice, countOrAll, flag, text, whole } from '../toml/values.ts';
import { type Setting, setting } from './setting.ts';
import { honouredByTorch, torch } from './torch.ts';

/**
 * A setting without support. One that only affects speed or place is kept in the run's spec (`later`), and listed by
 * `ratchet check`. One whose absence would change what is trained is refused.
 */
interface SettingToCome extends Setting {
  /** The feature that will honour it. */
  readonly feature: string;
  /** Advice for a refused setting. */
  readonly instead?: string;
  /** The embedded engine's behaviour in its place. */
  readonly here?: string;
  /** The value that requests this behaviour, so that the feature is not missed. */
  readonly met?: string | number | boolean;
}

type Meanwhile = Pick<SettingToCome, 'here' | 'met'>;

const later =
  (feature: string, meanwhile: Meanwhile = {}) =>
  (type: z.ZodType, meaning: string): SettingToCome => ({
    ...setting(type, `${meaning} (${whenHonoured(feature)})`),
    feature,
    ...meanwhile,
  });
/** Refused, since a run without it would train differently. */
const refused =
  (feature: string, instead: string) =>
  (type: z.ZodType, meaning: string): SettingToCome => ({
    ...setting(type, `${meaning} (refused: ${feature} are not there)`),
    feature,
    instead,
  });
/** Another system's setting of vLLM: honoured if vLLM samples. */
export const vllmFeature = 'vLLM';

/** Honoured where PyTorch trains. */
export const torchFeature = 'PyTorch';

const moreOfTorch = 'more of what PyTorch can do';
/** GPUs of a trainer, which PyTorch's has. */
export const gpusFeature = 'PyTorch on GPUs';

/** Describes the feature that a field waits for. */
export function whenHonoured(feature: string): string {
  if (feature === vllmFeature) return 'where vLLM samples';
  if (feature === torchFeature || feature === gpusFeature) return 'where PyTorch trains: kind = "torch"';
  return `to come: ${feature}`;
}

/** What a field that a file has waits for. `trainer`: the kind of trainer that the file asks for. */
export function waitsFor(field: string, trainer: string): Pick<SettingToCome, 'feature' | 'here'> {
  const { feature, here } = settingsToCome[field]!;
  if (here === undefined) return { feature };
  return { feature, here: trainer === 'onnx' ? here : `trainer.kind = "${trainer}" decides` };
}

const onVllm = later(vllmFeature);
const onTorch = (key: keyof typeof honouredByTorch, here: string, met?: SettingToCome['met']): SettingToCome => ({
  ...honouredByTorch[key],
  feature: torchFeature,
  here,
  ...present({ met }),
});
const onMoreOfTorch = (here: string, met?: SettingToCome['met']) => later(moreOfTorch, { here, ...present({ met }) });
const oneProcess = 'one process computes all of it';
const inMemory = 'weights and moments are in the memory of the CPU anyway';
const furtherFields = refused('further fields of a request', 'only those that [sampling] has by name');
const validation = later('validation batches');

/** Keyed by path, as in a dialect's table of fields. */
const hostedSettings: Readonly<Record<string, SettingToCome>> = {
  'eval.env[].sampling.extra_body': furtherFields(args(), 'sent with each request'),
  'eval.sampling.extra_body': furtherFields(args(), 'sent with each request'),
  'inference.gpus': onVllm(whole(0), 'GPUs that sample'),
  'inference.vllm': onVllm(args(), 'arguments of vLLM’s server'),
  'kl_penalty.ref_mixup_alpha': refused('references that are mixed', '1: the reference is renewed as a whole')(
    atLeastZero(),
    'share of the policy in the renewed reference',
  ),
  'env[].sampling.extra_body': furtherFields(args(), 'sent with each request'),
  'sampling.extra_body': furtherFields(args(), 'sent with each request'),
  'trainer.gpus': later(gpusFeature, { here: 'one process trains, on the CPU' })(whole(1), 'GPUs that train'),
  'val.interval': validation(whole(1), 'steps between them'),
  'val.num_examples': validation(countOrAll('examples'), 'examples of one'),
  'val.rollouts_per_example': validation(whole(1), 'rollouts of each'),
};

const primeRlSettings: Readonly<Record<string, SettingToCome>> = {
  'inference.client': onVllm(args(), 'what prime-rl says further of servers that run elsewhere'),
  'trainer.ac_offloading': onMoreOfTorch('activations are in the memory of the CPU anyway', false)(
    flag(),
    'whether activations wait in the memory of the CPU',
  ),
  'trainer.cp': onMoreOfTorch(oneProcess, 1)(whole(1), 'GPUs that share a row'),
  'trainer.dp_replicate': onMoreOfTorch(oneProcess, 1)(whole(1), 'groups of GPUs that each hold all weights'),
  'trainer.ep': onMoreOfTorch(oneProcess, '1')(text(), 'GPUs that share the experts of a layer'),
  'trainer.impl': onMoreOfTorch('the embedded engine’s own')(
    choice('auto', 'hf', 'custom'),
    'whose implementation of the model',
  ),
  'trainer.tp': onMoreOfTorch(oneProcess, 1)(whole(1), 'GPUs that hold a layer together'),
  'trainer.trust_remote_code': onMoreOfTorch('no code that comes with a model is run', false)(
    flag(),
    'whether code that comes with the model is run',
  ),
};

const torchSettings: Readonly<Record<string, SettingToCome>> = {
  'trainer.dtype': onTorch('dtype', 'computed in float32', 'float32'),
  'trainer.optimization_dtype': onTorch('optimization_dtype', 'weights are held in float32', 'float32'),
  'trainer.reduce_dtype': onTorch('reduce_dtype', 'gradients are added up in float32', 'float32'),
  'trainer.attn': onTorch('attn', 'the embedded engine has one kind'),
  'trainer.compile': onTorch('compile', 'graphs are compiled in any case'),
  'trainer.use_liger': onTorch('use_liger', 'the embedded engine has kernels of its own', false),
  'trainer.fsdp_cpu_offload': onTorch('fsdp_cpu_offload', inMemory, false),
  'trainer.optim_cpu_offload': onTorch('optim_cpu_offload', inMemory, false),
};

/** Other systems' files have them without naming a trainer, so they are no reason to refuse another one. */
const ofRanks: Readonly<Record<string, SettingToCome>> = {
  'trainer.nodes': { ...torch.nodes, feature: gpusFeature, here: 'one machine trains', met: 1 },
  'trainer.rank_timeout': {
    ...torch.rank_timeout,
    feature: torchFeature,
    here: 'one process waits for no other',
    met: 600,
  },
};

export const settingsToCome: Readonly<Record<string, SettingToCome>> = {
  ...hostedSettings,
  ...primeRlSettings,
  ...torchSettings,
  ...ofRanks,
};

const untyped = {};
/** Settings of one table. They are identified by path alone, and no part of its type. */
export function laterIn(table: string): typeof untyped {
  const prefix = table === '' ? '' : `${table}.`;
  const own = Object.entries(settingsToCome).filter(
    ([path]) => path.startsWith(prefix) && !path.slice(prefix.length).includes('.'),
  );
  return Object.fromEntries(own.map(([path, entry]) => [path.slice(prefix.length), entry]));
}
