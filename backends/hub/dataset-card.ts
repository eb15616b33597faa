import { parse } from 'yaml';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';

/**
 * The file patterns in a dataset's card (README.md): `configs` of the YAML before its text, as the `datasets` library
 * reads it (datasets/utils/metadata.py, `MetadataConfigs`; data_files.py, `sanitize_patterns`).
 */

const Patterns = z.union([z.string(), z.array(z.string())]).transform((given) => [given].flat());
const Files = z.union([
  Patterns.transform((paths) => [{ split: 'train', path: paths }]),
  z.array(z.looseObject({ split: z.string(), path: Patterns })).min(1),
  z
    .record(z.string(), Patterns)
    .transform((splits) => Object.entries(splits).map(([split, path]) => ({ split, path }))),
]);
const Config = z.looseObject({
  config_name: z.coerce.string().default('default'),
  data_files: Files.optional(),
  data_dir: z.string().optional(),
  default: z.boolean().optional(),
});

export interface CardSubset {
  readonly name: string;
  readonly isDefault: boolean;
  /** Folder of its files; null = the repository. */
  readonly folder: string | null;
  /** Patterns of the files of each split; null = derived from their names. */
  readonly splits: readonly { readonly split: string; readonly patterns: readonly string[] }[] | null;
}

/** Empty if the card names no files. Throws ModelUnsupported for an unreadable one. */
export function subsetsOfCard(id: string, card: string): CardSubset[] {
  const [, written] = /^\uFEFF?---\r?\n([\s\S]*?)\r?\n---[ \t]*(?:\r?\n|$)/.exec(card) ?? [];
  if (written === undefined) return [];
  const configs = tableOf(id, written)['configs'];
  if (configs === undefined || configs === null) return [];
  const parsed = z.array(Config).safeParse(configs);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw unreadable(id, `${z.core.toDotPath(['configs', ...issue!.path])} is none that it knows`);
  }
  return parsed.data.map(({ config_name: name, data_files: files, data_dir: folder, default: isDefault = false }) => ({
    name,
    isDefault: isDefault || name === 'default' || parsed.data.length === 1,
    folder: folder === undefined ? null : plainPath(folder),
    splits: files?.map(({ split, path }) => ({ split, patterns: path.map(plainPath) })) ?? null,
  }));
}

function tableOf(id: string, written: string): Readonly<Record<string, unknown>> {
  try {
    const value: unknown = parse(written, { maxAliasCount: 0 });
    return typeof value === 'object' && value !== null ? { ...value } : {};
  } catch (cause) {
    throw unreadable(id, `its YAML cannot be read (${(cause as Error).message.split('\n')[0]})`, cause);
  }
}

function plainPath(written: string): string {
  return written.replace(/^(?:\.?\/)+/, '').replace(/\/+$/, '');
}

/**
 * Whether a pattern of the card matches a file: `*` and `?` within a folder, `**` through folders, `[…]` one of these
 * characters.
 */
export function matches(pattern: string, name: string): boolean {
  const source = pattern.replaceAll(/\*\*\/?|\*|\?|\[!?[^\]/]+\]|[^*?[]+|\[/g, (piece) => {
    if (piece === '**/') return '(?:.*/)?';
    if (piece === '**') return '.*';
    if (piece === '*') return '[^/]*';
    if (piece === '?') return '[^/]';
    if (piece.length > 1 && piece.startsWith('[')) return piece.replace(/^\[!/, '[^').replaceAll('\\', '\\\\');
    return piece.replaceAll(/[\\^$.|+(){}[\]]/g, String.raw`\$&`);
  });
  return new RegExp(`^${source}$`).test(name);
}

function unreadable(id: string, what: string, cause?: unknown): RatchetError {
  const message = `The card of ${id} (README.md) says which files are its parts, and ${what}: expected configs with a config_name and data_files. Write the rows into a file of yours: data = "rows.jsonl".`;
  return new RatchetError('ModelUnsupported', message, { cause });
}
