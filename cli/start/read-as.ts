import type { ReadAs } from '../../config/toml/problems.ts';

const differencesShown = 6;

/** Lines on the dialect of another system's file, and other meanings of its keys; empty for our own dialect. */
export function readAsLines(file: string, { dialect, title, alternatives }: ReadAs): string[] {
  if (dialect === 'ratchet') return [];
  const others = alternatives.map((alternative) => `  as ${alternativeLine(alternative)}`);
  return [`${file} is read as ${title}${others.length === 0 ? '' : '; its keys could be others’ as well:'}`, ...others];
}

/** Meaning of a file in another dialect: the first differences. */
export function alternativeLine({ dialect, title, differs }: ReadAs['alternatives'][number]): string {
  const more = differs.length > differencesShown ? `, and ${differs.length - differencesShown} more` : '';
  return `${title} (--dialect ${dialect}): ${differs.slice(0, differencesShown).join(', ')}${more}`;
}
