import { within } from '../keys.ts';
import type { Line, Span } from '../lines.ts';

/** A row of a document that may be longer than the screen; `target`: what Enter opens. */
export interface DocumentLine {
  readonly line: Line;
  readonly target?: string;
}

export function plain(text: string, style?: Span['style']): DocumentLine {
  return { line: [{ text, ...(style ? { style } : {}) }] };
}

/** The rows that fit around the cursor, whose row is marked. */
export function page(lines: readonly DocumentLine[], cursor: number, rows: number): Line[] {
  const at = within(cursor, lines.length);
  const first = Math.max(0, Math.min(at - Math.floor(rows / 2), lines.length - rows));
  return lines
    .slice(first, first + rows)
    .map(({ line }, i): Line => [first + i === at ? { text: '▸', style: 'cyan' } : { text: ' ' }, ...line]);
}

/** The line with all matches of the search marked, in any of its pieces. */
export function highlighted(line: Line, words: string): Line {
  if (words === '') return line;
  const wanted = words.toLowerCase();
  return line.flatMap(({ text, style }): Span[] => {
    const spans: Span[] = [];
    const lower = text.toLowerCase();
    // Offsets would differ where the lower-case form has another length (İ).
    if (lower.length !== text.length) return [{ text, ...(style ? { style } : {}) }];
    let from = 0;
    for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
      if (at > from) spans.push({ text: text.slice(from, at), ...(style ? { style } : {}) });
      spans.push({ text: text.slice(at, at + wanted.length), style: 'inverse' });
      from = at + wanted.length;
    }
    if (from < text.length) spans.push({ text: text.slice(from), ...(style ? { style } : {}) });
    return spans;
  });
}

export function textOfLine(line: Line): string {
  return line.map(({ text }) => text).join('');
}
