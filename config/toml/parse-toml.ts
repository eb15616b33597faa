import { parse, TomlError } from 'smol-toml';
import type { Problem } from './problems.ts';
import type { Table } from './tables.ts';

/** Real files have a hundredth of it. */
const charsMax = 1024 * 1024;
/** Settings are only a few tables deep; readers of tables are recursive. */
const depthMax = 100;

/** An unknown key is compared with all known keys for a suggestion. */
const keysMax = 2_000;
const keyCharsMax = 200;

/** A file that was parsed once, for its kind and its meaning. */
export type TomlFile = {
  /** The path that the user gave. */
  readonly file: string;
  readonly text: string;
} & (
  | { readonly table: Table; readonly problem?: undefined }
  | { readonly table?: undefined; readonly problem: Problem }
);

/** A file's text as a table, or the position of its syntax error. */
export function parseToml(text: string, file: string): TomlFile {
  const refuse = (expected: string, received: string) => ({
    file,
    text,
    problem: { file, line: null, column: null, path: '', expected, received },
  });
  if (text.length > charsMax)
    return refuse(
      `at most ${charsMax} characters of TOML`,
      `${text.length} of them. Rows of data belong into files of their own`,
    );
  try {
    const table = parse(text, { unsafeKeyBehaviour: 'throw' });
    const why = whyTooMuch(table);
    return why === null ? { file, text, table } : refuse(...why);
  } catch (error) {
    // A stack overflow of the parser.
    if (error instanceof RangeError) return refuse(`tables within tables, ${depthMax} deep at most`, 'deeper ones');
    if (!(error instanceof TomlError)) throw error;
    const [reason = 'a syntax error'] = error.message.replace(/^Invalid TOML document: /, '').split('\n');
    const { line, column } = error;
    return { file, text, problem: { file, line, column, path: '', expected: 'valid TOML', received: reason } };
  }
}

/** Expected and received values for a table that no person wrote by hand. */
function whyTooMuch(table: Table): [expected: string, received: string] | null {
  let level: unknown[] = [table];
  let count = 0;
  for (let depth = 0; level.length > 0; depth++) {
    if (depth > depthMax) return [`tables within tables, ${depthMax} deep at most`, 'deeper ones'];
    const tables = level.filter((value) => typeof value === 'object' && value !== null);
    const keys = tables.flatMap((value) => (Array.isArray(value) ? [] : Object.keys(value)));
    const long = keys.find((key) => key.length > keyCharsMax);
    if (long !== undefined)
      return [`keys of at most ${keyCharsMax} characters`, `one of ${long.length}: ${long.slice(0, 40)}…`];
    count += keys.length;
    if (count > keysMax) return [`at most ${keysMax} keys`, 'more of them'];
    level = tables.flatMap((value) => Object.values(value));
  }
  return null;
}
