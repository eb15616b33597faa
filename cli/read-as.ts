import type { ReadAs } from '../core/spec/parse-run-config.ts';

const differencesShown = 6;

/** What a file of another system was read as, and what else its keys could mean; nothing for our own words. */
export function readAsLines(file: string, { dialect, title, alternatives }: ReadAs): string[] {
  if (dialect === 'ratchet') return [];
  const others = alternatives.map(({ dialect: name, title: other, differs }) => {
    const more = differs.length > differencesShown ? `, and ${differs.length - differencesShown} more` : '';
    return `  as ${other} (--dialect ${name}): ${differs.slice(0, differencesShown).join(', ')}${more}`;
  });
  return [`${file} is read as ${title}${others.length === 0 ? '' : '; its keys could be others’ as well:'}`, ...others];
}
