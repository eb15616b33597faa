import { RatchetError } from '../../core/errors.ts';
import { type CardSubset, matches, subsetsOfCard } from './dataset-card.ts';

/**
 * Finds the files with a dataset's rows in its repository, by its card or else by their names, as the `datasets`
 * library does (datasets/data_files.py): a split is a word of a file's or a folder's name, a subset a folder. Scripts
 * are never run.
 */

export interface DatasetPart {
  /** Its folder in the repository; null if there is only one subset. */
  readonly subset: string | null;
  readonly split: string;
}

/** Formats that only the library reads: without them a split would be incomplete. */
const isData = (name: string): boolean => /\.(?:csv|tsv|json|txt|xml|arrow|zip|gz|zst|xz|bz2|tar)$/.test(name);
const isRows = (name: string): boolean => /\.(?:parquet|jsonl)$/.test(name);
/** In order of search. */
const splitWords: readonly (readonly [split: string, words: readonly string[]])[] = [
  ['train', ['train', 'training']],
  ['validation', ['validation', 'valid', 'dev', 'val']],
  ['test', ['test', 'testing', 'eval', 'evaluation']],
];

/**
 * The files with the rows of a part, in order. Throws ModelUnsupported with the available parts. `card`: its README.md.
 */
export function filesOfPart(
  id: string,
  names: readonly string[],
  { subset, split }: DatasetPart,
  card: string | null = null,
): string[] {
  const files = names.filter((name) => isRows(name) && isPlain(name)).toSorted();
  if (files.length === 0) {
    const has = names.slice(0, 5).join(', ') || 'nothing';
    throw refused(
      `${id} has no .parquet and no .jsonl files; it has ${has}. Write its rows into a file of yours: data = "rows.jsonl".`,
    );
  }
  const described = subsetsOfCard(id, card ?? '');
  if (described.length > 0) return filesOnCard(id, { names, files, described }, { subset, split });
  const subsets = [...new Set(files.flatMap((name) => subsetOf(name) ?? []))];
  const ofSubset = files.filter((name) => subsetOf(name) === (subset ?? (subsets.length === 1 ? subsets[0] : null)));
  if (subset === null && subsets.length > 1 && ofSubset.length === 0)
    throw refused(`${id} has several subsets: expected sft.subset = one of ${subsets.join(', ')}.`);
  if (ofSubset.length === 0) {
    const has = subsets.length === 0 ? 'one alone, without a name' : subsets.join(', ');
    throw refused(`${id} has no subset ${JSON.stringify(subset)}; it has ${has}.`);
  }
  return filesOfSplit(id, ofSubset, split);
}

function filesOfSplit(id: string, ofSubset: readonly string[], split: string): string[] {
  const splits = new Set(ofSubset.map(splitOf));
  const wanted = splits.size === 1 && splits.has(null) ? null : split;
  if (wanted === null && split !== 'train')
    throw refused(`${id} has no split ${JSON.stringify(split)}: its files name none, which is "train".`);
  const found = ofSubset.filter((name) => splitOf(name) === wanted);
  if (found.length > 0) return found;
  const has = [...splits].filter((one) => one !== null).join(', ');
  throw refused(`${id} has no split ${JSON.stringify(split)}; it has ${has}.`);
}

/** Without a name: the only subset, or the one called default. */
function filesOnCard(
  id: string,
  of: {
    readonly names: readonly string[];
    readonly files: readonly string[];
    readonly described: readonly CardSubset[];
  },
  { subset, split }: DatasetPart,
): string[] {
  const { names, files, described } = of;
  const all = described.map(({ name }) => name).join(', ');
  const found = described.find(({ name, isDefault }) => (subset === null ? isDefault : name === subset));
  if (found === undefined && subset === null)
    throw refused(`${id} has several subsets: expected sft.subset = one of ${all}.`);
  if (found === undefined) throw refused(`${id} has no subset ${JSON.stringify(subset)}; it has ${all}.`);
  const { folder, splits } = found;
  const inFolder = (name: string): string | null =>
    folder === null ? name : name.startsWith(`${folder}/`) ? name.slice(folder.length + 1) : null;
  if (splits === null) {
    const own = files.filter((name) => inFolder(name) !== null);
    return filesOfSplit(id, own, split);
  }
  const asked = splits.filter((one) => one.split === split);
  if (asked.length === 0) {
    const has = splits.map((one) => one.split).join(', ');
    throw refused(`${id} has no split ${JSON.stringify(split)}; it has ${has}.`);
  }
  const patterns = asked.flatMap((one) => one.patterns);
  const meant = (name: string): boolean =>
    patterns.some((pattern) => matches(pattern, inFolder(name) ?? '') || (folder !== null && matches(pattern, name)));
  const wanted = files.filter(meant);
  const others = names.filter((name) => meant(name) && isData(name) && !files.includes(name));
  if (wanted.length > 0 && others.length === 0) return wanted;
  const has = others.slice(0, 5).join(', ') || `no file that is called ${patterns.join(' or ')}`;
  throw refused(
    `${id} says in its card that split ${JSON.stringify(split)} is ${patterns.join(', ')}: expected .parquet or .jsonl files, found ${has}.`,
  );
}

/** Files of a part that are missing by the others' names: `train-00001-of-00003.parquet`. */
export function missingShards(files: readonly string[]): string[] {
  return files.flatMap((name) => {
    const [, before, , count = '', after] = /^(.*-)(\d{5})-of-(\d{5})(\.\w+)$/.exec(name) ?? [];
    const all = Array.from(
      { length: Number(count) },
      (_, i) => `${before}${String(i).padStart(5, '0')}-of-${count}${after}`,
    );
    return all.filter((one) => !files.includes(one));
  });
}

/** Rejects names that leave their target folder. */
function isPlain(name: string): boolean {
  return name.split('/').every((part) => /^[\w\-+= ][\w.\-+= ]*$/.test(part));
}

/** The first folder, unless it only holds data or is the split's. */
function subsetOf(name: string): string | null {
  const [first, ...rest] = name.split('/');
  if (rest.length === 0 || first === 'data' || splitIn(first!) !== null) return null;
  return first!;
}

function splitOf(name: string): string | null {
  const parts = name.split('/').toReversed();
  return parts.map(splitIn).find((split) => split !== null) ?? null;
}

/** The split from one of the library's words, or from the name before a shard's number: `train_sft-00000-of-00001`. */
function splitIn(part: string): string | null {
  const [, shard] = /^(\w[\w.]*)-\d{5}-of-\d{5}(?:-\w+)?\.\w+$/.exec(part) ?? [];
  if (shard !== undefined) return shard;
  const words = part.toLowerCase().split(/[^a-z]+/);
  return splitWords.find(([, all]) => all.some((word) => words.includes(word)))?.[0] ?? null;
}

function refused(message: string): RatchetError {
  return new RatchetError('ModelUnsupported', message);
}
