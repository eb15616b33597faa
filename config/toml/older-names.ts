/** Matches a dialect's warning about a rename: the older name, the current one, and since when. */
const olderName = /^(.+?) is an older name: \S+ calls it (.+) since [^ ]+\. It is read as that\.$/;
/** Matches a dialect's warning about an older spelling. */
const olderWay = /^(.+?) (?:in the source itself )?(?:is|are) an older way: .*It is read as that\.$/;

/**
 * Joins warnings about mere renames in one line behind the others: a file of an older version has many of them, and
 * they would hide what matters.
 */
export function withOlderNamesTogether(warnings: readonly string[]): string[] {
  const names: string[] = [];
  const others: string[] = [];
  for (const warning of warnings) {
    const [, was, is] = olderName.exec(warning) ?? [];
    const [, way] = olderWay.exec(warning) ?? [];
    if (was !== undefined) names.push(`${was} (now ${is})`);
    else if (way === undefined) others.push(warning);
    else names.push(way);
  }
  if (names.length < 2) return [...warnings];
  return [...others, `${names.length} older names, each read as what it is called now: ${names.join(', ')}`];
}
