import { encodeRanges } from '../../core/rl/ledger.ts';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import type { LeasedChunk } from '../../core/rl/sampling/chunks.ts';
import { stateWithin } from '../../core/rl/sampling/curriculum.ts';
import type { GroupLease, ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { LeasedGroups } from '../../core/rl/run-state.ts';
import { layout, type roundOf } from '../layout.ts';
import { leasesIn } from '../rollouts/leases.ts';
import { type LineagePlace, requireCommit, storeOf } from '../run-access.ts';

/** What was leased, but for the version: the fork has its own copy of that. */
export type RoundLeases = Omit<LeasedGroups, 'policy'>;

/**
 * The leases of a round, from all scored groups of its step, between the commits around it: the leases themselves are
 * removed with a later checkpoint. null = nothing of the round is there.
 */
export async function leasesOfRound(
  from: LineagePlace,
  place: Pick<NonNullable<ReturnType<typeof roundOf>>, 'step' | 'first' | 'last'>,
  {
    ofStep,
    isMixed,
  }: { readonly ofStep: readonly ScoredGroup[]; /** Of a run with several environments. */ readonly isMixed: boolean },
): Promise<RoundLeases | null> {
  const { step, first, last } = place;
  const groups = ofStep.filter(({ ordinal }) => ordinal >= first && ordinal <= last);
  if (groups.length < last - first + 1) {
    const store = storeOf(from);
    const key = layout.leases(from.lineage, place);
    const bytes = await store.read(key);
    if (bytes !== null) return leasesIn(bytes, store.uri + key);
    if (groups.length === 0) return null;
    throw refusal(from.name, `of the groups ${first}–${last} of step ${step} only ${groups.length} are stored. Fork another step.`); // prettier-ignore
  }
  const [{ commit: begun }, { commit: made }] = await Promise.all([requireCommit(from, step - 1), requireCommit(from, step)]); // prettier-ignore
  const { prompts } = made.state;
  const leases = groups.map(leaseOf);
  const unknown = leases.find(({ environment, prompt }) => prompt !== undefined && prompts?.[environment]?.ref.sha256 !== prompt); // prettier-ignore
  if (unknown)
    throw refusal(from.name, `group ${unknown.ordinal} of step ${step} had another system prompt than the commit of its step. Fork another step.`); // prettier-ignore
  const ofEach = new Set(leases.map(({ environment }) => environment));
  const chunks = [...ofEach].toSorted().map((environment): LeasedChunk => {
    const own = leases.filter((lease) => lease.environment === environment);
    const ordinals = encodeRanges(own.map(({ ordinal }) => ordinal));
    return { index: 0, count: 1, ...(isMixed ? { environment } : {}), groups: own.length, ordinals };
  });
  const curriculum = stateWithin([begun.state.curriculum, made.state.curriculum], ofStep, last);
  return { leases, chunks, ...present({ prompts }), curriculum };
}

function leaseOf({ ordinal, environment, exampleId, epoch, policyStep, prompt, temperature }: ScoredGroup): GroupLease {
  return { ordinal, environment, exampleId, epoch, policyStep, ...present({ prompt, temperature }) };
}

export function refusal(run: string, why: string): RatchetError {
  return new RatchetError('ConfigInvalid', `Fork of ${run} with other rewards: ${why}`);
}
