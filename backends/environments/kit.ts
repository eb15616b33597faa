import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import type { ChatMessage, Example } from '../../core/rl/rollout.ts';
import { looksSecret } from '../../core/spec/secrets.ts';
import type { Dataset, Environment, RewardFunction, Rubric } from './types.ts';

/** What an environment's author imports. */
export type { ChatMessage, Example, Turn } from '../../core/rl/rollout.ts';
export type { Dataset, Environment, Policy, RewardFunction, RolloutRecord, Rubric } from './types.ts';

export interface SingleTurnOptions {
  readonly name: string;
  readonly dataset: Dataset;
  readonly evalDataset: Dataset;
  readonly rubric: Rubric;
  readonly demonstrate?: (example: Example, random: () => number) => string;
}

/** An environment where the policy is asked once and answers once. */
export function singleTurn(options: SingleTurnOptions): Environment {
  return {
    ...options,
    isDeterministic: true,
    isSingleTurn: true,
    async rollout(example, policy) {
      const turn = await policy.sample(example.prompt);
      return { turns: [turn], outcome: turn.finishReason === 'length' ? 'truncated' : 'ok' };
    },
  };
}

/** Reward functions with distinct names and finite weights; weight 0 reports a metric without rewarding it. */
export function rubric(functions: readonly RewardFunction[]): Rubric {
  const names = new Set<string>();
  for (const { name, weight } of functions) {
    if (names.has(name)) throw new TypeError(`Two reward functions are called "${name}".`);
    if (!Number.isFinite(weight)) throw new TypeError(`The weight of reward function "${name}" is ${weight}.`);
    names.add(name);
  }
  return { functions };
}

/** One row as its author writes it: a prompt that is plain text is one user message. */
export interface DatasetRow {
  readonly prompt: string | readonly ChatMessage[];
  readonly answer: string;
  readonly info?: Readonly<Record<string, unknown>>;
}

/** A dataset from rows in memory; an example's id is its position. */
export function listDataset(rows: readonly DatasetRow[]): Dataset {
  return {
    length: rows.length,
    at(index) {
      const row = rows[index];
      if (row === undefined) throw new RangeError(`Example ${index} of a dataset of ${rows.length}.`);
      const prompt = typeof row.prompt === 'string' ? [{ role: 'user' as const, content: row.prompt }] : row.prompt;
      return { id: index, prompt, answer: row.answer, ...(row.info === undefined ? {} : { info: row.info }) };
    },
  };
}

/** Checks an environment's arguments, `[[env]] args = { … }`, and fills in its defaults. */
export function parseArgs<T extends z.ZodType>(environment: string, schema: T, args: unknown): z.infer<T> {
  const parsed = schema.safeParse(args, { reportInput: true });
  if (parsed.success) return parsed.data;
  const lines = parsed.error.issues.map((issue) => {
    const what = issue.path.length > 0 ? `args.${issue.path.join('.')}` : 'args';
    const input = JSON.stringify(issue.input) ?? 'nothing';
    const received = issue.code === 'unrecognized_keys' || looksSecret(input) ? '' : `, received ${input}`;
    return `  ${what}: ${issue.message}${received}`;
  });
  const known = schema instanceof z.ZodObject ? `\nIts arguments are: ${Object.keys(schema.shape).join(', ')}.` : '';
  throw new RatchetError(
    'ConfigInvalid',
    `Environment "${environment}" cannot work with its arguments:\n${lines.join('\n')}${known}`,
    { cause: parsed.error },
  );
}
