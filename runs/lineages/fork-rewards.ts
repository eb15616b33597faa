import { isDeepStrictEqual } from 'node:util';
import type { RescoredGroup, RescoredRollout, StoredRescore, StoredRescoredChunk } from '../../core/eval/rescore.ts';
import { present } from '../../core/present.ts';
import { countGroups } from '../../core/rl/learning/selection.ts';
import { chunkName, groupsOfChunk } from '../../core/rl/sampling/chunks.ts';
import { isRewardedOutcome, type Judgement, type Rollout, type ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import { withoutScore } from '../../core/rl/rollout/without-score.ts';
import type { PolicyVersion } from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { decodeStored, decodeStoredRows, encodeStored, encodeStoredRows } from '../forms/stored-forms.ts';
import { firstLineage } from '../../core/names.ts';
import { layout, roundOf } from '../layout.ts';
import { besideScored } from '../rescores/scored-keys.ts';
import { readScores, rescoreKeys } from '../rescores/rescore-store.ts';
import { leasesOfRound, refusal, type RoundLeases } from './leases-of-scored.ts';
import { scoredShape } from '../rollouts/scored-groups.ts';
import { type LineagePlace, requireCommit, storeOf } from '../run-access.ts';

/** Settings that decide which groups the step after a fork has, and how they were sampled. */
const boundToRollouts = [
  'rolloutsPerExample',
  'sampling',
  'seed',
  'batchSize',
  'maxAsyncLevel',
] as const satisfies readonly (keyof RunSpec)[];

interface RewardedRollouts {
  /** The run, in the lineage that goes on from the fork's step. */
  readonly from: LineagePlace;
  /** The fork's step: the rollouts were sampled for the next one, from this step's version. */
  readonly step: number;
  /** Id of the rescore. */
  readonly rewards: string;
  readonly before: RunSpec;
  readonly after: RunSpec;
}

/** Objects of the fork's folder, whose leases name its own copy of the version. */
export interface ForkedRollouts {
  objects(policy: PolicyVersion): readonly { readonly key: string; readonly bytes: Uint8Array }[];
}

/**
 * The stored rollouts of the step after a fork, with the rewards of a rescore: the fork adopts them as its own, finished
 * and judged, and samples nothing for that step. They were sampled from the very version that it begins with, so they are
 * on-policy. Rollouts of later steps are not: other rewards make another version, from which they were not sampled.
 * Throws `ConfigInvalid` where the rollouts are not what the fork's settings would sample, or have no rewards there.
 */
export async function rolloutsWithRewards(asked: RewardedRollouts): Promise<ForkedRollouts> {
  const { from, step, rewards, before } = asked;
  requireSameSampling(asked);
  await requireNothingLeft(from, step);
  const keys = await storeOf(from).list(layout.rounds(from.lineage, step + 1));
  const rounds = new Map(keys.flatMap((key) => roundOf(key) ?? []).map((round) => [round.first, round]));
  const places = [...rounds.values()].toSorted((a, b) => a.first - b.first);
  const scores = await scoresOf(from, rewards, { first: places[0]?.first ?? 0, last: places.at(-1)?.last ?? 0 });
  const leases: { readonly key: string; readonly of: RoundLeases }[] = [];
  const parts: { readonly key: string; readonly bytes: Uint8Array }[] = [];
  const groups = await groupsIn(from, keys);
  const ofStep = groups.map(({ group }) => group);
  const isMixed = before.environments.length > 1;
  for (const place of places) {
    const of = await leasesOfRound(from, place, { ofStep, isMixed });
    if (of === null) continue;
    leases.push({ key: layout.leases(firstLineage, place), of });
    const folder = layout.round(firstLineage, place.step, place.first, place.last);
    const own = groups.filter(({ key }) => roundOf(key)!.first === place.first);
    const rollouts = await rolloutsWithJudgements(from, own, scores);
    for (const chunk of of.chunks) {
      const found = groupsOfChunk(of.leases, chunk).flatMap(({ ordinal }) => rollouts.get(ordinal) ?? []);
      const part = `${folder}${chunkName(chunk)}/part_1.jsonl`;
      if (found.length > 0) parts.push({ key: part, bytes: encodeStoredRows(part, found) });
    }
  }
  if (leases.length === 0)
    throw refusal(before.name, `nothing was sampled for step ${step + 1}, or npx ratchet-rl gc removed it. Fork a step before the rescored ones: --step ${step - 1}.`); // prettier-ignore
  return {
    objects: (policy) => [
      ...parts,
      ...leases.map(({ key, of }) => ({ key, bytes: encodeStored(key, { ...of, policy }) })),
    ],
  };
}

interface StoredGroup {
  /** The scored object that has it. */
  readonly key: string;
  readonly group: ScoredGroup;
}

/** The scored groups in these objects, in their order. */
async function groupsIn(from: LineagePlace, keys: readonly string[]): Promise<readonly StoredGroup[]> {
  const store = storeOf(from);
  const found: StoredGroup[] = [];
  for (const key of layout.scoredIn(keys)) {
    const groups = decodeStoredRows<ScoredGroup>((await store.read(key))!, store.uri + key, scoredShape);
    found.push(...groups.map((group) => ({ key, group })));
  }
  return found.toSorted((a, b) => a.group.ordinal - b.group.ordinal);
}

/** The rollouts of groups, by group, each with its judgement. */
async function rolloutsWithJudgements(
  from: LineagePlace,
  groups: readonly StoredGroup[],
  scores: ReadonlyMap<number, RescoredGroup>,
): Promise<ReadonlyMap<number, readonly Rollout[]>> {
  const rollouts = new Map<number, readonly Rollout[]>();
  for (const { key, group } of groups) {
    const rescored = scores.get(group.ordinal);
    if (rescored === undefined)
      throw refusal(from.name, `group ${group.ordinal} of step ${roundOf(key)!.step} is not among what was rescored. Rescore that step: npx ratchet-rl rescore ${from.name}`); // prettier-ignore
    const { records } = await besideScored(from, key, group.environment);
    const found = group.rollouts.map((scored) => {
      const record = records.find((one) => one.group === group.ordinal && one.index === scored.index)?.record;
      const rollout = withoutScore({ ...scored, ...present({ record }) });
      const score = rescored.rollouts.find(({ index }) => index === scored.index)!;
      return isRewardedOutcome(rollout.outcome) ? { ...rollout, judged: judgementOf(score) } : rollout;
    });
    rollouts.set(group.ordinal, found);
  }
  return rollouts;
}

/** Before what a run's settings made of it: the fork's own settle it anew. */
function judgementOf({
  reward,
  metrics,
  error,
  rewardBeforeCut,
  turnRewards,
  raised,
  traces,
}: RescoredRollout): Judgement {
  if (reward === null) return { error: error ?? 'It has no reward.' };
  return { reward: rewardBeforeCut ?? reward, metrics, ...present({ turnRewards, raised, traces }) };
}

/** Of the groups of the lineage from `first` to `last`: a rescore may be of far more than fit into memory. */
async function scoresOf(
  from: LineagePlace,
  id: string,
  { first, last }: { readonly first: number; readonly last: number },
): Promise<ReadonlyMap<number, RescoredGroup>> {
  const store = storeOf(from);
  const place = { store: from.store, name: from.name, prefix: rescoreKeys.place('', id) };
  const key = rescoreKeys.rescore(place);
  const bytes = /^[0-9a-f]{8}$/.test(id) ? await store.read(key) : null;
  const ended = bytes && (await store.read(rescoreKeys.summary(place)));
  if (!bytes || !ended) {
    const known = new Set((await store.list(rescoreKeys.all())).map((one) => one.split('/')[1]!));
    const there = known.size === 0 ? 'it has none' : `those that it has: ${[...known].join(', ')}`;
    throw refusal(from.name, `it has no rescore ${id} that has ended (${there}). npx ratchet-rl rescore ${from.name} makes one, or continues it.`); // prettier-ignore
  }
  const { of } = decodeStored<StoredRescore>(bytes, key);
  const scores = new Map<number, RescoredGroup>();
  for (let chunk = 0; of.kind === 'run' && chunk < of.chunks.length; chunk++) {
    const own = rescoreKeys.chunk(place, chunk);
    const stored = decodeStored<StoredRescoredChunk>((await store.read(own))!, own);
    for (const ref of stored.scores)
      for (const score of await readScores(store, ref))
        if (score.lineage === from.lineage && score.group >= first && score.group <= last)
          scores.set(score.group, score);
  }
  return scores;
}

/** Refuses a step whose left-over groups would be trained beside the rescored ones, with the rewards that they have. */
async function requireNothingLeft(from: LineagePlace, step: number): Promise<void> {
  const { commit } = await requireCommit(from, step);
  const left = countGroups(commit.state.surplus);
  if (left > 0)
    throw refusal(from.name, `step ${step} left ${left} groups for step ${step + 1}, which would be trained with the rewards that they have. Fork a step that left none.`); // prettier-ignore
}

function requireSameSampling({ before, after }: RewardedRollouts): void {
  const plain = ({ environments }: RunSpec): unknown =>
    environments.map(({ id, name, args, weight }) => [id, name, args, weight]);
  const changed: string[] = boundToRollouts.filter((key) => !isDeepStrictEqual(before[key], after[key]));
  if (!isDeepStrictEqual(plain(before), plain(after))) changed.push('environments');
  // Above it the rollouts of a step begin from older versions, while the step before it trains.
  if (before.maxAsyncLevel > 0)
    throw refusal(before.name, `with max_async_level = ${before.maxAsyncLevel} the rollouts of a step were not sampled from the version before it. Fork it without --rewards: it samples, and the present rubric of its environments scores.`); // prettier-ignore
  if (changed.length === 0) return;
  throw refusal(before.name, `the rollouts were sampled with other settings than the fork's: ${changed.join(', ')}. Leave these as they are.`); // prettier-ignore
}
