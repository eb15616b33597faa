import { RatchetError } from '../core/errors.ts';
import { decodeRanges } from '../core/rl/ledger.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import { decodeJson } from '../backends/store/objects.ts';
import type { LineageRecord } from './run-access.ts';

/**
 * The two records that a run is read from, which nothing above them vouches for: a file that somebody edited is named here,
 * rather than failing wherever a part of it is missed first. `key` = where it lies, for people.
 */
export function commitIn(bytes: Uint8Array, key: string): StepCommit {
  const commit = recordIn(bytes, key);
  const { step, lineage, run, policy, outcomes, metrics, state, committedAt } = commit;
  requireShape(key, {
    'schemaVersion 1': commit['schemaVersion'] === 1,
    'a step': Number.isSafeInteger(step) && Number(step) >= 0,
    'a run and a lineage': typeof run === 'string' && typeof lineage === 'string',
    'a policy with its file': isRecord(policy) && typeof policy['digest'] === 'string' && isRecord(policy['file']),
    'outcomes whose groups are ranges such as "1-4,7"': isRecord(outcomes) && areOutcomes(outcomes),
    metrics: isRecord(metrics),
    'a state': isRecord(state) && isRecord(state['policy']) && isRecord(state['curriculum']),
    'a time of commit': typeof committedAt === 'string' && !Number.isNaN(Date.parse(committedAt)),
  });
  return commit as unknown as StepCommit;
}

/** `origins/lineage_N.json` */
export function lineageRecordIn(bytes: Uint8Array, key: string): LineageRecord {
  const record = recordIn(bytes, key);
  const { origin } = record;
  requireShape(key, {
    'schemaVersion 1': record['schemaVersion'] === 1,
    'a lineage': typeof record['lineage'] === 'string',
    'an origin with run, lineage, step and sha256':
      isRecord(origin) &&
      [origin['run'], origin['lineage'], origin['sha256']].every((part) => typeof part === 'string') &&
      Number.isSafeInteger(origin['step']),
  });
  return record as unknown as LineageRecord;
}

function recordIn(bytes: Uint8Array, key: string): Record<string, unknown> {
  const value = decodeJson<unknown>(bytes, key);
  if (isRecord(value)) return value;
  throw damaged(key, 'a JSON object');
}

function requireShape(key: string, parts: Readonly<Record<string, boolean>>): void {
  for (const [expected, isThere] of Object.entries(parts)) if (!isThere) throw damaged(key, expected);
}

function areOutcomes({ issued, ended, pending }: Record<string, unknown>): boolean {
  return isRecord(ended) && [issued, pending, ...Object.values(ended)].every(areRanges);
}

function areRanges(text: unknown): boolean {
  try {
    return typeof text === 'string' && decodeRanges(text).length >= 0;
  } catch {
    return false; // not a range, or of more groups than fit into memory
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function damaged(key: string, expected: string): RatchetError {
  return new RatchetError(
    'CheckpointDamaged',
    `${key}: expected ${expected}, which it does not have; it was changed, or written by a newer Ratchet. Restore the file from a copy, or start over with --fresh.`,
  );
}
