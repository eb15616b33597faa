import type { ExampleDifference } from '../../../core/eval/comparison.ts';
import { differentSettings } from '../../../core/eval/result-metadata.ts';
import type { ResultRow } from '../../../core/eval/result-rows.ts';
import { leftOutText, verdict } from '../../eval/compare-words.ts';
import { change, figure, passText, passesIn, rewardsText, settingText, titleOf } from '../../eval/figures.ts';
import { onOneLine } from '../../output/plain-text.ts';
import { folded, type Line, padded } from '../lines.ts';
import { type DocumentLine, page, plain } from './document.ts';
import { rolloutLines } from './rollout-page.ts';
import { beside } from './run-page.ts';
import type { BrowserData, CompareScreen, PairScreen } from './state.ts';

/** Two runs compared: settings that differ, results, and each example's outcome. */
export function compareLines(data: BrowserData, screen: CompareScreen, columns: number): DocumentLine[] {
  const { a, b } = screen;
  const comparison = data.comparison(a, b);
  const [inA, inB] = [data.evaluations[a]!, data.evaluations[b]!];
  const titles = [plain(`A  ${titleOf(inA)}`, 'bold'), plain(`B  ${titleOf(inB)}`, 'bold')];
  if (comparison === null) {
    const read = [a, b].map((one) => data.rows(one));
    const problem = read.map((one) => one.problem).find((one) => one !== null);
    if (problem) return [...titles, ...folded(problem, columns - 2).map((text) => plain(text, 'yellow'))];
    const share = (read[0]!.progress + read[1]!.progress) / 2;
    return [...titles, plain(`reading: ${Math.floor(share * 100)} %`, 'yellow')];
  }
  const { difference, means, better, same, worse, leftOut, examples } = comparison;
  const settings = differentSettings([inA.metadata, inB.metadata]);
  const list = screen.isReversed ? examples.toReversed() : examples;
  const says =
    difference === null || means === null
      ? ['no example in common that both answered']
      : [
          `B against A: ${change(difference.mean)} reward per example (${figure(means[0])} → ${figure(means[1])}), 95 % between ${change(difference.low)} and ${change(difference.high)}: ${verdict(difference)}`,
          `${better} better · ${same} the same · ${worse} worse`,
        ];
  return [
    ...titles,
    ...[...says, ...leftOutText(leftOut)].flatMap((text) => folded(text, columns - 2)).map((text) => plain(text)),
    plain(settings.length === 0 ? 'settings are the same' : 'settings that differ', 'bold'),
    ...settings.map(({ name, values }) =>
      threeColumns(name, settingText(values[0]!), settingText(values[1]!), columns),
    ),
    plain('figures', 'bold'),
    ...figureLines(data, screen, columns),
    plain('examples: difference, rewards of A, of B', 'bold'),
    ...list.map((one) => exampleLine(one)),
  ];
}

function figureLines(data: BrowserData, { a, b }: CompareScreen, columns: number): DocumentLine[] {
  const [inA, inB] = [data.rows(a).figures, data.rows(b).figures];
  const names = [...new Set([...Object.keys(inA.metrics), ...Object.keys(inB.metrics)])];
  const row = (name: string, of: (figures: typeof inA) => string): DocumentLine =>
    threeColumns(name, of(inA), of(inB), columns);
  const passAt = (one: number): string =>
    passText(passesIn(data.evaluations[one]!.metadata, data.rows(one).figures).passAtK) || '–';
  return [
    row('rollouts', ({ rollouts }) => String(rollouts)),
    row('failed', ({ failures }) => String(failures.reduce((sum, { count }) => sum + count, 0))),
    row('reward', ({ reward }) => figure(reward?.mean)),
    ...names.map((name) => row(name, ({ metrics }) => figure(metrics[name]?.mean))),
    threeColumns('pass@k', passAt(a), passAt(b), columns),
  ];
}

function threeColumns(name: string, a: string, b: string, columns: number): DocumentLine {
  const wide = Math.floor((columns - 6) / 3);
  return plain(`  ${padded(onOneLine(name), wide)} ${padded(a, wide)} ${padded(b, wide)}`);
}

function exampleLine({ exampleId, difference, rewards, promptStart }: ExampleDifference): DocumentLine {
  const style = difference > 0 ? 'green' : difference < 0 ? 'red' : 'dim';
  const line: Line = [
    { text: `  ${padded(`#${onOneLine(exampleId)}`, 7)} ` },
    { text: change(difference).padStart(8), style },
    { text: `  ${rewardsText(rewards[0])} | ${rewardsText(rewards[1])}` },
    { text: `  ${onOneLine(promptStart)}`, style: 'dim' },
  ];
  return { line, target: exampleId };
}

/** Both models' answers to one example: side by side, or below each other on a narrow screen. */
export function pairPage(data: BrowserData, screen: PairScreen, columns: number, rows: number): Line[] {
  const { left, right, width } = pairOf(data, screen, columns);
  if (width === columns) return page([...left, ...right], screen.cursor, rows);
  const length = Math.max(left.length, right.length);
  const filled = (lines: readonly DocumentLine[]): DocumentLine[] =>
    Array.from({ length }, (_, i) => lines[i] ?? { line: [] });
  const [a, b] = [left, right].map((lines) => page(filled(lines), screen.cursor, rows));
  return beside(a!, b!, width, Math.min(rows, length));
}

/** Number of rows that the cursor can be on. */
export function pairLength(data: BrowserData, screen: PairScreen, columns: number): number {
  const { left, right, width } = pairOf(data, screen, columns);
  return width === columns ? left.length + right.length : Math.max(left.length, right.length);
}

function pairOf(data: BrowserData, screen: PairScreen, columns: number) {
  const width = columns >= 70 ? Math.floor((columns - 3) / 2) : columns;
  const linesOf = (evaluation: number, letter: string): DocumentLine[] =>
    pairLines(rolloutOf(data, evaluation, screen), letter, width - 1);
  return { left: linesOf(screen.a, 'A'), right: linesOf(screen.b, 'B'), width };
}

function rolloutOf(data: BrowserData, evaluation: number, { examples, position, rollout }: PairScreen) {
  const exampleId = examples[position]!;
  const numbers = data.rows(evaluation).rows.flatMap((row, i) => (row.exampleId === exampleId ? [i] : []));
  const at = Math.min(rollout, numbers.length - 1);
  return { row: numbers[at] === undefined ? null : data.row(evaluation, numbers[at]), at, count: numbers.length };
}

function pairLines(
  { row, at, count }: { row: ResultRow | 'reading' | null; at: number; count: number },
  letter: string,
  columns: number,
): DocumentLine[] {
  const title = plain(`${letter}  rollout ${at + 1} of ${count}`, 'bold');
  if (row === 'reading') return [title, plain('reading …', 'dim')];
  if (row === null) return [title, plain('not in the file any more', 'yellow')];
  const folds = { at: 'first', toggled: [] } as const;
  return [title, ...rolloutLines(row, { folds, search: '' }, columns)];
}
