/**
 * Which rows of a results file are rollouts of one example. verifiers 0.1.6 and later write `example_id`. verifiers 0.1.3 to 0.1.5 wrote `id`,
 * counted off as if the rollouts of an example stood together, while they were written round after round: with two rollouts of each, the first
 * two examples have `id` 0 (PrimeIntellect-ai/verifiers#459). verifiers 0.1.2 wrote neither.
 */

/** The fields of a row that identify its example. */
export interface RowExample {
  readonly says: 'example_id' | 'id' | 'nothing';
  /** '' if the row has none. */
  readonly id: string;
  /** The example's environment within a group; '' if the row has none. */
  readonly task: string;
  /** Digest of the prompt; null without one. */
  readonly prompt: string | null;
  /** Digest of the right answer; '' without one. */
  readonly answer: string;
}

/**
 * A name for the example of each row, in their order: equal names are rollouts of one example. Prompts that differ are never one example, unless
 * their `example_id` has no more rows than an example has rollouts: some environments vary the prompt from rollout to rollout.
 */
export function tellExamples(rows: readonly RowExample[], rolloutsPerExample: number | null): string[] {
  const sharedIds = idsOfSeveralPrompts(rows);
  const counted = countsById(rows);
  const byPrompt = new Map<string, string>();
  const isIdTrusted = !rows.some((row) => row.says === 'id' && sharedIds.has(keyOf(row)));
  return rows.map((row, i) => {
    if (row.says === 'example_id' || (row.says === 'id' && isIdTrusted)) {
      const key = keyOf(row);
      if (!sharedIds.has(key)) return row.id;
      if (rolloutsPerExample !== null && counted.get(key)! <= rolloutsPerExample) return row.id;
      return row.task === '' ? `${row.id}~${(row.prompt ?? '').slice(0, 4)}` : `${row.task}/${row.id}`;
    }
    if (row.prompt === null) return `?${i}`;
    // Counted as the prompts appear. Rollouts that were written round after round have the dataset's order then, as newer files have.
    const key = contentOf(row);
    const known = byPrompt.get(key) ?? String(byPrompt.size);
    byPrompt.set(key, known);
    return known;
  });
}

/** True if nothing in the row identifies its example. */
export function saysNoExample({ says, prompt }: RowExample): boolean {
  return says === 'nothing' && prompt === null;
}

function idsOfSeveralPrompts(rows: readonly RowExample[]): ReadonlySet<string> {
  const first = new Map<string, string>();
  const shared = new Set<string>();
  for (const row of rows) {
    if (row.says === 'nothing' || row.prompt === null) continue;
    const [key, content] = [keyOf(row), contentOf(row)];
    const before = first.get(key) ?? content;
    first.set(key, before);
    if (before !== content) shared.add(key);
  }
  return shared;
}

function countsById(rows: readonly RowExample[]): ReadonlyMap<string, number> {
  const counts = new Map<string, number>();
  for (const row of rows) counts.set(keyOf(row), (counts.get(keyOf(row)) ?? 0) + 1);
  return counts;
}

function keyOf({ says, id }: RowExample): string {
  return `${says} ${id}`;
}

/**
 * Rows without a sound id are also distinguished by the answer: verifiers wrote `[image]` for every picture of a
 * prompt.
 */
function contentOf({ says, prompt, answer, task }: RowExample): string {
  return JSON.stringify(says === 'example_id' ? [prompt, task] : [prompt, answer, task]);
}
