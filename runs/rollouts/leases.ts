import type { LeasedGroups, ObjectRef, RunHandle } from '../../core/rl/run-state.ts';
import { isRecord, type Shape } from '../../store/objects.ts';
import { isVersion } from '../forms/record-shapes.ts';
import { readJson } from '../run-access.ts';
import { decodeStored } from '../forms/stored-forms.ts';

const leasesShape: Shape = ({ policy, leases, chunks, curriculum }) => ({
  'the version that its groups start from': isVersion(policy),
  'leases of groups': Array.isArray(leases) && leases.every(isLease),
  'how they are divided': Array.isArray(chunks) && chunks.every(isChunk),
  'what comes after its groups': isRecord(curriculum) && Number.isSafeInteger(curriculum['nextOrdinal']),
});

function isLease(lease: unknown): boolean {
  if (!isRecord(lease)) return false;
  const { ordinal, environment, exampleId } = lease;
  return Number.isSafeInteger(ordinal) && typeof environment === 'string' && Number.isSafeInteger(exampleId);
}

function isChunk(chunk: unknown): boolean {
  return isRecord(chunk) && ['index', 'count', 'groups'].every((name) => Number.isSafeInteger(chunk[name]));
}

/** `rollouts/…/leases.json`, which is written before the round generates anything. */
export function leasesIn(bytes: Uint8Array, key: string): LeasedGroups {
  return decodeStored<LeasedGroups>(bytes, key, leasesShape);
}

export function readLeases(run: RunHandle, ref: ObjectRef): Promise<LeasedGroups> {
  return readJson<LeasedGroups>(run, ref, leasesShape);
}
