import { damaged, isUnreadable } from '../../store/objects.ts';
import type { Store } from '../../store/types.ts';
import type { RatchetError } from '../../core/errors.ts';
import type { Canary } from '../../core/rl/learning/canary.ts';
import { decodeStored } from '../forms/stored-forms.ts';

/**
 * The trainer's scores of a version; null without any. Damage is returned, not thrown: it costs a comparison, not the
 * run.
 */
export async function readCanary(store: Store, key: string): Promise<Canary | RatchetError | null> {
  try {
    const bytes = await store.read(key);
    return bytes && canaryIn(bytes, key);
  } catch (error) {
    if (isUnreadable(error)) return error;
    throw error;
  }
}

export function canaryIn(bytes: Uint8Array, key: string): Canary {
  const { tokenIds, positions, logprobs, digest } = decodeStored<Partial<Canary>>(bytes, key);
  const isWhole = [tokenIds, positions, logprobs].every((list) => Array.isArray(list) && list.every(Number.isFinite));
  if (!isWhole || positions!.length !== logprobs!.length || typeof digest !== 'string')
    throw damaged(key, 'expected token ids, positions, a logprob for each position, and the digest of the weights');
  return { tokenIds: tokenIds!, positions: positions!, logprobs: logprobs!, digest };
}
