import { stringify } from 'smol-toml';
import { present } from '../core/present.ts';
import type { Dialect, Fate } from './dialects/dialect.ts';
import { placed, placesOf } from './dialects/places.ts';
import { ratchet } from './dialects/ratchet-dialect.ts';
import { parseRunConfig } from './parse-run-config.ts';
import type { ParsedRunConfig } from './run-config.ts';
import type { TomlFile } from './toml/parse-toml.ts';
import { formatPath, type KeyPath } from './toml/positions.ts';
import type { Problem } from './toml/problems.ts';
import type { JsonValue, RunSpec } from './run-spec.ts';
import { RatchetConfig, settingsByPath } from './settings/index.ts';
import { nameInFile } from './setting-names.ts';
import { withRequested } from './settings/requested.ts';
import { insteadOfTorch } from './settings/torch.ts';
import { settingsWithPlaces } from './settings/relations/bounds.ts';
import { copied, differencesOf, isTable, setAt, type Table, valueAt } from './toml/tables.ts';

/** Translates a run file into another dialect without loss: the result is read again and compared. */

export interface ConvertOptions {
  /** Dialect of the file; missing = detected. */
  readonly from?: string;
  readonly to: Dialect;
}

type Converted =
  | {
      readonly ok: true;
      readonly toml: string;
      readonly from: string;
      readonly warnings: readonly string[];
    }
  /** `lost`: settings that the other dialect lacks; `problems`: values that it would refuse. */
  | {
      readonly ok: false;
      readonly from: string;
      readonly lost: readonly string[];
      readonly problems: readonly string[];
    };

interface Refused {
  readonly ok: null;
  readonly problems: readonly Problem[];
}

/** The file in the dialect `to`, or the losses. A file with errors is returned as it was read. */
export function convertConfig(written: TomlFile, { from, to }: ConvertOptions): Converted | Refused {
  const { file } = written;
  const source = parseRunConfig(written, { file, ...present({ dialect: from }) });
  if (!source.ok) return { ok: null, problems: source.problems };
  const title = source.readAs.title;
  const goal: Goal = { file, to, spec: source.spec, resumeStep: source.resumeStep };
  const table = tableFor(written, source, goal);
  const { lost, problems, brought } = compared(table, goal);
  const ownAlone = to !== ratchet && source.ours['builtin'] === true ? ['builtin: true here, unknown there'] : [];
  if (lost.length + problems.length + ownAlone.length > 0) {
    return { ok: false, from: title, lost: [...ownAlone, ...lost], problems };
  }
  const toml = `# ${file} (${title}) in the words of ${to.title}.\n\n${stringify(table)}`;
  return { ok: true, toml, from: title, warnings: [...source.warnings, ...brought] };
}

function tableFor({ table: written }: TomlFile, source: ParsedRunConfig & { readonly ok: true }, goal: Goal): Table {
  if (source.readAs.dialect === goal.to.name && written) return written;
  return goal.to === ratchet ? inOwnWords(source.ours) : inOtherWords(source.ours, goal);
}

interface Goal {
  readonly file: string;
  readonly to: Dialect;
  readonly spec: RunSpec;
  readonly resumeStep: number | null;
}

interface Comparison {
  readonly lost: string[];
  readonly problems: string[];
  /** Defaults of the other dialect that the file does not mention: lengths, GPUs. */
  readonly brought: string[];
  readonly differing: number;
}

/** Settings that other dialects always have and ours only if written: reported, but no loss. */
const defaultsOfOthers: readonly {
  readonly name: string;
  /** null = unset. */
  readonly of: (spec: RunSpec) => JsonValue;
  readonly without: (spec: RunSpec) => RunSpec;
}[] = [
  { name: 'seq_len', of: ({ seqLen }) => seqLen, without: (spec) => ({ ...spec, seqLen: null }) },
  {
    name: 'max_prompt_len',
    of: ({ maxPromptTokens }) => maxPromptTokens,
    without: (spec) => ({ ...spec, maxPromptTokens: null }),
  },
  ...(['trainerGpus', 'inferenceGpus'] as const).map((key) => ({
    name: nameInFile(`requested.${key}`),
    of: ({ requested }: RunSpec) => requested?.[key] ?? null,
    without: ({ requested, ...spec }: RunSpec): RunSpec => ({
      ...spec,
      ...(requested && withRequested({ ...requested, [key]: null })),
    }),
  })),
  ...Object.keys(insteadOfTorch).map((key) => ({
    name: nameInFile(`requested.torch.${key}`),
    of: ({ requested }: RunSpec) => requested?.torch[key] ?? null,
    without: ({ requested, ...spec }: RunSpec): RunSpec => {
      const { [key]: _, ...torch } = requested?.torch ?? {};
      return { ...spec, ...(requested && withRequested({ ...requested, torch })) };
    },
  })),
  {
    // Trades time for memory, with the same result.
    name: 'trainer.ac_freq',
    of: ({ trainer }) => ('acFreq' in trainer ? (trainer.acFreq ?? null) : null),
    without: (spec) => {
      if (!('acFreq' in spec.trainer)) return spec;
      const { acFreq: _, ...trainer } = spec.trainer;
      return { ...spec, trainer };
    },
  },
];

/** Compares the table, read in the other dialect, with the intended spec. */
function compared(table: Table, { file, to, spec, resumeStep }: Goal): Comparison {
  const again = parseRunConfig(stringify(table), { file, dialect: to });
  if (!again.ok) {
    const problems = again.problems.map(({ path, expected, received }) => `${path}: ${received}; expected ${expected}`);
    return { lost: [], problems, brought: [], differing: 0 };
  }
  const { spec: found, resumeStep: step } = again;
  const added = defaultsOfOthers.filter(({ of }) => of(spec) === null && of(found) !== null);
  const rest = added.reduce((those, { without }) => without(those), found);
  const differences = [...differencesOf({ ...spec, resumeStep }, { ...rest, resumeStep: step })];
  return {
    lost: differences.map(differenceLine),
    problems: [],
    brought: added.map(({ name, of }) => `${name} = ${shown(of(found))} comes with ${to.title}: its default`),
    differing: differences.reduce((sum, { here, there }) => sum + valuesIn(here) + valuesIn(there), 0),
  };
}

/** One difference between two specs, by our names in a run file: `lora.r: 32 here, 16 there`. */
function differenceLine({
  path,
  here,
  there,
}: {
  readonly path: KeyPath;
  readonly here: unknown;
  readonly there: unknown;
}) {
  return `${nameInFile(path.join('.'))}: ${shown(here)} here, ${shown(there)} there`;
}

/** A missing table is further away than one with a wrong value. */
function valuesIn(value: unknown): number {
  if (value === null || value === undefined) return 0;
  return typeof value === 'object'
    ? 1 + Object.values(value).reduce((sum: number, item) => sum + valuesIn(item), 0)
    : 1;
}

function shown(value: unknown): string {
  if (value === undefined || value === null) return 'nothing';
  if (typeof value === 'number' && Math.abs(value) === Number.MAX_VALUE) return 'no bound';
  return JSON.stringify(value);
}

/** Adds a key that identifies our dialect: the other keys are Hosted Training's as well, with other defaults. */
function inOwnWords(ours: Table): Table {
  const table = copied(ours);
  if (ratchet.proof?.(table) === undefined) setAt(table, ['trainer', 'kind'], 'onnx');
  return table;
}

interface Candidate {
  readonly path: KeyPath;
  readonly value: unknown;
  /** Whether the dialect's table guarantees that this field becomes ours unchanged; else the value is only tried. */
  readonly isSure: boolean;
}

/** Rounds of trials: one value may only matter beside another. */
const roundsMax = 3;

/**
 * Applies the dialect's table in reverse. A field that becomes ours unchanged takes our value. Other fields of equal
 * names are tried, and kept if the file comes no further from its meaning. Finally, added fields without effect are
 * removed.
 */
function inOtherWords(ours: Table, goal: Goal): Table {
  const whole = withBothNames(RatchetConfig.parse(ours));
  const candidates = candidatesOf(goal.to, whole);
  let table: Table = {};
  for (const { path, value } of candidates.filter(({ isSure }) => isSure)) setAt(table, path, value);
  let best = distance(table, goal);
  const guesses = candidates.filter(({ isSure }) => !isSure);
  // Tries a table as a whole before its fields: one of its values may only matter beside another.
  const attempts = [...byTable(guesses), ...guesses.map((guess) => [guess])];
  for (let round = 0; round < roundsMax && best > 0; round++) {
    const before = best;
    for (const attempt of attempts) {
      const tried = copied(table);
      for (const { path, value } of attempt) if (valueAt(tried, path) === undefined) setAt(tried, path, value);
      const reached = distance(tried, goal);
      // Also accepts changes that only shift a difference: another value may then fix it.
      if (reached <= best) [table, best] = [tried, reached];
    }
    if (best === before) break;
  }
  for (const { path, ours: own, isSure } of candidates) {
    if (isSure && valueAt(ours, own) !== undefined) continue;
    const without = copied(table);
    takeOut(without, path);
    const reached = distance(without, goal);
    if (reached <= best) [table, best] = [without, reached];
  }
  return table;
}

function byTable(candidates: readonly Candidate[]): Candidate[][] {
  const tables = new Map<string, Candidate[]>();
  for (const candidate of candidates) {
    const table = formatPath(candidate.path.slice(0, -1));
    tables.set(table, [...(tables.get(table) ?? []), candidate]);
  }
  return [...tables.values()].filter(({ length }) => length > 1);
}

/** 0 = equal meaning, else the number of differing values; a refused file is further away than any readable one. */
function distance(table: Table, goal: Goal): number {
  const { differing, problems } = compared(table, goal);
  return differing + problems.length * 1000;
}

/** Every field of the dialect that might hold one of our values. */
function candidatesOf({ fields }: Dialect, whole: Table): (Candidate & { readonly ours: KeyPath })[] {
  const [sure, guessed] = [new Set<string>(), new Set<string>()];
  return Object.entries(fields).flatMap(([path, { fate }]) => {
    const own = ownPath(path, fate);
    // Only the first, default place of a setting is used.
    if (own === undefined || listsIn(own) !== listsIn(path) || guessed.has(own)) return [];
    const isSure = fate.kind === 'becomes' && fate.convert === undefined && !sure.has(own);
    if (isSure) sure.add(own);
    else if (fate.kind === 'together') guessed.add(own);
    return placesOf(own, whole).map((at) => ({ path: placed(path, at), value: valueAt(whole, at), isSure, ours: at }));
  });
}

function listsIn(path: string): number {
  return path.split('[]').length;
}

/**
 * Our fields that a field may correspond to: the one it becomes, the first one in its table entry, or the one of equal
 * name.
 */
function ownPath(path: string, fate: Fate): string | undefined {
  if (fate.kind === 'becomes') return fate.path;
  if (fate.kind !== 'together') return undefined;
  const [, named = path] = /^`([^`]+)`(?:$|;)/.exec(fate.what) ?? [];
  return settingsByPath.has(named) ? named : path;
}

/** Writes each setting in all of its places. */
function withBothNames(table: Table): Table {
  const whole = copied(table);
  for (const places of settingsWithPlaces.map((paths) => paths.map((path) => path.split('.')))) {
    const value = places.map((path) => valueAt(whole, path)).find((found) => found !== undefined);
    if (value === undefined) continue;
    for (const path of places) if (valueAt(whole, path) === undefined) setAt(whole, path, value);
  }
  return whole;
}

/** Removes a field, and the tables that become empty. */
function takeOut(table: Table, path: KeyPath): void {
  const parent = valueAt(table, path.slice(0, -1));
  if (!isTable(parent)) return;
  delete parent[String(path.at(-1))];
  if (path.length > 1 && Object.keys(parent).length === 0) takeOut(table, path.slice(0, -1));
}
