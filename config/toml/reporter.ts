import { present } from '../../core/present.ts';
import type { AppliedOverrides } from './overrides.ts';
import { formatPath, type KeyPath, pathKey, type Position, type Positions } from './positions.ts';
import type { Place, Problem } from './problems.ts';
import { isSecretUrl, looksSecret } from './secrets.ts';
import { isTable } from './tables.ts';

type Said = Pick<Problem, 'expected' | 'received' | 'suggestion'>;

/** Collects problems and knows the position of each value. One problem per path: the first wins. */
export class Reporter {
  readonly problems: Problem[] = [];
  readonly #file: string;
  readonly #positions: Positions;
  readonly #applied: AppliedOverrides;
  readonly #paths = new Set<string>();
  #writtenAt: (path: KeyPath) => KeyPath = (path) => path;

  constructor(file: string, positions: Positions, applied: AppliedOverrides) {
    this.#file = file;
    this.#positions = positions;
    this.#applied = applied;
    for (const { path, key, value, reason } of applied.misplaced) {
      this.fromCommandLine(path, reason, `--${key.replace(/^-+/, '')} ${quoted(value)}`);
    }
  }

  /** From now on, paths are translated to the file's words by this function. */
  speakOf(writtenAt: (path: KeyPath) => KeyPath): void {
    this.#writtenAt = writtenAt;
  }

  add({ path, ...said }: Said & { readonly path: KeyPath }): void {
    const written = this.#writtenAt(path);
    this.#add(written, said, written);
  }

  /** Builds a problem without recording it: an obstacle to running that is no error in the file. */
  placed({ path, ...said }: Said & { readonly path: KeyPath }): Problem {
    const written = this.#writtenAt(path);
    return { ...this.#place(written, written, this.#nearestPosition(written)), ...said };
  }

  #add(path: KeyPath, said: Said, written: KeyPath): void {
    this.#push(path, { ...this.#place(path, written, this.#nearestPosition(written)), ...said });
  }

  #place(path: KeyPath, written: KeyPath, position: Position | undefined): Place {
    const isTyped = this.#applied.isOverridden(written);
    return {
      file: isTyped ? 'command line' : (position?.file ?? this.#file),
      line: isTyped ? null : (position?.line ?? null),
      column: isTyped ? null : (position?.column ?? null),
      path: formatPath(path),
    };
  }

  /** A problem of several fields: named after the first, reported at the place of a written one. */
  addRelation(given: readonly KeyPath[], said: Said): void {
    const paths = given.map(this.#writtenAt);
    // An error caused by a typed value is placed there, since the file alone was right.
    const isTyped = (path: KeyPath) => this.#applied.isOverridden(path);
    const isThere = (path: KeyPath) => this.#positions.at(path) !== undefined;
    this.#add(paths[0]!, said, paths.find(isTyped) ?? paths.find(isThere) ?? paths[0]!);
  }

  fromCommandLine(path: KeyPath, expected: string, received: string, suggestion?: string): void {
    const where = { file: 'command line', line: null, column: null, path: formatPath(path) };
    this.#push(path, { ...where, expected, received, ...present({ suggestion }) });
  }

  /** Place of a field in the file's words, under the name that was used; without a line if none was. */
  placeOf(given: readonly KeyPath[]): Place {
    const paths = given.map(this.#writtenAt);
    const isThere = (path: KeyPath) => this.#applied.isOverridden(path) || this.#positions.at(path) !== undefined;
    const written = paths.find(isThere) ?? paths[0]!;
    return this.#place(written, written, this.#positions.at(written));
  }

  /** Whether a value or a table around it has a problem. */
  has(given: KeyPath): boolean {
    const path = this.#writtenAt(given);
    return path.some((_, i) => this.#paths.has(pathKey(path.slice(0, i + 1))));
  }

  /** Whether a value directly in a table has a problem. */
  hasWithin(table: KeyPath): boolean {
    const start = table.length === 0 ? '' : `${formatPath(table)}.`;
    return this.problems.some(({ path }) => path.startsWith(start) && !path.slice(start.length).includes('.'));
  }

  /** In reading order, one file after the other; problems without a line come first. */
  inOrder(): Problem[] {
    const files = this.#positions.files ?? [];
    const place = ({ file, line }: Problem): number => (line === null ? -1 : files.indexOf(file));
    return this.problems.toSorted(
      (a, b) => place(a) - place(b) || (a.line ?? 0) - (b.line ?? 0) || (a.column ?? 0) - (b.column ?? 0),
    );
  }

  #push(path: KeyPath, problem: Problem): void {
    if (this.#paths.has(pathKey(path))) return;
    this.#paths.add(pathKey(path));
    this.problems.push(problem);
  }

  /** A missing value is reported at the nearest table with a line. */
  #nearestPosition(path: KeyPath) {
    for (let length = path.length; length > 0; length--) {
      const position = this.#positions.at(path.slice(0, length));
      if (position !== undefined) return position;
    }
    return undefined;
  }
}

export function describe(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null) return 'null';
  if (typeof value === 'string') return quoted(value);
  if (value instanceof Date) return 'a date';
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (isTable(value)) return 'a table';
  return typeof value === 'number' || typeof value === 'boolean' ? String(value) : 'something else';
}

/** A quoted text, shortened if long, and never a secret. */
export function quoted(text: string): string {
  if (looksSecret(text) || (/^https?:/i.test(text) && isSecretUrl(text)))
    return 'a text that looks like a secret (not repeated here)';
  return JSON.stringify(text.length > 80 ? `${text.slice(0, 77)}...` : text);
}
