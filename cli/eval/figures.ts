import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { JsonValue } from '../../config/run-spec.ts';
import type { ExampleDifference } from '../../core/eval/comparison.ts';
import type { Bin } from '../../core/eval/distribution.ts';
import type { ResultMetadata } from '../../core/eval/result-metadata.ts';
import type { EvaluationFigures, NumberSummary } from '../../core/eval/summary.ts';
import type { FoundEvaluation } from '../../runs/evaluations/evaluation.ts';
import { onOneLine } from '../output/plain-text.ts';

/** At most three digits after the point; – for no value. */
export function figure(value: number | null | undefined): string {
  if (value == null) return '–';
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size < 0.0005 || size >= 1e6 ? value.toExponential(1) : value.toFixed(3);
}

/** A difference with an explicit sign. */
export function change(value: number): string {
  return `${value > 0 ? '+' : ''}${figure(value)}`;
}

/** A count with its noun: `1 row`, `2 rows`. */
export function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`;
}

/** `ENV · MODEL · ID`. */
export function titleOf({ environment, model, id }: Pick<FoundEvaluation, 'environment' | 'model' | 'id'>): string {
  return onOneLine(`${environment} · ${model} · ${id}`);
}

/** Path of an evaluation for commands, relative to this folder if it is below. */
export function placeOf({ where }: Pick<FoundEvaluation, 'where'>): string {
  const folder = where.startsWith('file:') ? fileURLToPath(where) : where;
  const fromHere = path.relative(process.cwd(), folder);
  const isBelow = path.isAbsolute(folder) && fromHere !== '' && !fromHere.startsWith('..');
  return onOneLine(isBelow ? fromHere : folder);
}

/** Range, count and a bar for each bin; bars have at most `columns` characters. */
export function histogram(bins: readonly Bin[], columns: number): { range: string; bar: string; count: number }[] {
  const most = Math.max(1, ...bins.map(({ count }) => count));
  const edge = (value: number): string => String(Number(value.toPrecision(3)));
  const ranges = bins.map(({ from, to }) => (from === to ? figure(from) : `${edge(from)} – ${edge(to)}`));
  const widest = Math.max(0, ...ranges.map(({ length }) => length));
  return bins.map(({ count }, i) => ({
    range: ranges[i]!.padStart(widest),
    bar: count === 0 ? '' : '█'.repeat(Math.max(1, Math.round((count / most) * Math.max(1, columns)))),
    count,
  }));
}

/** Name, count, mean, minimum, maximum of each metric, under headings; empty without metrics. */
export function metricRows(metrics: Readonly<Record<string, NumberSummary>>): string[][] {
  const rows = Object.entries(metrics).map(([name, { count, mean, min, max }]) => [
    onOneLine(name),
    String(count),
    figure(mean),
    figure(min),
    figure(max),
  ]);
  return rows.length === 0 ? [] : [['', 'count', 'avg', 'min', 'max'], ...rows];
}

/** Columns of equal width: the first to the left, figures to the right. */
export function aligned(rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]!.length)));
  return rows.map((row) =>
    row
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[0]!) : cell.padStart(widths[column]!)))
      .join('  ')
      .trimEnd(),
  );
}

/** `1 0.500 · 2 0.833`; empty with one rollout per example. */
export function passText(at: Readonly<Record<string, number>>): string {
  return Object.entries(at)
    .map(([k, value]) => `${k}: ${figure(value)}`)
    .join('  ');
}

/** Passes as the writer counted them, else counted from the rows. */
export function passesIn(
  metadata: ResultMetadata,
  figures: EvaluationFigures,
): Pick<ResultMetadata, 'passAtK' | 'passAllK'> {
  return Object.keys(metadata.passAtK).length > 0 ? metadata : figures;
}

/** The mean, its number of rollouts, and the value in metadata.json if that differs. */
export function rewardText(
  { reward, failures, policyFailures }: EvaluationFigures,
  { avgReward }: ResultMetadata,
): string {
  const failed = failures.reduce((sum, { count }) => sum + count, 0) - policyFailures;
  if (reward === null) return failed > 0 ? 'none: every rollout failed' : 'none in its rows';
  const over = `mean of ${counted(reward.count, 'rollout')}, ${figure(reward.min)} to ${figure(reward.max)}`;
  // Half of the last digit shown.
  const differs = avgReward !== null && Math.abs(avgReward - reward.mean) > 5e-4;
  const why = failed > 0 ? `, which counts ${failed} failed` : '';
  return `${figure(reward.mean)}  ${over}${differs ? ` (metadata.json: ${figure(avgReward)}${why})` : ''}`;
}

/** Tokens per rollout, and total dollars. */
export function usageText({ usage: { input, output } }: EvaluationFigures, { cost }: ResultMetadata): string {
  const parts = [
    ...(input ? [`${round(input.mean)} input`] : []),
    ...(output ? [`${round(output.mean)} output tokens per rollout`] : []),
    ...(output ? [`${Math.round(output.mean * output.count)} sampled in all`] : []),
    ...(cost === null ? [] : [`$${cost.toFixed(4)}`]),
  ];
  return parts.join(', ');
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

/** `0 1 1`, one for each rollout. */
export function rewardsText(rewards: ExampleDifference['rewards'][number]): string {
  return rewards.map((reward) => String(Number(reward.toFixed(2)))).join(' ');
}

/** A setting's value in one line. */
export function settingText(value: JsonValue): string {
  return onOneLine(value === null ? '–' : typeof value === 'string' ? value : JSON.stringify(value));
}
