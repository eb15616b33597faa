import { z } from 'zod';
import { args, whole } from '../toml/values.ts';
import { inSpec, setting, specFields, type WrittenIn } from './setting.ts';
import { honouredByTorch, torch } from './torch.ts';

/** Keys of kind "prime-rl" beside those of PyTorch. */
export const primeRl = {
  ep: setting(whole(1), 'of kind "prime-rl": ranks that share the experts of a layer; prime-rl chooses when missing', {
    isLeftOut: true,
    most: [4_096, 'no machine has more ranks', 'at most the ranks'],
  }),
  cp: setting(whole(1), 'of kind "prime-rl": ranks that share one sequence; 1 when missing', {
    isLeftOut: true,
    most: [4_096, 'no machine has more ranks', 'at most the ranks'],
  }),
  prime_rl: setting(
    args(),
    'of kind "prime-rl": tables of its trainer’s own file, for what has no setting here: `model.impl`, `model.ac`, …',
    { default: {} },
  ),
};

const { program, ranks } = torch;
const { launcher: _launcher, load_in_4bit: _short, ...more } = torch;
const { dtype: _dtype, use_liger: _liger, ...honoured } = honouredByTorch;

/** All of its keys that other kinds do not have, but for PyTorch. */
export const keysOfPrimeRl: readonly string[] = [...Object.keys(primeRl), ...Object.keys(more)];

export const PrimeRlTrainerSpec = z.strictObject({
  kind: z.literal('prime-rl'),
  ...specFields({ program, ranks }),
  ...specFields(primeRl),
  ...specFields(honoured),
  acFreq: z.int().positive().optional(),
  gpuIds: z.array(z.int().min(0)).min(1).optional(),
  /** Tokens of a micro-batch at most. */
  seqLen: z.int().positive(),
  /** The run’s last step, and its steps between checkpoints: prime-rl writes checkpoints by itself. */
  maxSteps: z.int().positive(),
  checkpointInterval: z.int().positive(),
});
export type PrimeRlTrainerSpec = z.infer<typeof PrimeRlTrainerSpec>;

interface Written {
  readonly trainer: WrittenIn<typeof primeRl & typeof honoured & typeof torch> & {
    readonly ac_freq?: number | undefined;
    readonly gpu_ids?: number[] | undefined;
  };
  readonly seq_len?: number | undefined;
  readonly max_steps: number;
  readonly checkpoints: { readonly interval: number };
}

/** `ranks`: as many as the file says in whatever words. A relation has seen to `seq_len`. */
export function primeRlTrainerSpec(
  { trainer, seq_len, max_steps, checkpoints }: Written,
  ranks: number,
): PrimeRlTrainerSpec {
  const { ac_freq: acFreq, gpu_ids: gpuIds } = trainer;
  return {
    kind: 'prime-rl',
    ...inSpec({ program, ranks: torch.ranks }, { ...trainer, ranks }),
    ...inSpec(primeRl, trainer),
    ...inSpec(honoured, trainer),
    ...(acFreq === undefined ? {} : { acFreq }),
    ...(gpuIds === undefined ? {} : { gpuIds }),
    seqLen: seq_len ?? 1,
    maxSteps: max_steps,
    checkpointInterval: checkpoints.interval,
  };
}
