import { styleText } from 'node:util';
import { foldWords } from './fold-words.ts';
import { withoutControls } from './plain-text.ts';

const indent = ' '.repeat(7);
const columnsMin = 20;

/** Lines with the time since the command began: `0:38  warm-up …`. */
export interface Clock {
  /** `bold`: part of the line to highlight on a terminal with colors. */
  readonly say: (line: string, bold?: string) => void;
  /** The same as text, with its line break. */
  readonly stamped: (line: string) => string;
  /** `2/3 ` within `npm start`, whose first part was the packages; else empty. */
  readonly part: (number: 2 | 3) => string;
}

/** On a terminal, lines are folded at its present width. */
export function startClock(
  write: (text: string) => void = (text) => void process.stdout.write(text),
  columns: () => number = () => (process.stdout.isTTY ? process.stdout.columns : Infinity),
  hasColor: boolean = process.stdout.isTTY && !process.env['NO_COLOR'] && process.env['TERM'] !== 'dumb',
): Clock {
  // `npm start` began before this process did.
  const startedAt = Number(process.env['RATCHET_STARTED_AT'] ?? Date.now());
  const isFirstRun = process.env['RATCHET_STARTED_AT'] !== undefined;
  const stamped = (line: string, bold = ''): string => {
    const seconds = Math.max(0, Math.floor((Date.now() - startedAt) / 1000));
    const time = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
    const room = Math.max(columnsMin, columns() - indent.length);
    const rows = withoutControls(line)
      .split('\n')
      .flatMap((one) => foldWords(one, room))
      .map((row) => (bold === '' || !hasColor ? row : row.replace(bold, () => styled(bold))));
    return `${time.padStart(5)}  ${rows.join(`\n${indent}`)}\n`;
  };
  return {
    part: (number) => (isFirstRun ? `${number}/3 ` : ''),
    stamped,
    say: (line, bold) => write(stamped(line, bold)),
  };
}

function styled(text: string): string {
  return styleText('bold', text, { validateStream: false });
}
