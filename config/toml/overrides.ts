import { parse } from 'smol-toml';
import { pathKey } from './positions.ts';
import type { KeyPath } from './positions.ts';
import { copied, isTable, merged, setOwn, type Table } from './tables.ts';

/**
 * Settings from the command line, merged over the file: `--sampling.temperature 0.7`, `--max-steps 5`, `--env.0.id x`;
 * `--ckpt` and `--no-wandb` turn a table on and off.
 */

/** Tables within tables: no setting is as deep as half of it. */
const depthMax = 20;

/** The type of a setting, as far as it decides how a typed value is parsed. */
export type Wanted = 'text' | 'table' | 'list' | 'any';

export interface AppliedOverrides {
  readonly table: Table;
  /** Whether the command line set a path, or a table around it. */
  isOverridden(path: KeyPath): boolean;
  /** Overrides without a target: within a value that is not a table, or at a missing list item. */
  readonly misplaced: readonly {
    readonly path: KeyPath;
    readonly key: string;
    readonly value: string;
    readonly reason: string;
  }[];
}

/**
 * Applies overrides to a copy of a table. Dashes and underscores are equal; a position in a list may be omitted if the
 * list has one item. Values are TOML (`0.7`, `true`, `[1, 2]`). Anything else, and any value of a text setting, is
 * taken literally. A JSON object is merged into the existing table; an inline table of TOML replaces it. Given to a table,
 * `true` means an empty table unless there is one, and `false` removes the table. `0,1` as the value of a list means `[0, 1]`.
 */
export function applyOverrides(
  table: Table,
  overrides: Readonly<Record<string, string>>,
  wants: (path: KeyPath) => Wanted,
): AppliedOverrides {
  const result = copied(table);
  const overridden = new Set<string>();
  const misplaced: { path: KeyPath; key: string; value: string; reason: string }[] = [];
  for (const [key, value] of Object.entries(overrides)) {
    const written = key.replace(/^-+/, '').split('.');
    if (written.length > depthMax) {
      misplaced.push({ path: [], key: shortened(key), value, reason: `a setting at most ${depthMax} tables deep` });
      continue;
    }
    const outcome = setWritten(result, written, (path, there) => {
      const wanted = wants(path);
      if (wanted === 'text') return plainText(value);
      if (value === 'true' && wanted === 'table') return isTable(there) ? there : {};
      if (value === 'false' && wanted === 'table') return undefined;
      if (wanted === 'list') return listOf(value);
      const object = jsonObject(value);
      return object && isTable(there) ? merged(there, object) : (object ?? parseValue(value));
    });
    if (outcome.reason === undefined) overridden.add(pathKey(outcome.path));
    else misplaced.push({ path: outcome.path, key, value, reason: outcome.reason });
  }
  const isOverridden = (path: KeyPath) => path.some((_, i) => overridden.has(pathKey(path.slice(0, i + 1))));
  return { table: result, isOverridden, misplaced };
}

function setWritten(
  root: Table,
  written: readonly string[],
  valueFor: (path: KeyPath, there: unknown) => unknown,
): { readonly path: KeyPath; readonly reason?: string } {
  const path: (string | number)[] = [];
  let here: unknown = root;
  for (let i = 0; i < written.length; i++) {
    const segment = written[i]!;
    const isLast = i === written.length - 1;
    if (Array.isArray(here)) {
      const names = /^\d+$/.test(segment) ? Number(segment) : undefined;
      if (names === undefined && here.length !== 1)
        return { path, reason: `a position from 0 to ${here.length - 1} after it` };
      if (names !== undefined && names >= here.length) return { path, reason: `a list with more than ${names} items` };
      path.push(names ?? 0);
      if (names === undefined) i -= 1;
      else if (isLast) here[names] = valueFor(path, here[names]);
      here = here[path.at(-1) as number];
      continue;
    }
    if (!isTable(here)) return { path, reason: 'a table, because something in it is to be set' };
    const key = matchingKey(here, segment);
    path.push(key);
    if (isLast) setOrTakeOut(here, key, valueFor(path, here[key]));
    else if (!Object.hasOwn(here, key)) setOwn(here, key, {});
    here = here[key];
  }
  return { path };
}

function setOrTakeOut(table: Table, key: string, value: unknown): void {
  if (value === undefined) delete table[key];
  else setOwn(table, key, value);
}

function jsonObject(value: string): Table | undefined {
  if (!value.trimStart().startsWith('{')) return undefined;
  try {
    const parsed: unknown = JSON.parse(value);
    return isTable(parsed) ? parsed : undefined;
  } catch {
    return undefined; // An inline table of TOML.
  }
}

/** The file's spelling of the key if it has it, else with underscores. */
function matchingKey(table: Table, segment: string): string {
  const canonical = segment.replaceAll('-', '_');
  return Object.hasOwn(table, segment) && !Object.hasOwn(table, canonical) ? segment : canonical;
}

function parseValue(value: string): unknown {
  if (/[\n\r]/.test(value)) return value;
  try {
    const parsed = parse(`value = ${value}`);
    return Object.keys(parsed).length === 1 && !(parsed['value'] instanceof Date) ? parsed['value'] : value;
  } catch {
    return value; // Not TOML, so it is text: `--model preset:reverse-text-0.2m` needs no quotes.
  }
}

/** `[0, 1]`, and `0,1` as on other command lines. Another system's null is no list, and stays. */
function listOf(value: string): unknown {
  const whole = parseValue(value);
  if (typeof whole === 'number') return [whole];
  if (typeof whole !== 'string' || /^[[{]/.test(whole) || /^(?:none|null)?$/i.test(whole)) return whole;
  return whole.split(',').map((item) => parseValue(item.trim()));
}

/** A text setting reads `--name 7` as "7"; quotes that the shell left on are removed. */
function plainText(value: string): unknown {
  const parsed = parseValue(value);
  return typeof parsed === 'string' ? parsed : value;
}

/** The part of a key that identifies it. */
function shortened(key: string): string {
  return key.length <= 60 ? key : `${key.slice(0, 60)}…`;
}
