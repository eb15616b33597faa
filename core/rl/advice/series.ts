import { rules } from './rules-of-thumb.ts';

/** Statistics over the steps of a run, for advice. */

/** One committed step's metrics, by the names in `metrics.jsonl`. */
export interface StepFigures {
  readonly step: number;
  readonly metrics: Readonly<Record<string, number>>;
}

/** The known values of a metric, with their steps. */
interface Series {
  readonly name: string;
  readonly steps: readonly number[];
  readonly values: readonly number[];
}

export function seriesOf(steps: readonly StepFigures[], name: string): Series {
  const having = steps.filter(({ metrics }) => Number.isFinite(metrics[name]));
  return { name, steps: having.map(({ step }) => step), values: having.map(({ metrics }) => metrics[name]!) };
}

/** A quarter of the run at its end, at least five steps and at most fifty. */
export function recent(count: number): number {
  return Math.min(count, Math.max(5, Math.min(50, Math.floor(count / 4))));
}

function slice({ name, steps, values }: Series, from: number, to: number): Series {
  return { name, steps: steps.slice(from, to), values: values.slice(from, to) };
}

export function head(series: Series): Series {
  return slice(series, 0, recent(series.values.length));
}

export function tail(series: Series): Series {
  return slice(series, Math.max(0, series.values.length - recent(series.values.length)), series.values.length);
}

/** The stretch of this length with the highest mean. */
export function bestStretch(series: Series, length: number): Series {
  let best = slice(series, 0, length);
  for (let from = 1; from + length <= series.values.length; from++) {
    const candidate = slice(series, from, from + length);
    if (mean(candidate.values) > mean(best.values)) best = candidate;
  }
  return best;
}

/** Welch's test: whether two means differ by more than their noise explains. */
export function differs(a: readonly number[], b: readonly number[]): boolean {
  const error = Math.sqrt(variance(a) / a.length + variance(b) / b.length);
  return Math.abs(mean(a) - mean(b)) > rules.standardErrors * error;
}

export function span({ steps }: Series): string {
  return steps.length === 0 ? 'no step' : steps.length === 1 ? `step ${steps[0]}` : `steps ${steps[0]}–${steps.at(-1)}`;
}

export function between(steps: readonly StepFigures[]): string {
  return span({ name: '', steps: steps.map(({ step }) => step), values: [] });
}

export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

export function mean(values: readonly number[]): number {
  return values.length === 0 ? 0 : sum(values) / values.length;
}

function variance(values: readonly number[]): number {
  const middle = mean(values);
  return values.length < 2 ? 0 : sum(values.map((value) => (value - middle) ** 2)) / (values.length - 1);
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor((sorted.length - 1) / 2)] ?? 0;
}

export function percent(value: number): string {
  return `${Number((value * 100).toPrecision(value < 0.1 ? 2 : 3))} %`;
}

export function threeDigits(value: number): string {
  const rounded = Number(value.toPrecision(3));
  return rounded !== 0 && Math.abs(rounded) < 1e-3 ? rounded.toExponential().replace('e-', 'e-') : String(rounded);
}
