import type { RolloutFilter, RolloutFilters, TrainedEnvironment } from '../../settings/rollouts.ts';
import type { RolloutFlag, ScoredGroup, ScoredRollout, Turn } from '../rollout/rollout.ts';

/**
 * Filters of single rollouts, as in prime-rl v0.5 to v0.7 (orchestrator/filters.py): the first match among a slot's
 * filters flags a rollout. An enforced filter removes the rollout from the loss, but not from its group's baseline. A
 * rollout flagged `pre` does not fill a batch either: a group with only such rollouts is dropped.
 */

const slots = ['pre', 'post'] as const;

/** Flags from the filters that need only one rollout: at most one per slot. `vocabularySize`: for gibberish. */
export function ownFlags(
  rollout: Pick<ScoredRollout, 'turns' | 'reward'>,
  filters: RolloutFilters,
  vocabularySize: number,
): RolloutFlag[] {
  return slots.flatMap((slot) => {
    const found = filters[slot].find((filter) => matches(rollout, filter, vocabularySize));
    return found === undefined ? [] : [{ slot, name: found.type, isEnforced: found.enforce }];
  });
}

function matches(
  { turns, reward }: Pick<ScoredRollout, 'turns' | 'reward'>,
  filter: RolloutFilter,
  vocabularySize: number,
): boolean {
  if (filter.type === 'low_reward') return reward !== null && reward < filter.minReward;
  if (filter.type === 'gibberish') return turns.some((turn) => isGibberish(turn, filter, vocabularySize));
  if (filter.type === 'repetition') return isRepetition(turns, filter);
  return false;
}

/** A rare token (with a high id) that the policy found less likely than a uniform draw, by e^−offset. */
function isGibberish(
  turn: Turn,
  { tokenIdThreshold, logprobOffset }: Extract<RolloutFilter, { type: 'gibberish' }>,
  vocabularySize: number,
): boolean {
  const least = -Math.log(vocabularySize) - logprobOffset;
  const logprobs = toldLogprobs(turn);
  return logprobs !== undefined && turn.tokenIds.some((id, i) => id > tokenIdThreshold && logprobs[i]! < least);
}

/** A row of sampled tokens, over all turns, with near certainty. */
function isRepetition(
  turns: readonly Turn[],
  { window, probThreshold }: Extract<RolloutFilter, { type: 'repetition' }>,
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

/** Reported log probabilities of a turn's tokens: the policy's, else the sampler's, as in prime-rl. */
function toldLogprobs({ logprobs, samplingLogprobs }: Turn): readonly number[] | undefined {
  return logprobs ?? samplingLogprobs;
}

/** Filters of an environment. Without rewards an advantage of 0 means nothing, so `zero_advantage` is dropped. */
export function filtersOf(
  filters: RolloutFilters,
  entry: Pick<TrainedEnvironment, 'objective'> | undefined,
): RolloutFilters {
  if (entry?.objective === undefined) return filters;
  const others = (slot: RolloutFlag['slot']) => filters[slot].filter(({ type }) => type !== 'zero_advantage');
  return { pre: others('pre'), post: others('post') };
}

/** The flags of a rollout once its advantage is known; earlier filters of a slot win. */
export function allFlags(
  { flags = [] }: Pick<ScoredRollout, 'flags'>,
  { advantage, filters }: { readonly advantage: number; readonly filters: RolloutFilters },
): RolloutFlag[] {
  const zero = advantage !== 0 ? [] : slots.flatMap((slot) => zeroFlag(filters, slot, flags));
  return zero.length === 0
    ? [...flags]
    : [...flags.filter(({ slot }) => !zero.some((one) => one.slot === slot)), ...zero];
}

function zeroFlag(filters: RolloutFilters, slot: RolloutFlag['slot'], flags: readonly RolloutFlag[]): RolloutFlag[] {
  const at = filters[slot].findIndex(({ type }) => type === 'zero_advantage');
  const known = flags.find((flag) => flag.slot === slot);
  const before = known === undefined ? Infinity : filters[slot].findIndex(({ type }) => type === known.name);
  if (at < 0 || before < at) return [];
  return [{ slot, name: 'zero_advantage', isEnforced: filters[slot][at]!.enforce }];
}

export function isEnforced(flags: readonly RolloutFlag[]): boolean {
  return flags.some((flag) => flag.isEnforced);
}

/** Whether filters before a batch flag all of a group, which then does not fill a batch. */
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
  filters: RolloutFilters,
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
