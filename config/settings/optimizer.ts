import { z } from 'zod';
import { batchRolloutsMax } from '../../core/limits.ts';
import { liveSettings } from '../../core/rl/live-settings.ts';
import { trainerTraits } from '../../core/kinds/trainers.ts';
import { present } from '../../core/present.ts';
import { atLeastZero, choice, choices, decay, flag, fraction, positive, texts, whole } from '../toml/values.ts';
import { inSpec, optionalTable, setting, specFields } from './setting.ts';
import type { RatchetConfig } from './index.ts';

/** The optimizer, in `[trainer]`, and the adapters, in `[lora]`. */

export const passes = {
  num_iterations: setting(whole(1), 'optimizer steps per batch', {
    default: 1,
    most: [1_000, 'each is a pass over the batch', 'more steps (max_steps)'],
  }),
  num_mini_batches: setting(
    whole(1),
    'parts of a batch that are an optimizer step each, one after the other, in every pass (verl’s batch ÷ `ppo_mini_batch_size`, tinker-cookbook’s `num_substeps`). n steps of Adam move the weights about n times as far as one: divide a `learning_rate` that was tuned for one step by n',
    { default: 1, most: [batchRolloutsMax, 'no batch has more rollouts', 'fewer, each of some groups'] },
  ),
  micro_batch_size: setting(
    whole(1),
    'rows computed at once; bounds memory, the gradient stays the same but for rounding',
    { most: [batchRolloutsMax, 'no batch is larger', 'as many rows as fit into memory'] },
  ),
};

const optimizerTypes = ['adamw', 'muon', 'sgd', 'sign_sgd'] as const;

export const optimizer = {
  optimizer: setting(
    choice(...optimizerTypes),
    'AdamW when missing; `muon` for matrices with AdamW for the rest, SGD with momentum, or the sign of the gradient alone: of the embedded engine and PyTorch, as prime-rl has them',
    { isLeftOut: true, as: 'type' },
  ),
  beta1: setting(decay(), 'of AdamW, and of what Muon leaves to it', { default: 0.9 }),
  beta2: setting(decay(), 'of AdamW, and of what Muon leaves to it', { default: 0.999 }),
  epsilon: setting(positive(), 'of AdamW and Muon', { default: 1e-8 }),
  momentum: setting(decay(), 'of Muon, 0.95 when missing, and of SGD, 0.9 when missing', { isLeftOut: true }),
  nesterov: setting(flag(), 'of SGD: whether a step looks ahead along its momentum; `true` when missing', {
    isLeftOut: true,
  }),
  weight_decay: setting(
    atLeastZero(),
    'what every step takes of a weight, times the learning rate; with SGD it is part of the gradient',
    { default: 0 },
  ),
  decay_matrices_only: setting(
    flag(),
    'whether `weight_decay` spares norms and biases, as transformers’ Trainer has it; else it is of all weights, as in PyTorch and prime-rl',
    { isLeftOut: true },
  ),
  max_grad_norm: setting(positive(), 'gradients with a larger L2 norm are scaled down to it', {
    default: 1,
    live: liveSettings.max_grad_norm,
  }),
};
export const OptimizerSpec = z.strictObject(specFields(optimizer));
export type OptimizerSpec = z.infer<typeof OptimizerSpec>;

export const schedule = {
  schedule: setting(choice('constant', 'linear', 'cosine'), 'of the learning rate', {
    default: 'constant',
    as: 'type',
  }),
  warmup_steps: setting(whole(0), 'steps over which the learning rate rises from 0', { neutral: 0 }),
  warmup_from: setting(
    fraction(),
    'fraction of the learning rate that the first step of the warm-up has; 1 / `warmup_steps` when missing',
    { isLeftOut: true },
  ),
  decay_steps: setting(
    whole(1),
    'of the linear schedule: the rate stays at its peak until this many steps before the end',
    { isLeftOut: true },
  ),
  min_lr_ratio: setting(fraction(), 'what linear and cosine schedules fall towards, as a fraction', {
    default: 0,
    as: 'minRatio',
  }),
  min_lr_at_end: setting(
    flag(),
    'of `decay_steps`: the last step has what the rate falls towards; else the step behind it would have it',
    { isLeftOut: true },
  ),
};
export const ScheduleSpec = z.strictObject(specFields(schedule));
export type ScheduleSpec = z.infer<typeof ScheduleSpec>;

/** `warmup_steps` may also be at the top of the file. */
export const otherWarmup = {
  warmup_steps: setting(whole(0), 'another place for `[trainer] warmup_steps`', {
    otherPlaceOf: 'trainer.warmup_steps',
  }),
};

export function scheduleSpec({ trainer, warmup_steps }: RatchetConfig): ScheduleSpec {
  return { ...inSpec(schedule, trainer), warmupSteps: trainer.warmup_steps ?? warmup_steps ?? 0 };
}

/** The linear layers of a decoder; LoRA adapts all of them by default. */
export const loraModules = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'] as const;
/** prime-rl's defaults. */
const defaultRank = 16;
const defaultAlpha = 32;

export const lora = optionalTable({
  enabled: setting(flag(), '`false` trains all weights though the table is there', { default: true }),
  r: setting(whole(1), 'rank of the adapters', {
    default: defaultRank,
    most: [65_536, 'no layer is wider', '8 to 64, as usual'],
  }),
  alpha: setting(positive(), 'their scale: alpha / r'),
  dropout: setting(
    z.number().min(0).lt(1).meta({ expected: 'a number ≥ 0 and < 1' }),
    'probability of dropping an input of an adapter',
    { default: 0 },
  ),
  target_modules: setting(choices(...loraModules), 'the linear layers that are adapted', { default: [...loraModules] }),
  modules_to_save: setting(
    texts(),
    'modules that are trained whole beside the adapters, and are part of them; of kind "torch"',
    { isLeftOut: true },
  ),
});

/** Alias of [lora] alpha. */
export const otherAlpha = {
  lora_alpha: setting(positive(), 'another place for `[lora] alpha`; asks for LoRA', { otherPlaceOf: 'lora.alpha' }),
};

/** Low-rank adapters on frozen weights (Hu et al. 2021, LoRA): W x + (alpha / r) · B A x, as in PEFT. */
export const LoraSpec = z.strictObject({
  r: z.int().positive(),
  alpha: z.number().positive(),
  /** Probability of dropping an input of A while training. */
  dropout: z.number().min(0).lt(1),
  /** Last parts of module names: `q_proj`, `down_proj`, … */
  targetModules: z.array(z.string().min(1)).min(1),
  /** Modules that are trained whole; missing = none. */
  modulesToSave: z.array(z.string().min(1)).min(1).optional(),
});
export type LoraSpec = z.infer<typeof LoraSpec>;

/**
 * An alpha requests LoRA, as in Hosted Training, which trains nothing else. Some trainers have adapters where nothing
 * is written, of one scale.
 */
export function loraSpec({ lora, lora_alpha, trainer }: RatchetConfig): LoraSpec | null {
  const { trains, alpha: only } = trainerTraits(trainer);
  const { r = defaultRank, target_modules: targetModules = [...loraModules], dropout = 0 } = lora ?? {};
  if (trains === 'adapters' && lora?.enabled !== false)
    return { r, alpha: only ?? defaultAlpha, dropout: 0, targetModules };
  if (lora?.enabled === false || (lora === undefined && lora_alpha === undefined)) return null;
  const modulesToSave = lora?.modules_to_save?.length ? lora.modules_to_save : undefined;
  return { r, alpha: lora?.alpha ?? lora_alpha ?? defaultAlpha, dropout, targetModules, ...present({ modulesToSave }) };
}
