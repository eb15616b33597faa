import { styleText } from 'node:util';
import sliceAnsi from 'slice-ansi';
import stringWidth from 'string-width';
import { withoutControls } from '../output/plain-text.ts';

/** Text in one style. */
export interface Span {
  readonly text: string;
  readonly style?: 'bold' | 'dim' | 'green' | 'red' | 'yellow' | 'cyan' | 'inverse';
}

/** One row of the screen. */
export type Line = readonly Span[];

/** Features of the terminal. */
export interface TerminalSupport {
  readonly hasColor: boolean;
  /** Block characters and arrows; else plain ASCII. */
  readonly hasUnicode: boolean;
}

/** Columns that a text takes: two for East Asian letters and most emoji. */
export function widthOf(text: string): number {
  return stringWidth(text);
}

/** Cuts text to `columns`, with an ellipsis. */
export function cut(text: string, columns: number): string {
  if (columns <= 0) return '';
  return widthOf(text) <= columns ? text : `${sliceAnsi(text, 0, columns - 1)}…`;
}

export function padded(text: string, columns: number): string {
  const short = cut(text, columns);
  return short + ' '.repeat(Math.max(0, columns - widthOf(short)));
}

/** Folds text into rows of at most `columns`; words stay whole where they fit. */
export function folded(text: string, columns: number): string[] {
  const width = Math.max(8, columns);
  return withoutControls(text)
    .split('\n')
    .flatMap((line) => foldedLine(line, width));
}

function foldedLine(line: string, width: number): string[] {
  const rows: string[] = [];
  let rest = line;
  for (;;) {
    // Measures no more than a row can need: a line may be as long as a model's answer.
    const near = rest.slice(0, 8 * width);
    const piece = printableAscii.test(near) ? near.slice(0, width) : sliceAnsi(near, 0, width);
    if (piece.length >= rest.length) return [...rows, rest];
    const lastSpace = piece.lastIndexOf(' ');
    const end = Math.max(1, rest[piece.length] === ' ' || lastSpace <= 0 ? piece.length : lastSpace);
    rows.push(rest.slice(0, end).trimEnd());
    rest = rest.slice(end).trimStart();
  }
}

const printableAscii = /^[ -~]*$/;

/** A row as written: cut to the terminal's width, never wrapped. */
export function written(line: Line, columns: number, { hasColor, hasUnicode }: TerminalSupport): string {
  let left = columns;
  let text = '';
  for (const [i, span] of line.entries()) {
    // In ASCII an arrow takes two columns, so it is replaced before anything is measured.
    const plain = hasUnicode ? span.text : inAscii(span.text);
    const isCut = widthOf(plain) > left || (left === 0 && i < line.length);
    const shown = hasUnicode ? cut(plain, left) : inAscii(cut(plain, left));
    left -= widthOf(shown);
    text += hasColor && span.style && shown !== '' ? styleText(span.style, shown, { validateStream: false }) : shown;
    if (isCut) break;
  }
  return text;
}

const ascii: Readonly<Record<string, string>> = {
  '█': '#',
  '░': '.',
  '─': '-',
  '●': '*',
  '○': 'o',
  '·': '-',
  '↑': '^',
  '↓': 'v',
  '→': '->',
  '↳': '>',
  '…': '~', // one column, like the ellipsis
  '–': '-',
  '±': '+-',
  '×': 'x',
  '≤': '<=',
  '✓': 'ok',
  '✗': 'X',
  '⏎': '\\n',
  '▸': '>',
  '▾': 'v',
  '│': '|',
  '“': '"',
  '”': '"',
  '≥': '>=',
  '▁': '_',
  '▂': '.',
  '▃': '-',
  '▄': '~',
  '▅': '=',
  '▆': '+',
  '▇': '*',
};

/** Text for terminals whose locale is not UTF-8. */
export function inAscii(text: string): string {
  // oxlint-disable-next-line no-control-regex -- all that is not ASCII is what is looked for
  return text.replaceAll(/[^\x00-\x7f]/gu, (sign) => ascii[sign] ?? '?');
}

const levels = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/**
 * Values as a row of blocks, scaled from minimum to maximum; a gap for a missing value. If there are more values than columns,
 * each block is a mean: this shows the trend, not the latest noise.
 */
export function sparkline(values: readonly (number | null)[], columns: number): string {
  const shown = inColumns(values, columns);
  const known = shown.filter((value) => value !== null);
  const [least, most] = [Math.min(...known), Math.max(...known)];
  const scaled = (value: number): number =>
    most === least ? 3 : Math.round(((value - least) / (most - least)) * (levels.length - 1));
  return shown.map((value) => (value === null ? ' ' : levels[scaled(value)]!)).join('');
}

function inColumns(values: readonly (number | null)[], columns: number): (number | null)[] {
  if (columns <= 0) return [];
  if (values.length <= columns) return [...values];
  const at = (column: number): number => Math.floor((column * values.length) / columns);
  return Array.from({ length: columns }, (_, column) => {
    const known = values.slice(at(column), at(column + 1)).filter((value) => value !== null);
    return known.length === 0 ? null : known.reduce((sum, value) => sum + value, 0) / known.length;
  });
}

/** `share` null: nothing yet. */
export function bar(share: number | null, columns: number): string {
  const full = share === null ? 0 : Math.round(Math.min(1, Math.max(0, share)) * columns);
  return '█'.repeat(full) + '░'.repeat(Math.max(0, columns - full));
}
