import { parse, TomlError } from 'smol-toml';
import type { Problem } from './problems.ts';
import type { Table } from './tables.ts';

/** A file's text as a table, or where its syntax is wrong. */
export function parseToml(
  text: string,
  file: string,
): { readonly table: Table; readonly problem?: undefined } | { readonly table?: undefined; readonly problem: Problem } {
  try {
    return { table: parse(text, { unsafeKeyBehaviour: 'throw' }) };
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    const [reason = 'a syntax error'] = error.message.replace(/^Invalid TOML document: /, '').split('\n');
    const { line, column } = error;
    return { problem: { file, line, column, path: '', expected: 'valid TOML', received: reason } };
  }
}
