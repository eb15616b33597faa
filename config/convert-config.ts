import { stringify } from 'smol-toml';
import type { Dialect, Fate } from './dialects/dialect.ts';
import { placed, placesOf } from './dialects/places.ts';
import { ratchet } from './dialects/ratchet-dialect.ts';
import { type ParsedRunConfig, parseRunConfig } from './parse-run-config.ts';
import type { TomlFile } from './parse-toml.ts';
import { formatPath, type KeyPath } from './positions.ts';
import type { Problem } from './problems.ts';
import type { RunSpec } from './run-spec.ts';
import { RatchetConfig, settingsByPath } from './settings/index.ts';
import { settingsWithPlaces } from './settings/relations/bounds.ts';
import { copied, differencesOf, isTable, setAt, type Table, valueAt } from './tables.ts';

/** Writes a run file in the words of another dialect, where that loses nothing: what was written is read again and compared. */

export interface ConvertOptions {
  /** Of the file; missing = the one its keys show. */
  readonly from?: string;
  readonly to: Dialect;
}

export type Converted =
  | {
      readonly ok: true;
      readonly toml: string;
      readonly from: string;
      readonly warnings: readonly string[];
    }
  /** `lost`: what the other dialect cannot say; `problems`: what it would refuse. */
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

/** The file in the words of `to`, or what would be lost. A file that is not right is returned as it was read. */
export function convertConfig(written: TomlFile, { from, to }: ConvertOptions): Converted | Refused {
  const { file } = written;
  const source = parseRunConfig(written, { file, ...(from === undefined ? {} : { dialect: from }) });
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
  /** What the other dialect adds by its defaults where the file says nothing: lengths, and fields that nothing honours yet. */
  readonly brought: string[];
  /** How many values are others. */
  readonly differing: number;
}

/** What other dialects always have, and we only where it is written: it is told, and no loss. */
const defaultsOfOthers: readonly {
  readonly name: string;
  /** null = it is not set. */
  readonly of: (spec: RunSpec) => number | null;
  readonly without: (spec: RunSpec) => RunSpec;
}[] = [
  { name: 'seq_len', of: ({ seqLen }) => seqLen, without: (spec) => ({ ...spec, seqLen: null }) },
  {
    name: 'max_prompt_len',
    of: ({ maxPromptTokens }) => maxPromptTokens,
    without: (spec) => ({ ...spec, maxPromptTokens: null }),
  },
  {
    // It takes time for memory, and trains the same.
    name: 'trainer.ac_freq',
    of: ({ trainer }) => (trainer.kind === 'onnx' ? (trainer.acFreq ?? null) : null),
    without: (spec) => {
      if (spec.trainer.kind !== 'onnx') return spec;
      const { acFreq: _, ...trainer } = spec.trainer;
      return { ...spec, trainer };
    },
  },
];

/** What is read when the table is read as the other dialect, beside what is meant. */
function compared(table: Table, { file, to, spec, resumeStep }: Goal): Comparison {
  const again = parseRunConfig(stringify(table), { file, dialect: to });
  if (!again.ok) {
    const problems = again.problems.map(({ path, expected, received }) => `${path}: ${received}; expected ${expected}`);
    return { lost: [], problems, brought: [], differing: 0 };
  }
  const { spec: found, resumeStep: step } = again;
  const added = defaultsOfOthers.filter(({ of }) => of(spec) === null && of(found) !== null);
  const brought = [
    ...added.map(({ name, of }) => [name, of(found)] as const),
    ...Object.entries(found.later).filter(([path]) => spec.later[path] === undefined),
  ];
  const rest = added.reduce((those, { without }) => without(those), found);
  const later = Object.fromEntries(Object.entries(found.later).filter(([path]) => spec.later[path] !== undefined));
  const differences = [...differencesOf({ ...spec, resumeStep }, { ...rest, later, resumeStep: step })];
  return {
    lost: differences.map(differenceLine),
    problems: [],
    brought: brought.map(([path, value]) => `${path} = ${shown(value)} comes with ${to.title}: its default`),
    differing: differences.reduce((sum, { here, there }) => sum + valuesIn(here) + valuesIn(there), 0),
  };
}

/** Where two specs differ, in words near to ours: `lora.r: 32 here, 16 there`. What is still to come stands under its path in the file. */
function differenceLine({
  path,
  here,
  there,
}: {
  readonly path: KeyPath;
  readonly here: unknown;
  readonly there: unknown;
}) {
  const words = formatPath(path[0] === 'later' ? path.slice(1) : path)
    .replaceAll('"', '')
    .replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return `${words}: ${shown(here)} here, ${shown(there)} there`;
}

/** A table that is missing is further off than one with a wrong value. */
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

/** With a key that shows whose words these are: the same keys are Hosted Training's as well, with other defaults. */
function inOwnWords(ours: Table): Table {
  const table = copied(ours);
  if (ratchet.proof?.(table) === undefined) setAt(table, ['trainer', 'kind'], 'onnx');
  return table;
}

interface Candidate {
  readonly path: KeyPath;
  readonly value: unknown;
  /** Whether the dialect's table says that this field becomes ours as it is; else the same value is only tried. */
  readonly isSure: boolean;
}

/** Rounds over what is tried: one value may only count beside another. */
const roundsMax = 3;

/**
 * The dialect's table in reverse. A field that becomes ours as it is takes our value; of the others those are tried that have the same
 * name, and kept where the file does not mean less of what it should. At last what makes no difference and was not written goes.
 */
function inOtherWords(ours: Table, goal: Goal): Table {
  const whole = withBothNames(RatchetConfig.parse(ours));
  const candidates = candidatesOf(goal.to, whole);
  let table: Table = {};
  for (const { path, value } of candidates.filter(({ isSure }) => isSure)) setAt(table, path, value);
  let best = distance(table, goal);
  const guesses = candidates.filter(({ isSure }) => !isSure);
  // A table as a whole before its fields: one value of it may only count beside another.
  const attempts = [...byTable(guesses), ...guesses.map((guess) => [guess])];
  for (let round = 0; round < roundsMax && best > 0; round++) {
    const before = best;
    for (const attempt of attempts) {
      const tried = copied(table);
      for (const { path, value } of attempt) if (valueAt(tried, path) === undefined) setAt(tried, path, value);
      const reached = distance(tried, goal);
      // Also what only shifts a difference: another value may then mend it.
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

/** 0 = means the same, else how many values differ; a file that is refused is further off than any that is read. */
function distance(table: Table, goal: Goal): number {
  const { differing, problems } = compared(table, goal);
  return differing + problems.length * 1000;
}

/** Every field of the dialect that could hold one of our values. */
function candidatesOf({ fields }: Dialect, whole: Table): (Candidate & { readonly ours: KeyPath })[] {
  const [sure, guessed] = [new Set<string>(), new Set<string>()];
  return Object.entries(fields).flatMap(([path, { fate }]) => {
    const own = ownPath(path, fate);
    // Of several places for one setting the first is the usual one.
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

/** Which of our fields a field may be in reverse: the one it becomes, that its table says first it becomes, or that is called the same. */
function ownPath(path: string, fate: Fate): string | undefined {
  if (fate.kind === 'becomes') return fate.path;
  if (fate.kind !== 'together') return undefined;
  const [, named = path] = /^`([^`]+)`(?:$|;)/.exec(fate.what) ?? [];
  return settingsByPath.has(named) ? named : path;
}

/** With each setting in all of its places. */
function withBothNames(table: Table): Table {
  const whole = copied(table);
  for (const places of settingsWithPlaces.map((paths) => paths.map((path) => path.split('.')))) {
    const value = places.map((path) => valueAt(whole, path)).find((found) => found !== undefined);
    if (value === undefined) continue;
    for (const path of places) if (valueAt(whole, path) === undefined) setAt(whole, path, value);
  }
  return whole;
}

/** Takes a field out, and the tables that are empty then. */
function takeOut(table: Table, path: KeyPath): void {
  const parent = valueAt(table, path.slice(0, -1));
  if (!isTable(parent)) return;
  delete parent[String(path.at(-1))];
  if (path.length > 1 && Object.keys(parent).length === 0) takeOut(table, path.slice(0, -1));
}
