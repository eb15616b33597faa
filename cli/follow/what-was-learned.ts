import { type HeldOutChange, judgeChange } from '../../core/eval/held-out-change.ts';
import { isRow, readRow, type ResultRow } from '../../core/eval/result-rows.ts';
import { jsonOrNull } from '../../core/json-or-null.ts';
import { type Curves, curvesOf } from '../../runs/metrics/curves.ts';
import { layout } from '../../runs/layout.ts';
import { currentLineage, type RunPlace, storeOf } from '../../runs/run-access.ts';
import type { EvalFigures } from '../../core/rl/figures.ts';
import { onOneLine } from '../output/plain-text.ts';
import { lineageOfStep } from '../../runs/run-records.ts';
import { sparkline } from '../view/lines.ts';

/**
 * Limits of the report on how a run changed its model: held-out rewards and answers before and after, and the whole
 * curve.
 */

const examplesShown = 3;
const textCharsShown = 70;
const curveColumns = 24;

/** A line for people; `bold` is the part of it that one looks for. */
interface SaidLine {
  readonly text: string;
  readonly bold?: string;
}

/** Lines for the end of a run. */
export async function whatWasLearned(run: RunPlace): Promise<SaidLine[]> {
  const curves = await curvesOf({ ...run, lineage: await currentLineage(run) }, Infinity);
  const environments = [...new Set(curves.evals.map(({ environment }) => environment))];
  const changes: EnvironmentChange[] = [];
  for (const environment of environments) {
    const change = await changeOf(run, environment, curves.evals);
    if (change !== null) changes.push(change);
  }
  return [
    ...changes.flatMap((change, i) => [verdictLine(change), ...(i === 0 ? answerLines(change) : [])]),
    ...curveLines(curves, changes[0] ?? null),
  ];
}

/** One environment of `[eval]`: its first evaluation of the run and its last. */
interface EnvironmentChange {
  readonly environment: string;
  readonly first: EvalFigures;
  readonly last: EvalFigures;
  /** null when rows are no longer stored. */
  readonly sampled: HeldOutChange | null;
  readonly greedy: HeldOutChange | null;
  readonly answers: PairedAnswers | null;
}

/** Answers of both versions to the same examples. */
interface PairedAnswers {
  readonly kind: 'sampled' | 'greedy';
  readonly pairs: readonly Pair[];
}

interface Pair {
  readonly before: ResultRow;
  readonly after: ResultRow;
}

/** null with fewer than two evaluated versions. */
async function changeOf(
  run: RunPlace,
  environment: string,
  evals: readonly EvalFigures[],
): Promise<EnvironmentChange | null> {
  const own = evals.filter((one) => one.environment === environment);
  const [first, last] = [own[0], own.at(-1)];
  if (!first || !last || first.step === last.step) return null;
  const sampled = await pairsOf(run, environment, [first.step, last.step], '');
  const greedy = await pairsOf(run, environment, [first.step, last.step], 'greedy');
  const judged = (pairs: readonly Pair[], kind: string): HeldOutChange | null =>
    pairs.length === 0 ? null : judgeChange(differencesOf(pairs), [run.name, environment, kind]);
  return {
    environment,
    first,
    last,
    sampled: judged(sampled, 'sampled'),
    greedy: judged(greedy, 'greedy'),
    // Greedy answers differ only by the weights.
    answers:
      greedy.length > 0
        ? { kind: 'greedy', pairs: firstOfEach(greedy) }
        : sampled.length > 0
          ? { kind: 'sampled', pairs: firstOfEach(sampled) }
          : null,
  };
}

/** Rollout by rollout, of the examples that both versions have under the same id with the same last words. */
async function pairsOf(
  run: RunPlace,
  environment: string,
  [first, last]: readonly [number, number],
  variant: '' | 'greedy',
): Promise<Pair[]> {
  const [before, after] = [
    await rowsOf(run, environment, first, variant),
    await rowsOf(run, environment, last, variant),
  ];
  const left = new Map<string, ResultRow[]>();
  for (const row of after) left.set(exampleOf(row), [...(left.get(exampleOf(row)) ?? []), row]);
  return before.flatMap((row) => {
    const then = left.get(exampleOf(row))?.shift();
    return then === undefined ? [] : [{ before: row, after: then }];
  });
}

/** An adopted prompt changes the messages before the last one. */
function exampleOf({ exampleId, prompt }: ResultRow): string {
  return `${exampleId}\u0000${prompt.findLast(({ role }) => role === 'user')?.text ?? ''}`;
}

/** Empty when they were removed, or are not written yet. */
async function rowsOf(run: RunPlace, environment: string, step: number, variant: string): Promise<ResultRow[]> {
  const place = layout.evaluation(await lineageOfStep(run, step), environment, run.name, step, { variant });
  const bytes = await storeOf(run).read(`${place}results.jsonl`);
  if (!bytes) return [];
  return Buffer.from(bytes).toString('utf8').split('\n').map(jsonOrNull).filter(isRow).map(readRow);
}

/** One difference per example, of its mean rewards. */
function differencesOf(pairs: readonly Pair[]): number[] {
  const examples = new Map<string, { before: number[]; after: number[] }>();
  for (const { before, after } of pairs) {
    const seen = examples.get(exampleOf(before)) ?? { before: [], after: [] };
    examples.set(exampleOf(before), seen);
    if (before.reward !== null) seen.before.push(before.reward);
    if (after.reward !== null) seen.after.push(after.reward);
  }
  return [...examples.values()].flatMap(({ before, after }) =>
    before.length === 0 || after.length === 0 ? [] : [mean(after) - mean(before)],
  );
}

function firstOfEach(pairs: readonly Pair[]): Pair[] {
  const examples = new Map<string, Pair>();
  for (const pair of pairs) if (!examples.has(exampleOf(pair.before))) examples.set(exampleOf(pair.before), pair);
  return [...examples.values()];
}

function verdictLine(change: EnvironmentChange): SaidLine {
  const { environment, first, last, sampled, greedy } = change;
  const reward = `${figure(first.reward)} → ${figure(last.reward)}`;
  const fell = (one: HeldOutChange | null): string => (one === 'fell' ? 'fell ' : '');
  const figures = [
    `reward ${fell(sampled)}${reward}`,
    ...(greedy === null && first.greedyReward === first.reward
      ? []
      : [`greedy ${fell(greedy)}${figure(first.greedyReward)} → ${figure(last.greedyReward)}`]),
  ].join(', ');
  const { label, note } = verdictOf(change);
  const text = `${label.padEnd(8)}${environment}, held out, v${first.step} → v${last.step}: ${figures}${note}`;
  return { text, bold: reward };
}

/** `learned` only for a rise beyond chance without any fall. */
function verdictOf({ sampled, greedy }: EnvironmentChange): { readonly label: string; readonly note: string } {
  const both = [sampled, greedy];
  const [rose, fell] = [both.includes('rose'), both.includes('fell')];
  if (rose && fell) return { label: 'mixed', note: ': one rose, the other fell' };
  if (rose) return { label: 'learned', note: '' };
  if (fell) return { label: 'fell', note: '' };
  const known = sampled ?? greedy;
  if (known === null) return { label: 'evals', note: ' (their rows are not stored: this may be chance)' };
  return { label: 'evals', note: `: ${known === 'too few examples' ? 'too few examples to tell from chance' : known}` };
}

/** The first answers that changed, and how many did. */
function answerLines({ answers }: EnvironmentChange): SaidLine[] {
  if (answers === null) return [];
  const { kind, pairs } = answers;
  const changed = pairs.filter(({ before, after }) => answerOf(before) !== answerOf(after));
  const moved = (sign: number): number =>
    changed.filter(({ before, after }) => sign * ((after.reward ?? 0) - (before.reward ?? 0)) > 0).length;
  const counts = `${kind} answers: ${changed.length} of ${pairs.length} changed, ${moved(1)} for the better, ${moved(-1)} for the worse`;
  const shown = changed.slice(0, examplesShown).map(({ before, after }) => {
    const asked = before.prompt.at(-1)?.text ?? '';
    return `"${short(asked)}"  before: "${short(answerOf(before))}"  after: "${short(answerOf(after))}"`;
  });
  return [counts, ...shown].map((text) => ({ text: `        ${text}` }));
}

function answerOf({ completion }: ResultRow): string {
  return completion.findLast(({ role }) => role === 'assistant')?.text ?? '';
}

/** Held-out rewards from the first evaluation on, and rewards of batches from step 1 on. */
function curveLines({ trend, evals }: Curves, change: EnvironmentChange | null): SaidLine[] {
  const evaluated = change === null ? [] : evals.filter(({ environment }) => environment === change.environment);
  const heldOut =
    change === null
      ? []
      : [
          `${sparkline(
            evaluated.map(({ reward }) => reward),
            curveColumns,
          )}  held out, v${change.first.step} ${figure(change.first.reward)} … v${change.last.step} ${figure(change.last.reward)}`,
        ];
  const measured = trend.filter(([, reward]) => reward !== null);
  const [begin, end] = [measured[0], measured.at(-1)];
  // Batches contain what is still hard: their reward may fall while the model improves, and is then left out.
  const contradicts = change !== null && verdictOf(change).label === 'learned' && (end?.[1] ?? 0) < (begin?.[1] ?? 0);
  const batches =
    !begin || !end || measured.length < 2 || contradicts
      ? []
      : [
          `${sparkline(
            trend.map(([, reward]) => reward),
            curveColumns,
          )}  batches, step ${begin[0]} ${figure(begin[1])} … step ${end[0]} ${figure(end[1])}`,
        ];
  return [...heldOut, ...batches].map((text, i) => ({ text: `${i === 0 ? 'curve   ' : '        '}${text}` }));
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function short(text: string): string {
  const line = onOneLine(text);
  return line.length <= textCharsShown ? line : `${line.slice(0, textCharsShown)}…`;
}

function figure(value: number | null): string {
  return value?.toFixed(3) ?? '–';
}
