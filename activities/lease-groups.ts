import { layout } from '../core/layout.ts';
import { leaseGroups, type CurriculumState } from '../core/rl/curriculum.ts';
import type { LeasedGroups, PolicyVersion, RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import { decodeJson, encodeJson } from '../backends/store/objects.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { specOf, storeOf } from './run-access.ts';

export interface LeaseInput {
  readonly run: RunHandle;
  readonly step: number;
  readonly count: number;
  readonly curriculum: CurriculumState;
  readonly datasets: readonly { readonly name: string; readonly weight: number; readonly datasetLength: number }[];
  readonly policy: PolicyVersion;
}

/**
 * Opens the next groups. The same curriculum leases the same groups; if they were leased before (a resumed run), the
 * stored lease is taken, with the version those groups started from, so that what was generated for it is adopted.
 */
export async function leaseRound(input: LeaseInput): Promise<{ round: SamplingRound; curriculum: CurriculumState }> {
  const { run, step, count, curriculum, datasets, policy } = input;
  const { seed } = await specOf(run);
  const { state, leases } = leaseGroups(curriculum, { count, environments: datasets, seed, policyStep: policy.step });
  const first = curriculum.nextOrdinal;
  const last = state.nextOrdinal - 1;
  const key = `${layout.round(run.lineage, step, first, last)}leases.json`;
  const { bytes } = await storeOf(run).putIfAbsent(key, encodeJson({ policy, leases } satisfies LeasedGroups));
  const stored = decodeJson<LeasedGroups>(bytes, key);
  return {
    round: {
      step,
      first,
      last,
      policyStep: stored.policy.step,
      leases: { key, sha256: sha256(bytes), bytes: bytes.byteLength, count },
    },
    curriculum: state,
  };
}
