import { type Bin, distribution } from './distribution.ts';
import { passFigures, passThreshold as defaultThreshold } from './pass-at-k.ts';
import type { RowFacts } from './result-rows.ts';

/** Figures of an evaluation, computed from its rows. */
export interface EvaluationFigures {
  readonly rollouts: number;
  readonly examples: number;
  /** Summary over rewarded rollouts. Null if there are none. */
  readonly reward: NumberSummary | null;
  readonly distribution: readonly Bin[];
  readonly metrics: Readonly<Record<string, NumberSummary>>;
  readonly usage: { readonly input: NumberSummary | null; readonly output: NumberSummary | null };
  readonly truncated: number;
  /**
   * Keyed by k, over examples without failed rollouts that have as many as the largest; empty with one rollout per
   * example.
   */
  readonly passAtK: Readonly<Record<string, number>>;
  readonly passAllK: Readonly<Record<string, number>>;
  /** Rollouts with an error by cause, the most frequent first, each with a message that one of them has. */
  readonly failures: readonly { readonly cause: string; readonly count: number; readonly message: string }[];
  /** Rollouts with an error and a reward: the policy itself failed. */
  readonly policyFailures: number;
  /** Other events of rollouts, in the same order: reward functions that threw, repetitions. */
  readonly notes: EvaluationFigures['failures'];
}

export interface NumberSummary {
  readonly count: number;
  readonly mean: number;
  readonly min: number;
  readonly max: number;
}

/** Counts rows one by one; `figures` may be read at any time. */
export class Summing {
  readonly #rewards: number[] = [];
  readonly #metrics = new Map<string, Tally>();
  readonly #input = new Tally();
  readonly #output = new Tally();
  readonly #examples = new Map<string, { rewarded: number; right: number }>();
  readonly #passThreshold: number;
  readonly #failures = new Map<string, { count: number; message: string }>();
  readonly #notes = new Map<string, { count: number; message: string }>();
  #policyFailures = 0;
  #rollouts = 0;
  #truncated = 0;

  /** @param passThreshold Reward from which a rollout counts as right. */
  constructor(passThreshold = defaultThreshold) {
    this.#passThreshold = passThreshold;
  }

  add({ exampleId, reward, error, notes, metrics, inputTokens, outputTokens, isTruncated }: RowFacts): void {
    this.#rollouts += 1;
    let example = this.#examples.get(exampleId);
    if (!example) this.#examples.set(exampleId, (example = { rewarded: 0, right: 0 }));
    if (reward !== null) {
      example.rewarded += 1;
      if (reward >= this.#passThreshold) example.right += 1;
    }
    if (isTruncated) this.#truncated += 1;
    if (inputTokens !== null) this.#input.add(inputTokens);
    if (outputTokens !== null) this.#output.add(outputTokens);
    for (const { what, message } of notes) count(this.#notes, what, message);
    if (error !== null) {
      count(this.#failures, error.cause, error.message);
      if (reward === null) return; // its metrics describe nothing
      this.#policyFailures += 1;
    }
    if (reward !== null) this.#rewards.push(reward);
    for (const name in metrics) {
      let tally = this.#metrics.get(name);
      if (!tally) this.#metrics.set(name, (tally = new Tally()));
      tally.add(metrics[name]!);
    }
  }

  figures(): EvaluationFigures {
    const { atK, allK } = this.#passes();
    return {
      passAtK: atK,
      passAllK: allK,
      rollouts: this.#rollouts,
      examples: this.#examples.size,
      reward: summaryOf(this.#rewards),
      distribution: distribution(this.#rewards),
      metrics: Object.fromEntries([...this.#metrics].map(([name, tally]) => [name, tally.summary()!])),
      usage: { input: this.#input.summary(), output: this.#output.summary() },
      truncated: this.#truncated,
      failures: byFrequency(this.#failures),
      policyFailures: this.#policyFailures,
      notes: byFrequency(this.#notes),
    };
  }

  #passes(): ReturnType<typeof passFigures> {
    let n = 0;
    for (const { rewarded } of this.#examples.values()) n = Math.max(n, rewarded);
    const byRight = Array.from({ length: n + 1 }, () => 0);
    for (const { rewarded, right } of this.#examples.values()) if (rewarded === n) byRight[right]! += 1;
    return passFigures(n, byRight);
  }
}

type Counts = Map<string, { count: number; message: string }>;

function count(counts: Counts, cause: string, message: string): void {
  const known = counts.get(cause);
  counts.set(cause, { count: (known?.count ?? 0) + 1, message: known?.message ?? message });
}

function byFrequency(counts: Counts): EvaluationFigures['failures'] {
  return [...counts]
    .map(([cause, { count: times, message }]) => ({ cause, count: times, message }))
    .sort((a, b) => b.count - a.count || a.cause.localeCompare(b.cause));
}

export function summarize(rows: readonly RowFacts[], passThreshold?: number): EvaluationFigures {
  const summing = new Summing(passThreshold);
  for (const row of rows) summing.add(row);
  return summing.figures();
}

/** Null without values. */
function summaryOf(values: readonly number[]): NumberSummary | null {
  const tally = new Tally();
  for (const value of values) tally.add(value);
  return tally.summary();
}

class Tally {
  #count = 0;
  #sum = 0;
  #min = Number.POSITIVE_INFINITY;
  #max = Number.NEGATIVE_INFINITY;

  add(value: number): void {
    this.#count += 1;
    this.#sum += value;
    this.#min = Math.min(this.#min, value);
    this.#max = Math.max(this.#max, value);
  }

  summary(): NumberSummary | null {
    if (this.#count === 0) return null;
    return { count: this.#count, mean: this.#sum / this.#count, min: this.#min, max: this.#max };
  }
}
