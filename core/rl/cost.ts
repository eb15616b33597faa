import { present } from '../present.ts';
import type { StoredRows } from './run-state.ts';
import { sum } from './advice/series.ts';

/**
 * A run's use of resources, and its cost at the prices of the run file (`[cost]`). A row of metrics has only its own
 * use, so the sum over all rows is the cost of the run. Steps that a rewind left behind stay paid.
 */
interface Prices {
  /** Price of a million tokens. */
  readonly prompt: number | null;
  readonly completion: number | null;
  readonly trained: number | null;
  readonly teacher: number | null;
  readonly reflectionPrompt: number | null;
  readonly reflectionCompletion: number | null;
  readonly gpuHour: number | null;
  readonly gpuWorkers: number;
  readonly rolloutHour: number | null;
  readonly rolloutWorkers: number;
}

/** Metric names by what they count: tokens, and hours of workers. */
const counted = {
  prompt: 'prompt_tokens',
  completion: 'completion_tokens',
  trained: 'trained_tokens',
  teacher: 'teacher_tokens',
  reflectionPrompt: 'reflection_prompt_tokens',
  reflectionCompletion: 'reflection_completion_tokens',
  gpuHours: 'gpu_hours',
  rolloutHours: 'rollout_hours',
} as const;
type Counted = keyof typeof counted;
export type Used = Partial<Readonly<Record<Counted, number>>>;

const kinds = Object.keys(counted) as Counted[];
const moneyName = 'money';
/**
 * The cost of a step, or of an environment's evaluation, prompt search or trial of a found prompt on a newer version.
 */
const metricName = /^(?:(eval|search|trial)\/(.+)\/)?cost\/(\w+)$/;
const tokensPriced = 1e6;

/** Prefix of metrics: none for a training step; evaluations, searches and trials have one with their environment. */
type CostPrefix = '' | `eval/${string}/` | `search/${string}/` | `trial/${string}/`;

/** Use and cost as metrics. Zero use is left out; so is the money if the run file has no price. */
export function costMetrics(used: Used, prices: Prices | undefined, prefix: CostPrefix = ''): Record<string, number> {
  const money = moneyOf(used, prices);
  const metrics: Record<string, number> = {};
  for (const kind of kinds) if (used[kind]) metrics[`${prefix}cost/${counted[kind]}`] = used[kind];
  if (money !== null) metrics[`${prefix}cost/${moneyName}`] = money;
  return metrics;
}

/** Sampled and prompt tokens of a step for each of its rollouts, and for each point of reward if there are more than 0. */
export function tokensPer(
  { prompt = 0, completion = 0 }: Used,
  { rollouts, rewards }: { readonly rollouts: number; readonly rewards: number },
): Record<string, number> {
  const tokens = prompt + completion;
  return {
    ...(rollouts > 0 ? { 'cost/tokens_per_rollout': tokens / rollouts } : {}),
    ...(rewards > 0 ? { 'cost/tokens_per_reward': tokens / rewards } : {}),
  };
}

/** All money of a step for each of its rollouts and each point of reward, from its metrics. */
export function moneyPer(metrics: Readonly<Record<string, number>>, money: number | undefined): Record<string, number> {
  const { prompt = 0, completion = 0 } = usedIn(metrics);
  const tokens = prompt + completion;
  if (money === undefined || tokens === 0) return {};
  const per = ['rollout', 'reward'].flatMap((what): [string, number][] => {
    const each = metrics[`cost/tokens_per_${what}`];
    return each === undefined ? [] : [[`cost/money_per_${what}`, (money * each) / tokens]];
  });
  return Object.fromEntries(per);
}

/** Reads the use back from a step's metrics. */
export function usedIn(metrics: Readonly<Record<string, number>>): Used {
  return present(Object.fromEntries(kinds.map((kind) => [kind, metrics[`cost/${counted[kind]}`]])) as Used);
}

/** Null without any price. Kinds without a price cost nothing. */
function moneyOf(used: Used, prices: Prices | undefined): number | null {
  if (prices === undefined) return null;
  const perUnit: Record<Counted, number | null> = {
    prompt: million(prices.prompt),
    completion: million(prices.completion),
    trained: million(prices.trained),
    teacher: million(prices.teacher),
    reflectionPrompt: million(prices.reflectionPrompt),
    reflectionCompletion: million(prices.reflectionCompletion),
    gpuHours: prices.gpuHour,
    rolloutHours: prices.rolloutHour,
  };
  if (Object.values(perUnit).every((price) => price === null)) return null;
  return kinds.reduce((sum, kind) => sum + (used[kind] ?? 0) * (perUnit[kind] ?? 0), 0);
}

function million(price: number | null): number | null {
  return price === null ? null : price / tokensPriced;
}

/** Use of a step that its commit records, without its rollouts. */
interface StepUse {
  /** Figures of its batch; null when nothing was trained. */
  readonly rows: StoredRows | null;
  /** Optimizer steps on each row. */
  readonly passes: number;
  /** A teacher scored the batch. */
  readonly isTaught: boolean;
  readonly seconds: number;
}

/** Use of a step, given the tokens of its rollouts: `sampled` has `prompt` and `completion`. */
export function usedByStep(
  sampled: Used,
  { rows, passes, isTaught, seconds }: StepUse,
  prices: Prices | undefined,
): Used {
  const hours = seconds / 3600;
  const tokens = sum(rows?.tokens ?? []);
  const asked = rows?.distilled?.map((row) => rows.tokens[row]!);
  return {
    ...sampled,
    trained: tokens * passes,
    ...(isTaught ? { teacher: asked === undefined ? tokens : sum(asked) } : {}),
    gpuHours: hours * (prices?.gpuWorkers ?? 1),
    rolloutHours: hours * (prices?.rolloutWorkers ?? 1),
  };
}

/** Use by one part of a run: its training, evaluations of an environment, or searches on one. */
interface CostPart {
  readonly of: 'training' | 'eval' | 'search' | 'trial';
  readonly environment: string | null;
  readonly used: Used;
  /** Null without a price. */
  readonly money: number | null;
}

export interface RunCost {
  /** The run file's name for the currency. */
  readonly currency: string;
  readonly money: number | null;
  readonly parts: readonly CostPart[];
}

/** Cost of a run, from the sum of each metric over all of its rows. Null if no use was recorded. */
export function costOf(
  sums: Iterable<readonly [metric: string, sum: number]>,
  currency: string | undefined,
): RunCost | null {
  const parts = new Map<
    string,
    { of: CostPart['of']; environment: string | null; used: Record<string, number>; money: number | null }
  >();
  for (const [metric, sum] of sums) {
    const [, of = 'training', environment = null, what] = metricName.exec(metric) ?? [];
    if (what === undefined) continue;
    const key = `${of}/${environment}`;
    const part = parts.get(key) ?? { of: of as CostPart['of'], environment, used: {}, money: null };
    parts.set(key, part);
    const kind = kinds.find((one) => counted[one] === what);
    if (kind) part.used[kind] = sum;
    else if (what === moneyName) part.money = sum;
  }
  if (parts.size === 0) return null;
  const all = [...parts.values()];
  const priced = all.flatMap(({ money }) => money ?? []);
  return { currency: currency ?? defaultCurrency, money: priced.length === 0 ? null : sum(priced), parts: all };
}

/** Whether the metric is an amount of money, for any part. */
export function isMoney(metric: string): boolean {
  return metricName.exec(metric)?.[3] === moneyName;
}

/** Whether the metric counts tokens, of whatever part. */
export function isTokens(metric: string): boolean {
  return metricName.exec(metric)?.[3]?.endsWith('_tokens') === true;
}

/** Costs of a run that are not counted, so a sum is a lower bound. */
export const notCounted =
  'tokens of judges and of other models that environments ask, the warm-up of [sft], rollouts given up before they were scored, attempts at a step that was refused, searches that were cancelled, and time between steps';

const defaultCurrency = 'USD';

const partNames = { training: 'training', eval: 'evals', search: 'searches', trial: 'trials of prompts' } as const;

/** Form: `training`, `evals of words`. */
export function partName({ of, environment }: CostPart): string {
  return environment === null ? partNames[of] : `${partNames[of]} of ${environment}`;
}

const usedNames: Readonly<Record<Counted, string>> = {
  prompt: 'prompt tokens',
  completion: 'sampled tokens',
  trained: 'trained tokens',
  teacher: 'tokens scored by the teacher',
  reflectionPrompt: 'prompt tokens of reflections',
  reflectionCompletion: 'sampled tokens of reflections',
  gpuHours: 'GPU worker hours',
  rolloutHours: 'rollout worker hours',
};

/** `1.2 M prompt tokens`, `0.52 GPU worker hours`; each that was used. */
export function usedLines(used: Used): string[] {
  return kinds.flatMap((kind) => (used[kind] ? [`${short(used[kind])} ${usedNames[kind]}`] : []));
}

/** `12.34 USD`; small sums to two digits that are not 0. */
export function moneyText(money: number, currency: string): string {
  const digits = money === 0 || Math.abs(money) >= 1 ? 2 : Math.min(10, 1 - Math.floor(Math.log10(Math.abs(money))));
  return `${money.toFixed(digits)} ${currency}`;
}

function short(value: number): string {
  const [unit, divisor] = value >= 1e9 ? ([' G', 1e9] as const) : value >= 1e6 ? ([' M', 1e6] as const) : ['', 1];
  const scaled = value / divisor;
  if (divisor === 1 && value >= 1000) return Math.round(value).toLocaleString('en');
  return `${Number(scaled.toPrecision(3))}${unit}`;
}
