import { parse, TomlError } from 'smol-toml';
import type { Problem } from './problems.ts';
import type { Table } from './tables.ts';

/** Those that people have are a hundredth of it. */
const charsMax = 1024 * 1024;
/** No setting lies deeper than a few tables; whoever walks them does so by calling itself. */
const depthMax = 100;

/** Whoever meets an unknown key looks for one that was meant, among all there are. */
const keysMax = 2_000;
const keyCharsMax = 200;

/** A file that was parsed once, for whoever asks for its kind or for what it means. */
export type TomlFile = {
  /** As the user named it. */
  readonly file: string;
  readonly text: string;
} & (
  | { readonly table: Table; readonly problem?: undefined }
  | { readonly table?: undefined; readonly problem: Problem }
);

/** A file's text as a table, or where its syntax is wrong. */
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
    if (error instanceof RangeError) return refuse(`tables within tables, ${depthMax} deep at most`, 'deeper ones'); // of the parser's own stack
    if (!(error instanceof TomlError)) throw error;
    const [reason = 'a syntax error'] = error.message.replace(/^Invalid TOML document: /, '').split('\n');
    const { line, column } = error;
    return { file, text, problem: { file, line, column, path: '', expected: 'valid TOML', received: reason } };
  }
}

/** What was expected and what came, of a table that no one has written by hand. */
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
