import type { Size } from '../terminal.ts';
import { figure } from '../../eval/figures.ts';
import { summarySections } from '../../eval/summary-lines.ts';
import { onOneLine } from '../../output/plain-text.ts';
import { folded, type Line, padded, widthOf } from '../lines.ts';
import { type DocumentLine, highlighted, page, plain } from './document.ts';
import { type BrowserData, isWide, type EvaluationRows, type RunScreen } from './state.ts';

/** Summary of a run, its rollouts, or both if there is room. */
export function runPage(data: BrowserData, screen: RunScreen, size: Size & { readonly body: number }): Line[] {
  const { body, columns } = size;
  const rows = data.rows(screen.evaluation);
  if (rows.problem !== null) {
    return folded(rows.problem, columns - 2).map((text): Line => [{ text: ` ${text}`, style: 'yellow' }]);
  }
  if (screen.side === 'summary') return page(summaryLines(data, screen, columns - 2), screen.cursor, body);
  if (!isWide(size)) return rolloutList(data, screen, { columns, rows: body });
  const left = Math.floor(columns / 2);
  return beside(
    rolloutList(data, screen, { columns: left, rows: body }),
    summaryLines(data, screen, columns - left - 4).map(({ line }) => line),
    left,
    body,
  );
}

/** Two pages side by side, a line between them. */
export function beside(left: readonly Line[], right: readonly Line[], columns: number, rows: number): Line[] {
  return Array.from({ length: rows }, (_, i): Line => {
    const line = fitted(left[i] ?? [], columns);
    return [...line, { text: ' │ ', style: 'dim' }, ...(right[i] ?? [])];
  });
}

/** A row cut and padded to `columns`. */
function fitted(line: Line, columns: number): Line {
  let left = columns;
  const spans = line.map((span, i) => {
    const text =
      i === line.length - 1 ? padded(span.text, left) : padded(span.text, Math.min(left, widthOf(span.text)));
    left -= widthOf(text);
    return { ...span, text };
  });
  return left > 0 ? [...spans, { text: ' '.repeat(left) }] : spans;
}

export function summaryLines(data: BrowserData, { evaluation }: RunScreen, columns: number): DocumentLine[] {
  const found = data.evaluations[evaluation]!;
  const { figures, unreadable, progress } = data.rows(evaluation);
  const sections = summarySections({ found, figures, unreadable, columns });
  return [
    ...(progress < 1 ? [plain(`reading: ${Math.floor(progress * 100)} %`, 'yellow')] : []),
    ...sections.flatMap(({ heading, rows }): DocumentLine[] => [
      plain(heading, 'bold'),
      ...rows.flatMap((row) => {
        // Columns of figures stay as they are and are cut; sentences are folded.
        const isTable = heading === 'metrics' || heading === 'distribution';
        const pieces = isTable ? [row] : folded(row, columns - 2);
        return pieces.map((piece) => plain(`  ${piece}`, heading === 'failures' ? 'yellow' : undefined));
      }),
    ]),
  ];
}

const remembered = new WeakMap<readonly unknown[], { key: string; list: readonly number[] }>();

/** Numbers of the rows that are listed, in their order. */
export function listed(data: BrowserData, screen: RunScreen): readonly number[] {
  const { evaluation, order, filter, search } = screen;
  const { rows } = data.rows(evaluation);
  const hits = search === '' ? null : data.hits(evaluation, search).rows;
  const key = `${rows.length} ${order} ${filter} ${search} ${hits?.size}`;
  const known = remembered.get(rows);
  if (known?.key === key) return known.list;
  const threshold = data.evaluations[evaluation]!.metadata.passThreshold;
  const list: number[] = [];
  for (let i = 0; i < rows.length; i++) {
    if (passesFilter(rows[i]!, filter, threshold) && (hits === null || hits.has(i))) list.push(i);
  }
  if (order !== 'as written') {
    const sign = order === 'best first' ? -1 : 1;
    // Rollouts without a reward come last in either order.
    const value = (i: number): number => {
      const { reward } = rows[i]!;
      return reward === null ? Number.POSITIVE_INFINITY : sign * reward;
    };
    list.sort((a, b) => (value(a) === value(b) ? a - b : value(a) - value(b)));
  }
  remembered.set(rows, { key, list });
  return list;
}

function passesFilter(
  { reward, error, isTruncated }: EvaluationRows['rows'][number],
  filter: RunScreen['filter'],
  threshold: number,
): boolean {
  switch (filter) {
    case 'all':
      return true;
    case 'right':
      return reward !== null && reward >= threshold;
    case 'wrong':
      return reward !== null && reward < threshold;
    case 'failed':
      return error !== null;
    case 'truncated':
      return isTruncated;
    default:
      return filter satisfies never;
  }
}

function rolloutList(data: BrowserData, screen: RunScreen, { columns, rows: room }: Size): Line[] {
  const { rows, progress } = data.rows(screen.evaluation);
  const list = listed(data, screen);
  const { order, filter, search } = screen;
  const hits = search === '' ? null : data.hits(screen.evaluation, search);
  const parts = [
    `${list.length === rows.length ? '' : `${list.length} of `}${rows.length} rollouts`,
    ...(progress < 1 ? [`reading ${Math.floor(progress * 100)} %`] : []),
    ...(order === 'as written' ? [] : [order]),
    ...(filter === 'all' ? [] : [filter]),
    ...(hits === null
      ? []
      : [`with “${onOneLine(search)}”${hits.progress < 1 ? ` (searching ${Math.floor(hits.progress * 100)} %)` : ''}`]),
  ];
  const head: Line = [{ text: ` ${parts.join(' · ')}`, style: 'dim' }];
  // Rows far from the cursor are not rendered: there may be 100,000.
  const first = Math.max(0, Math.min(screen.cursor - room, list.length - 2 * room));
  const near = list.slice(first, first + 3 * room).map((index): DocumentLine => {
    const { exampleId, reward, error, isTruncated, promptStart, answerStart } = rows[index]!;
    const says = error === null ? answerStart || promptStart : error.message;
    const sign = error !== null ? '✗' : isTruncated ? '…' : ' ';
    const style = error !== null ? 'yellow' : 'green';
    const id = padded(`#${onOneLine(exampleId)}`, columns < 60 ? 7 : 10);
    const line: Line = [
      { text: `${id} ` },
      { text: `${(error === null || reward !== null ? figure(reward) : 'failed').padStart(7)} ${sign} `, style },
      { text: onOneLine(says), ...(error === null ? {} : { style: 'dim' }) },
    ];
    return { line: highlighted(line, search) };
  });
  if (near.length === 0) return [head, [{ text: ' none', style: 'dim' }]];
  return [head, ...page(near, screen.cursor - first, room - 1)];
}
