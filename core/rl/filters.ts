import type { RolloutFilterSpec, RunSpec } from '../../config/run-spec.ts';
import type { RolloutFlag, ScoredGroup, ScoredRollout, Turn } from './rollout.ts';

/**
 * Filters of single rollouts, as prime-rl v0.5 to v0.7 had them (orchestrator/filters.py): of a slot's filters the first that
 * matches flags a rollout. One that is enforced takes its loss away; it counts in its group's baseline all the same. A
 * rollout flagged `pre` does not fill a batch either: a group of which nothing else is left is dropped.
 */

type Filters = RunSpec['rolloutFilters'];
const slots = ['pre', 'post'] as const;

/** What the filters that look at a rollout by itself say of it: one flag per slot at most. `vocabularySize`: for gibberish. */
export function ownFlags(
  rollout: Pick<ScoredRollout, 'turns' | 'reward'>,
  filters: Filters,
  vocabularySize: number,
): RolloutFlag[] {
  return slots.flatMap((slot) => {
    const found = filters[slot].find((filter) => matches(rollout, filter, vocabularySize));
    return found === undefined ? [] : [{ slot, name: found.type, isEnforced: found.enforce }];
  });
}

function matches(
  { turns, reward }: Pick<ScoredRollout, 'turns' | 'reward'>,
  filter: RolloutFilterSpec,
  vocabularySize: number,
): boolean {
  if (filter.type === 'low_reward') return reward !== null && reward < filter.minReward;
  if (filter.type === 'gibberish') return turns.some((turn) => isGibberish(turn, filter, vocabularySize));
  if (filter.type === 'repetition') return isRepetition(turns, filter);
  return false;
}

/** A rare token (its id is high) that the policy itself found less likely than one drawn blindly, e^−offset of that. */
function isGibberish(
  turn: Turn,
  { tokenIdThreshold, logprobOffset }: Extract<RolloutFilterSpec, { type: 'gibberish' }>,
  vocabularySize: number,
): boolean {
  const least = -Math.log(vocabularySize) - logprobOffset;
  const logprobs = toldLogprobs(turn);
  return logprobs !== undefined && turn.tokenIds.some((id, i) => id > tokenIdThreshold && logprobs[i]! < least);
}

/** So many sampled tokens in a row, over all turns, that the policy was all but sure of. */
function isRepetition(
  turns: readonly Turn[],
  { window, probThreshold }: Extract<RolloutFilterSpec, { type: 'repetition' }>,
): boolean {
  const most = Math.log(probThreshold);
  let inRow = 0;
  for (const turn of turns) {
    for (const logprob of toldLogprobs(turn) ?? []) {
      inRow = logprob > most ? inRow + 1 : 0;
      if (inRow >= window) return true;
    }
  }
  return false;
}

/** What its server told of a turn's tokens: the policy's, else the sampler's, as prime-rl takes them. */
function toldLogprobs({ logprobs, samplingLogprobs }: Turn): readonly number[] | undefined {
  return logprobs ?? samplingLogprobs;
}

/** Of an environment's rollouts: where its rewards make no advantages, one of 0 says nothing. */
export function filtersOf(
  filters: Filters,
  entry: Pick<RunSpec['environments'][number], 'objective'> | undefined,
): Filters {
  if (entry?.objective === undefined) return filters;
  const others = (slot: RolloutFlag['slot']) => filters[slot].filter(({ type }) => type !== 'zero_advantage');
  return { pre: others('pre'), post: others('post') };
}

/** The flags of a rollout once its advantage is known; a filter that stands earlier in its slot has flagged it before. */
export function allFlags(
  { flags = [] }: Pick<ScoredRollout, 'flags'>,
  { advantage, filters }: { readonly advantage: number; readonly filters: Filters },
): RolloutFlag[] {
  const zero = advantage !== 0 ? [] : slots.flatMap((slot) => zeroFlag(filters, slot, flags));
  return zero.length === 0
    ? [...flags]
    : [...flags.filter(({ slot }) => !zero.some((one) => one.slot === slot)), ...zero];
}

function zeroFlag(filters: Filters, slot: RolloutFlag['slot'], flags: readonly RolloutFlag[]): RolloutFlag[] {
  const at = filters[slot].findIndex(({ type }) => type === 'zero_advantage');
  const known = flags.find((flag) => flag.slot === slot);
  const before = known === undefined ? Infinity : filters[slot].findIndex(({ type }) => type === known.name);
  if (at < 0 || before < at) return [];
  return [{ slot, name: 'zero_advantage', isEnforced: filters[slot][at]!.enforce }];
}

export function isEnforced(flags: readonly RolloutFlag[]): boolean {
  return flags.some((flag) => flag.isEnforced);
}

/** Whether filters that act before a batch leave nothing of a group: it does not fill a batch then. */
export function leavesNothing({ rollouts }: Pick<ScoredGroup, 'rollouts'>): boolean {
  const isOut = ({ flags = [] }: ScoredRollout): boolean => isEnforced(flags.filter(({ slot }) => slot === 'pre'));
  return rollouts.length > 0 && rollouts.every(isOut);
}

/**
 * `filter/<name>_count` and `_rate` of each filter that the config names, over rollouts with a reward, and the shares that
 * any filter flagged (`filter/total_detected_rate`) and took the loss of (`filter/total_enforced_rate`).
 */
export function filterMetrics(
  rollouts: readonly { readonly flags: readonly RolloutFlag[] }[],
  filters: Filters,
): Record<string, number> {
  const names = new Set(slots.flatMap((slot) => filters[slot].map(({ type }) => type)));
  if (names.size === 0 || rollouts.length === 0) return {};
  const count = (isIt: (flag: RolloutFlag) => boolean): number =>
    rollouts.filter(({ flags }) => flags.some(isIt)).length;
  const share = (isIt: (flag: RolloutFlag) => boolean): number => count(isIt) / rollouts.length;
  const metrics: Record<string, number> = {};
  for (const name of names) {
    metrics[`filter/${name}_count`] = count((flag) => flag.name === name);
    metrics[`filter/${name}_rate`] = share((flag) => flag.name === name);
  }
  metrics['filter/total_detected_rate'] = share(() => true);
  metrics['filter/total_enforced_rate'] = share((flag) => flag.isEnforced);
  return metrics;
}
