import type { z } from 'zod';
import type { KeyPath } from './positions.ts';
import { schemaAt } from './schema-reader.ts';

/** Command-line settings for a file in another dialect: in its words, or in ours if it has none for it. */

const ownTable = 'ratchet';

/** Adds `ratchet.` before paths that only our own words have: `--resume.step 50` works for any file. */
export function inOwnWords(
  overrides: Readonly<Record<string, string>>,
  { schema, own, isOwn }: { readonly schema: z.ZodType; readonly own: z.ZodType; readonly isOwn: boolean },
): Record<string, string> {
  const entries = Object.entries(overrides).map(([key, value]): [string, string] => {
    const plain = key.replace(/^-+/, '');
    if (isOwn) return [plain.startsWith(`${ownTable}.`) ? plain.slice(ownTable.length + 1) : key, value];
    return [!isKnown(schema, plain) && isKnown(own, plain) ? `${ownTable}.${plain}` : key, value];
  });
  return Object.fromEntries(entries);
}

/** The type at a path of a file, including its tables in our words. */
export function kindAt(schema: z.ZodType, own: z.ZodType, path: KeyPath): string | undefined {
  const found = schemaAt(schema, path);
  return (found ?? (path[0] === ownTable ? schemaAt(own, path.slice(1)) : undefined))?.type;
}

function isKnown(schema: z.ZodType, key: string): boolean {
  const path: (string | number)[] = [];
  for (const segment of key.split('.')) {
    const here = schemaAt(schema, path);
    if (here?.type === 'record') return true;
    if (here?.type === 'array') {
      const position = /^\d+$/.test(segment);
      path.push(position ? Number(segment) : 0);
      if (position) continue;
    }
    path.push(segment.replaceAll('-', '_'));
    if (schemaAt(schema, path) === undefined) return false;
  }
  return true;
}
