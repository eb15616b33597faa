import type { RolloutNotes } from '../../types.ts';

/** Kind of the notes; the first attempt needs none, so their keys count from 2. */
const kind = 'attempt';

/**
 * Numbers of stored turns with which each attempt after the first began, this one included: the turns between two of
 * them are of one attempt. Written down before this one samples anything. Throws `RolloutTakenOver`.
 */
export async function beginningsOfAttempts(
  notes: RolloutNotes | undefined,
  earlier: readonly unknown[],
): Promise<readonly number[]> {
  if (notes === undefined || earlier.length === 0) return [];
  const known = await notes.all(kind);
  try {
    await notes.put(kind, String(known.size + 2), earlier.length);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // it has too many notes: its turns count as those of the one before
  }
  return [...known.values(), earlier.length].map(Number);
}
