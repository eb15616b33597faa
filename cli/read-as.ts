import type { ReadAs } from '../config/parse-run-config.ts';

const differencesShown = 6;

/** What a file of another system was read as, and what else its keys could mean; nothing for our own words. */
export function readAsLines(file: string, { dialect, title, alternatives }: ReadAs): string[] {
  if (dialect === 'ratchet') return [];
  const others = alternatives.map((alternative) => `  as ${alternativeLine(alternative)}`);
  return [`${file} is read as ${title}${others.length === 0 ? '' : '; its keys could be others’ as well:'}`, ...others];
}

/** What a file would mean in another dialect, the first of what differs. */
export function alternativeLine({ dialect, title, differs }: ReadAs['alternatives'][number]): string {
  const more = differs.length > differencesShown ? `, and ${differs.length - differencesShown} more` : '';
  return `${title} (--dialect ${dialect}): ${differs.slice(0, differencesShown).join(', ')}${more}`;
}
