/** Compares what a run file means here with what it means at home, field by field. For tests, and for `bench fidelity`. */
import type { FindEnvironment } from '../../../config/find-environment.ts';
import { parseRunConfig, type Problem } from '../../../config/parse-run-config.ts';
import type { ParsedRunConfig } from '../../../config/run-config.ts';
import { Home, type HomeFile } from './files.ts';
import { meanings as primeRlMeanings } from './prime-rl.ts';
import { asRun, sftMeanings, sftWithoutMeaning } from './prime-rl-sft.ts';
import { hostedMeanings, vfRlMeanings } from './verifiers.ts';
import { hostedWithoutMeaning, vfRlWithoutMeaning, type WithoutMeaning, withoutMeaning } from './without-meaning.ts';

export type Loaded = ParsedRunConfig & { readonly ok: true };

/** One thing that a run file says, at home and here in the same words. */
export interface Meaning {
  readonly what: string;
  /** Paths of home's resolved values; a `*` at the end stands for all below. */
  readonly reads: readonly string[];
  /** Words of which a line has one that says that it differs. */
  readonly says: readonly string[];
  readonly home: (home: Home) => unknown;
  readonly here: (run: Loaded, home: Home) => unknown;
}

export interface Difference {
  readonly what: string;
  readonly home: unknown;
  readonly here: unknown;
  /** The line that names it; null = it is silent. */
  readonly line: string | null;
}

export type Comparison =
  | { readonly kind: 'refused'; readonly problems: readonly Problem[] }
  | { readonly kind: 'loaded'; readonly run: Loaded; readonly differences: readonly Difference[] };

/** Environments are stood in for by their names. */
export const anyEnvironment: FindEnvironment = (id) => ({ ok: true, id: id.replace(/^.*\//, '').replace(/@.*$/, '') });

export function compared({ path, text, entry, home: values }: HomeFile, dialect?: string): Comparison {
  const options = { file: path, findEnvironment: anyEnvironment };
  const run = parseRunConfig(text, dialect === undefined ? options : { ...options, dialect });
  if (!run.ok) return { kind: 'refused', problems: run.problems };
  // A file that home itself refuses has no values to compare.
  if (values === undefined) return { kind: 'loaded', run, differences: [] };
  const home = entry === 'sft' ? asRun(values) : new Home(values);
  const lines = run.warnings;
  const { meanings, isKnown } = systems.get(entry ?? '') ?? primeRl;
  const differences = meanings.flatMap((meaning): Difference[] => {
    const [there, here] = [meaning.home(home), meaning.here(run, home)];
    if (isSame(there, here)) return [];
    const line = lines.find((one) => meaning.says.some((word) => one.includes(word))) ?? null;
    return [{ what: meaning.what, home: there, here, line }];
  });
  const unread = home.paths().filter((one) => !isKnown(one));
  const unknown = unread.map((one) => ({ what: one, home: 'a field that no meaning reads', here: null, line: null }));
  return { kind: 'loaded', run, differences: [...differences, ...unknown] };
}

/** Whether a refusal is said in one line: where it is, what was expected, what came. */
export function isOneLine({ path, expected, received, suggestion = '' }: Problem): boolean {
  return expected !== '' && ![path, expected, received, suggestion].some((text) => text.includes('\n'));
}

/** Numbers may differ by what adding up in another order makes. */
function isSame(one: unknown, other: unknown): boolean {
  if (typeof one === 'number' && typeof other === 'number') {
    return one === other || Math.abs(one - other) <= 1e-9 * Math.max(Math.abs(one), Math.abs(other));
  }
  if (Array.isArray(one) && Array.isArray(other)) {
    return one.length === other.length && one.every((item, i) => isSame(item, other[i]));
  }
  if (typeof one === 'object' && typeof other === 'object' && one !== null && other !== null) {
    const keys = new Set([...Object.keys(one), ...Object.keys(other)]);
    return [...keys].every((key) =>
      isSame((one as Record<string, unknown>)[key], (other as Record<string, unknown>)[key]),
    );
  }
  return (one ?? null) === (other ?? null);
}

interface System {
  readonly meanings: readonly Meaning[];
  /** Whether a path is read, or has no meaning for what is trained. */
  readonly isKnown: (path: string) => boolean;
}

function system(meanings: readonly Meaning[], without: readonly WithoutMeaning[]): System {
  const paths = [...meanings.flatMap(({ reads }) => reads), ...without.flatMap(({ fields }) => fields)];
  const known = paths.map((path) => ({
    path,
    pattern: new RegExp(`^${path.replaceAll(/[.[\]]/g, String.raw`\$&`).replaceAll('*', '.*')}(?:$|[.[])`),
  }));
  // Two thousand files have the same few hundred paths.
  const answers = new Map<string, boolean>();
  return {
    meanings,
    isKnown: (path) => {
      const isKnown =
        answers.get(path) ??
        known.some(
          ({ path: one, pattern }) => pattern.test(path) || one.startsWith(`${path}.`) || one.startsWith(`${path}[]`),
        );
      answers.set(path, isKnown);
      return isKnown;
    },
  };
}

const primeRl = system(primeRlMeanings, withoutMeaning);
/** Keyed by the command that took the file; all others are prime-rl's. */
const systems = new Map([
  ['vf-rl', system(vfRlMeanings, vfRlWithoutMeaning)],
  ['hosted', system(hostedMeanings, hostedWithoutMeaning)],
  ['sft', system(sftMeanings, [...withoutMeaning, ...sftWithoutMeaning])],
]);
