import { groupsOfChunk, type LeasedChunk } from '../../core/rl/sampling/chunks.ts';
import { encodeRanges } from '../../core/rl/ledger.ts';
import type { GroupLease } from '../../core/rl/rollout/rollout.ts';
import { damaged, isRecord } from '../../store/objects.ts';

/** Converters from older versions. Each gets the whole stored object. */

type Loose = Readonly<Record<string, unknown>>;

/**
 * Number of chunks in a round with one environment, and the most with several, until 25 November 2026. Names of stored rollouts depend on
 * them.
 */
const [chunksOfOne, chunksOfAll] = [2, 8];

/**
 * Adds chunks to leases of version 1, divided as at the time they were generated. Stored rollouts are named by that division, so they are
 * found again. Leases from 25 to 28 November 2026 list their chunks but carry no version.
 */
export function chunksOf24November(stored: Loose, where: string): unknown {
  if (stored['chunks'] !== undefined) return stored;
  const { leases } = stored;
  if (!Array.isArray(leases) || !leases.every(isLease))
    throw damaged(where, 'expected leases of groups, which it does not have');
  return { ...stored, chunks: dividedInTwo(leases) };
}

function dividedInTwo(leases: readonly GroupLease[]): LeasedChunk[] {
  const names = [...new Set(leases.map(({ environment }) => environment))].toSorted();
  const most = Math.max(1, Math.min(chunksOfOne, Math.floor(chunksOfAll / names.length)));
  return names.flatMap((environment) => {
    const size = leases.filter((lease) => lease.environment === environment).length;
    const count = Math.min(names.length === 1 ? chunksOfOne : most, size);
    return Array.from({ length: count }, (_, index): LeasedChunk => {
      const chunk = { index, count, ...(names.length === 1 ? {} : { environment }) };
      const own = groupsOfChunk(leases, chunk);
      return { ...chunk, groups: own.length, ordinals: encodeRanges(own.map(({ ordinal }) => ordinal)) };
    });
  });
}

function isLease(value: unknown): value is GroupLease {
  return isRecord(value) && Number.isSafeInteger(value['ordinal']) && typeof value['environment'] === 'string';
}

/** Plans of version 1 also name the rows of their batch, which the packed batch names too. */
export function planOf24November(stored: Loose): unknown {
  const { batch: _, ...plan } = stored;
  return { numIterations: 1, microBatchSize: null, ...plan };
}

/** Converts kept groups, which had `tokens` in runs whose batch size counts tokens. They have `sizes` now. */
export function keptInSizes(of: unknown): unknown {
  if (!isRecord(of)) return of;
  const { surplus, kept } = of;
  return {
    ...of,
    ...(Array.isArray(surplus) ? { surplus: surplus.map(withSizes) } : {}),
    ...(isRecord(kept) ? { kept: withSizes(kept) } : {}),
  };
}

function withSizes(kept: unknown): unknown {
  if (!isRecord(kept) || kept['tokens'] === undefined) return kept;
  const { tokens, ...rest } = kept;
  return { sizes: tokens, ...rest };
}

/** Version 1 has only the whole text of each turn. Version 2 may separate answer and reasoning. */
export function turnsOfTextAlone(stored: Loose): unknown {
  return stored;
}

/** Version 2 cannot mark a turn as a refusal. Version 3 can. */
export function turnsWithoutRefusals(stored: Loose): unknown {
  return stored;
}

/** `later` had every field without effect by its path; those of GPUs and of vLLM are kept. */
export function requestedOfLater({ later, ...spec }: Loose): unknown {
  if (!isRecord(later)) return spec;
  const requested = {
    trainerGpus: later['trainer.gpus'] ?? null,
    inferenceGpus: later['inference.gpus'] ?? null,
    vllm: later['inference.vllm'] ?? {},
    torch: {},
  };
  return {
    ...spec,
    ...(Object.values(requested).every((value) => value === null || isEmpty(value)) ? {} : { requested }),
  };
}

function isEmpty(value: unknown): boolean {
  return isRecord(value) && Object.keys(value).length === 0;
}
