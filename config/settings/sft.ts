import { z } from 'zod';
import { batchRolloutsMax, stepsMax } from '../../core/limits.ts';
import { isHubId } from '../../core/names.ts';
import { choice, fraction, positive, text, whole } from '../toml/values.ts';
import type { RatchetConfig } from './index.ts';
import { inSpec, optionalTable, required, setting, specFields } from './setting.ts';

/** `[sft]`: supervised training before step 1, on the user's rows, or on the environments' own demonstrations. */

const defaultWarmupSteps = 20;

const amount = {
  steps: required(whole(1), 'optimizer steps before step 1', {
    most: [stepsMax, 'each is an optimizer step', 'what you mean to train'],
  }),
  batch_size: setting(whole(1), 'rows per step', {
    default: 64,
    most: [batchRolloutsMax, 'its rows are packed together', 'a smaller batch and more steps (sft.steps)'],
  }),
};
const course = {
  min_lr_ratio: setting(fraction(), 'fraction it falls towards, linearly', { default: 0.1, as: 'minRatio' }),
};

const defaultSplit = 'train';
const isFile = (written: string): boolean => /\.(?:jsonl|parquet)$/.test(written);

/** Whether rows come from a dataset of the Hub. */
export function isHubData(written: string): boolean {
  return !isFile(written) && isHubId(written);
}

/** Name of rows: a file, or a dataset of the Hub. */
export const dataName = () =>
  z
    .string()
    .refine((written) => isFile(written) || isHubId(written))
    .meta({
      expected:
        'a .jsonl file with a conversation in each line, such as "./examples.jsonl", a .parquet file with one in each row, or a dataset of the Hugging Face Hub, "OWNER/NAME"',
    });

/** TRL's default in `DPOConfig`. */
const defaultBeta = 0.1;

export const sft = optionalTable({
  /** Relative to the config's folder if it begins with a dot, else to the project's. */
  data: setting(
    dataName(),
    'rows of conversations: a `.jsonl` or `.parquet` file, or a dataset of the Hugging Face Hub by its name (`ratchet model get --dataset OWNER/NAME`); without it, the environments’ demonstrations',
  ),
  subset: setting(text(), 'of a dataset of the Hub with several: which one'),
  split: setting(text(), `of a dataset of the Hub; "${defaultSplit}" when missing`),
  loss: setting(
    choice('cross_entropy', 'dpo'),
    'what is learned of a row: to say what the assistant says, or, of rows {"prompt", "chosen", "rejected"}, to prefer the one to the other (direct preference optimization, as TRL’s DPOTrainer)',
    { default: 'cross_entropy' },
  ),
  beta: setting(
    positive(),
    `of \`loss = "dpo"\`: how strongly the weights of the beginning hold; ${defaultBeta} when missing`,
  ),
  ...amount,
  learning_rate: setting(
    positive(),
    'at its highest; 3e-3 for a preset, whose weights are random, 2e-5 for any other model, 2e-4 where Tinker trains an adapter; 1e-6 with `loss = "dpo"`. Beside `[lora]`, too, the supervised steps train all weights',
  ),
  warmup_steps: setting(whole(0), 'steps over which it rises from 0; by default 20, or all of fewer'),
  ...course,
});

/**
 * The user's file of training rows: its absolute path or OWNER/NAME on the Hub, and the SHA-256 of its rows as the run
 * stores them.
 */
export const DataRef = z.strictObject({
  path: z.string().min(1),
  /** Hex; null until the file was read. */
  sha256: z.string().nullable(),
  /** The part of the dataset, if `path` names one of the Hub. */
  hub: z.strictObject({ subset: z.string().nullable(), split: z.string().min(1) }).optional(),
});
export type DataRef = z.infer<typeof DataRef>;

export const SftSpec = z.strictObject({
  /** Rows of JSON, each a conversation; null = the environments' demonstrations. */
  data: DataRef.nullable().default(null),
  ...specFields(amount),
  learningRate: z.number().positive(),
  warmupSteps: z.int().min(0),
  /** Set if rows are preference pairs; absent for conversations. */
  dpo: z.strictObject({ beta: z.number().positive() }).optional(),
  /** Final fraction of the linear schedule. */
  ...specFields(course),
});
export type SftSpec = z.infer<typeof SftSpec>;

export function sftSpec({ sft, model, trainer }: RatchetConfig): SftSpec | null {
  if (sft === undefined) return null;
  return {
    data: sft.data === undefined ? null : dataRef(sft.data, sft),
    ...inSpec(amount, sft),
    ...(sft.loss === 'dpo' ? { dpo: { beta: sft.beta ?? defaultBeta } } : {}),
    learningRate: sft.learning_rate ?? (sft.loss === 'dpo' ? 1e-6 : defaultRate(model, trainer.kind)),
    warmupSteps: sft.warmup_steps ?? Math.min(defaultWarmupSteps, sft.steps),
    ...inSpec(course, sft),
  };
}

export function dataRef(
  path: string,
  { subset = null, split = defaultSplit }: { subset?: string | null | undefined; split?: string | undefined },
): DataRef {
  return { path, sha256: null, ...(isHubData(path) ? { hub: { subset, split } } : {}) };
}

/**
 * A preset begins with random weights. Rates for those would ruin a pretrained model, which gets the default of TRL's
 * `SFTConfig` for all weights, and ten times that for an adapter alone (Tinker).
 */
function defaultRate(model: string, trainerKind: string): number {
  if (model.startsWith('preset:')) return 3e-3;
  return trainerKind === 'tinker' ? 2e-4 : 2e-5;
}
