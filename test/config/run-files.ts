/** Run files that people have, and what may become of them: misspelt and spoiled. For tests, and for `bench configs`. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parse, stringify } from 'smol-toml';
import { type Dialect, schemaOf } from '../../config/dialects/dialect.ts';
import { dialectNamed } from '../../config/dialects/index.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { ParsedRunConfig } from '../../config/run-config.ts';
import type { KeyPath } from '../../config/toml/positions.ts';
import { keysAt, schemaAt } from '../../config/toml/schema-reader.ts';
import { copied, isTable, type Table, valueAt } from '../../config/toml/tables.ts';

export const configsFolder = fileURLToPath(new URL('../data/configs/', import.meta.url));

export interface RunFile {
  /** From configsFolder. */
  readonly name: string;
  readonly text: string;
}

export function runFiles(folder: 'seeds' | 'runs'): RunFile[] {
  return readdirSync(path.join(configsFolder, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.toml'))
    .toSorted()
    .map((name) => ({
      name: path.join(folder, name),
      text: readFileSync(path.join(configsFolder, folder, name), 'utf8'),
    }));
}

/** Letters for misspelt keys: the neighbours on a keyboard. */
export const letters = 'abcdefghijklmnopqrstuvwxyz0123456789_';

export interface Typo {
  readonly path: KeyPath;
  readonly key: string;
  readonly typo: string;
  readonly text: string;
}

/** The file with one character of one key deleted, inserted, swapped with the next or replaced; `inserted` are those that come in. */
export function* typosOf(
  text: string,
  inserted: (key: string, at: number) => string,
  isTried: (key: string, at: number) => boolean = () => true,
): Generator<Typo> {
  const table = parse(text);
  for (const at of keysOf(table)) {
    const key = String(at.at(-1));
    for (const typo of misspellings(key, inserted, isTried)) {
      const copy = copied(table);
      const parent = valueAt(copy, at.slice(0, -1)) as Table;
      if (Object.hasOwn(parent, typo)) continue;
      const renamed = Object.fromEntries(
        Object.entries(parent).map(([name, value]) => [name === key ? typo : name, value]),
      );
      for (const name of Object.keys(parent)) delete parent[name];
      Object.assign(parent, renamed);
      yield { path: at, key, typo, text: stringify(copy) };
    }
  }
}

function misspellings(
  key: string,
  inserted: (key: string, at: number) => string,
  isTried: (key: string, at: number) => boolean,
): Set<string> {
  const found = new Set<string>();
  for (let i = 0; i <= key.length; i++) {
    if (!isTried(key, i)) continue;
    const [before, after] = [key.slice(0, i), key.slice(i)];
    if (after.length > 1) found.add(before + after[1]! + after[0]! + after.slice(2));
    if (after !== '') found.add(before + after.slice(1));
    for (const letter of inserted(key, i)) {
      found.add(before + letter + after);
      if (after !== '') found.add(before + letter + after.slice(1));
    }
  }
  found.delete(key);
  return found;
}

function keysOf(value: unknown, at: KeyPath = []): KeyPath[] {
  if (Array.isArray(value)) return value.flatMap((item, i) => keysOf(item, [...at, i]));
  if (!isTable(value)) return [];
  return Object.entries(value).flatMap(([key, item]) => [[...at, key], ...keysOf(item, [...at, key])]);
}

/** Fault of the answer to a misspelt key; null = none, or the misspelling is a key itself. */
export function typoMissed({ path: at, key, typo, text }: Typo, dialect: Dialect, name: string): string | null {
  const read = parseRunConfig(text, { file: name });
  const table = at.slice(0, -1);
  const written = [...table, typo];
  if (isFree(dialect, table)) {
    if (read.ok) return null;
    return read.problems.every(({ suggestion = '' }) => suggestion.includes(`"${key}"`))
      ? null
      : 'an error in a free table';
  }
  const readAs = read.readAs === null ? dialect : dialectNamed(read.readAs.dialect);
  const isKey = [dialect, readAs].some((each) => keysAt(schemaOf(each), table).includes(typo));
  if (isKey) return null;
  if (read.ok) return 'accepted';
  const said = read.problems.filter(({ path: where }) => where.endsWith(lastKey(written)));
  if (said.length === 0) return `not reported: ${describeProblems(read)}`;
  return said.some(({ suggestion = '' }) => suggestion.includes(`"${key}"`)) ? null : `said ${describeProblems(read)}`;
}

function lastKey(at: KeyPath): string {
  const key = String(at.at(-1));
  return /^[\w-]+$/.test(key) ? key : JSON.stringify(key);
}

function isFree(dialect: Dialect, table: KeyPath): boolean {
  return table.some((_, i) => schemaAt(schemaOf(dialect), table.slice(0, i + 1))?.type === 'record');
}

function describeProblems(read: ParsedRunConfig): string {
  return read.ok
    ? 'nothing'
    : read.problems.map(({ path: at, suggestion }) => `${at}: ${suggestion ?? '-'}`).join('; ');
}

/** Numbers in [0, 1) from a seed; Mulberry32. */
export function randomFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const values = [
  '0',
  '-1',
  '1',
  '7',
  '0.5',
  '1e-5',
  '1e308',
  'inf',
  'nan',
  'true',
  'false',
  '""',
  '"None"',
  '"x"',
  '"owner/name"',
  "'''a'''",
  '[]',
  '[1, 2]',
  '["a"]',
  '[{}]',
  '{}',
  '{ a = 1 }',
  '{ id = "x" }',
  '1979-05-27',
  '07:32:00',
  '9007199254740993',
  '"\\u0000"',
];
const headers = [
  'env',
  'eval',
  'eval.env',
  'sampling',
  'trainer',
  'trainer.args',
  'orchestrator',
  'orchestrator.env',
  'inference',
  'inference.args',
  'buffer',
  'ratchet',
  'ratchet.trainer',
  'lora',
  'model',
  'a.b.c',
  '__proto__',
  'constructor',
];

/** A file with a few things done to it that leave it mostly TOML. */
export function spoiled(text: string, random: () => number): string {
  const pick = <Item>(items: readonly Item[]): Item => items[Math.floor(random() * items.length)]!;
  const lines = text.split('\n');
  for (let edits = 1 + Math.floor(random() * 4); edits > 0; edits--) {
    const at = Math.floor(random() * lines.length);
    const line = lines[at]!;
    const kind = Math.floor(random() * 9);
    if (kind === 0) lines.splice(at, 1);
    else if (kind === 1) lines.splice(at, 0, pick(lines));
    else if (kind <= 4) lines[at] = line.replace(/=.*/, `= ${pick(values)}`);
    else if (kind === 5) lines.splice(at, 0, `${pick(['[', '[['])}${pick(headers)}]`);
    else if (kind === 6) lines.splice(at, 0, `${pick(headers)} = ${pick(values)}`);
    else if (kind === 7) lines[at] = line.replaceAll(/[[\]]/g, (bracket) => (random() < 0.5 ? bracket.repeat(2) : ''));
    else
      lines[at] =
        line.slice(0, Math.floor(random() * line.length)) +
        pick([...letters.split(''), '"', '=', '\n', '.', '[']) +
        line.slice(Math.floor(random() * line.length));
    if (lines.length === 0) lines.push('');
  }
  return lines.join('\n');
}

/** Files that are spoiled at random are read or refused; nothing is thrown. */
export function answerSpoiled(files: readonly RunFile[], count: number): void {
  const random = randomFrom(7);
  let accepted = 0;
  for (let i = 0; i < count; i++) {
    const text = spoiled(files[i % files.length]!.text, random);
    try {
      if (parseRunConfig(text, { file: 'spoiled.toml' }).ok) accepted++;
    } catch (cause) {
      throw new Error(`${(cause as Error).message}\n${text}`, { cause });
    }
  }
  assert.ok(accepted > count / 10 && accepted < (count * 9) / 10, `${accepted} were accepted`);
}
