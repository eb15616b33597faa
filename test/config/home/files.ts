/** Run files of prime-rl and verifiers with what their own config code makes of them (test/data/prime-rl, test/data/verifiers-history). For tests, and for `bench fidelity`. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { gunzipSync } from 'node:zlib';
import { valueAt, type Table } from '../../../config/toml/tables.ts';

export interface HomeFile {
  readonly path: string;
  /** The first commit whose tree has this text, or that of the release. */
  readonly commit: string;
  readonly date: string;
  /** Missing = the text as of its first commit, read by that commit's code. */
  readonly release?: string;
  /** The command whose config code took it; null = none did. */
  readonly entry: string | null;
  /** All values, resolved. */
  readonly home?: Table;
  /** Why no command took it. */
  readonly refused?: string;
  readonly text: string;
}

export function homeFiles(): HomeFile[] {
  return linesOf('prime-rl/home.jsonl.gz');
}

/** Those of verifiers' repository: of its own trainer (`entry` "vf-rl"), of Hosted Training ("hosted") and of prime-rl ("rl"). */
export function verifiersFiles(): HomeFile[] {
  return linesOf('verifiers-history/home.jsonl.gz');
}

function linesOf(name: string): HomeFile[] {
  const file = fileURLToPath(new URL(`../../data/${name}`, import.meta.url));
  const lines = gunzipSync(readFileSync(file)).toString('utf8').trim().split('\n');
  return lines.map((line) => JSON.parse(line) as HomeFile);
}

/** Resolved values of home's, by path. */
export class Home {
  readonly #table: Table;

  constructor(table: Table) {
    this.#table = table;
  }

  /** The first of the paths that has a value; null where none has one. */
  at<T = unknown>(...paths: readonly string[]): T | null {
    for (const path of paths) {
      const value = valueAt(this.#table, path.split('.'));
      if (value !== undefined && value !== null) return value as T;
    }
    return null;
  }

  has(path: string): boolean {
    return valueAt(this.#table, path.split('.')) !== undefined;
  }

  list(...paths: readonly string[]): Home[] {
    return (this.at<Table[]>(...paths) ?? []).map((item) => new Home(item));
  }

  number(...paths: readonly string[]): number | null {
    const value = this.at(...paths);
    return value === null ? null : Number(value);
  }

  /** Every leaf's path, lists as `[]`. */
  paths(): string[] {
    return [...new Set(leavesOf(this.#table, ''))];
  }
}

function* leavesOf(value: unknown, path: string): Iterable<string> {
  if (Array.isArray(value) && value.some((item) => typeof item === 'object' && item !== null)) {
    for (const item of value) yield* leavesOf(item, `${path}[]`);
  } else if (typeof value === 'object' && value !== null && !Array.isArray(value) && Object.keys(value).length > 0) {
    for (const [key, item] of Object.entries(value)) yield* leavesOf(item, path === '' ? key : `${path}.${key}`);
  } else yield path;
}
