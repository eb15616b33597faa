import assert from 'node:assert/strict';
import { maskTotal } from './micro-batches.ts';
import type { PartOfLoss } from './parts-of-loss.ts';
import { type GradientKind, metricNames } from './train-graph.ts';
import type { SftMetrics, TrainMetrics } from './types.ts';

/** Sums over the tokens of a batch, by the names of metricNames. */
export type Sums = Record<string, number>;

/** The loss is normalized already, a maximum stays one, everything else adds up. */
export function addMetrics(sums: Sums, kind: GradientKind, values: ArrayLike<number>): void {
  addSums(sums, Object.fromEntries(metricNames(kind).map((name, i) => [name, values[i]!])));
}

function addSums(sums: Sums, more: Sums): void {
  for (const [name, value] of Object.entries(more)) {
    const sofar = sums[name] ?? 0;
    sums[name] = name === 'maxLogprobDifference' ? largerOrNaN(sofar, value) : sofar + value;
  }
}

export function supervisedMetrics(sums: Sums, tokenCount: number, gradNorm: number): SftMetrics {
  return { loss: sums['loss'] ?? 0, entropy: mean(sums, 'entropy', tokenCount), gradNorm, tokenCount };
}

/** A part of a loss and its sums over the batch. */
type SummedPart = Pick<PartOfLoss, 'name' | 'rows'> & { readonly sums: Sums };

/**
 * Metrics of all parts together: losses add up; means are over the tokens that the policy sampled, whatever their
 * objective.
 */
export function metricsOfParts(parts: readonly SummedPart[], gradNorm: number): TrainMetrics {
  const sums: Sums = {};
  for (const { name, sums: own } of parts) {
    if (name === 'ce') sums['loss'] = (sums['loss'] ?? 0) + own['loss']!;
    else addSums(sums, own);
  }
  const tokensOf = ({ rows }: SummedPart): number => maskTotal(rows.rows);
  const sampled = parts.filter(({ name }) => name !== 'ce').reduce((count, part) => count + tokensOf(part), 0);
  const [refKl, ce] = (['ref_kl', 'ce'] as const).map((name) => parts.find((part) => part.name === name));
  const observed = ce ? tokensOf(ce) : 0;
  return {
    ...policyMetrics(sums, sampled, gradNorm),
    tokenCount: sampled + observed,
    ...(ce ? { nll: ce.sums['nll']! / observed } : {}),
    ...(refKl
      ? { refKlMasked: (refKl.sums['clipFractionLow']! + refKl.sums['clipFractionHigh']!) / tokensOf(refKl) }
      : {}),
  };
}

function policyMetrics(sums: Sums, tokenCount: number, gradNorm: number): TrainMetrics {
  const clipFractionLow = mean(sums, 'clipFractionLow', tokenCount);
  const clipFractionHigh = mean(sums, 'clipFractionHigh', tokenCount);
  return {
    ...supervisedMetrics(sums, tokenCount, gradNorm),
    mismatchKl: mean(sums, 'mismatchKl', tokenCount),
    clipFraction: clipFractionLow + clipFractionHigh,
    clipFractionLow,
    clipFractionHigh,
    ratioMean: mean(sums, 'ratioMean', tokenCount),
    maxLogprobDifference: sums['maxLogprobDifference'] ?? 0,
    klDivergence: 'klDivergence' in sums ? mean(sums, 'klDivergence', tokenCount) : null,
  };
}

/** Means over the passes of a step; the gradient's norm is that of the last one. */
export function meanOfPasses(passes: readonly TrainMetrics[]): TrainMetrics {
  const last = passes.at(-1);
  assert(last, 'a step has one pass at least');
  const average = (of: (metrics: TrainMetrics) => number): number =>
    passes.reduce((sum, metrics) => sum + of(metrics), 0) / passes.length;
  return {
    loss: average(({ loss }) => loss),
    entropy: average(({ entropy }) => entropy),
    gradNorm: last.gradNorm,
    tokenCount: last.tokenCount,
    mismatchKl: average(({ mismatchKl }) => mismatchKl),
    clipFraction: average(({ clipFraction }) => clipFraction),
    clipFractionLow: average(({ clipFractionLow }) => clipFractionLow),
    clipFractionHigh: average(({ clipFractionHigh }) => clipFractionHigh),
    ratioMean: average(({ ratioMean }) => ratioMean),
    maxLogprobDifference: average(({ maxLogprobDifference }) => maxLogprobDifference),
    klDivergence: last.klDivergence === null ? null : average(({ klDivergence }) => klDivergence ?? 0),
    ...meanWhereThere(passes, 'nll'),
    ...meanWhereThere(passes, 'refKlMasked'),
  };
}

/** Not every part of a batch has tokens of every kind. */
function meanWhereThere<Name extends 'nll' | 'refKlMasked'>(
  passes: readonly TrainMetrics[],
  name: Name,
): Partial<Record<Name, number>> {
  const values = passes.flatMap((metrics) => metrics[name] ?? []);
  const total = values.reduce((sum, value) => sum + value, 0);
  return values.length === 0 ? {} : ({ [name]: total / values.length } as Record<Name, number>);
}

/** Why a step must not be taken; null when it may. */
export function refusalReason(metrics: SftMetrics | TrainMetrics): string | null {
  const { tokenCount, loss, gradNorm } = metrics;
  if (tokenCount === 0) return 'no token of the batch carries loss';
  if (!Number.isFinite(loss)) return `the loss is ${loss}`;
  if (!Number.isFinite(gradNorm)) return `the gradient norm is ${gradNorm}`;
  if (isFlat(metrics)) return 'the gradient is 0: nothing in the batch says which way to go';
  const strange = Object.entries(metrics).find(([, value]) => typeof value === 'number' && !Number.isFinite(value));
  return strange === undefined ? null : `the metric ${strange[0]} is ${String(strange[1])}`;
}

/** Whether a step has tokens, and no direction. */
export function isFlat({ loss, gradNorm }: Pick<SftMetrics, 'loss' | 'gradNorm'>): boolean {
  return Number.isFinite(loss) && gradNorm === 0;
}

/** Metrics in snake case, as in files and curves; unknown ones are left out. */
export function metricsRow(metrics: object): Record<string, number> {
  return Object.fromEntries(
    Object.entries(metrics)
      .filter((entry): entry is [string, number] => typeof entry[1] === 'number')
      .map(([name, value]) => [name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), value]),
  );
}

function mean(sums: Sums, name: string, total: number): number {
  return total === 0 ? 0 : (sums[name] ?? 0) / total;
}

function largerOrNaN(a: number, b: number): number {
  return Number.isNaN(a) || Number.isNaN(b) ? NaN : Math.max(a, b);
}
