import type { RoleAdvantage } from '../../settings/learning.ts';
import type { TrajectorySettings } from '../../settings/rollouts.ts';
import { groupAdvantages } from '../learning/advantage.ts';
import { rowsOfRollout } from './trajectories.ts';
import type { AgentTrace, RewardedRollout, ScoredGroup, ScoredRollout } from './rollout.ts';

/** Episodes of several agents under one policy: each trained agent is a sample, with turns and a reward of its own. */

/** The unit of training: a rollout, or one agent's part of it. */
export type Sample = ScoredRollout & { readonly agent?: string };

/** verifiers' name for the role of a rollout's single agent. */
const onlyAgent = 'agent';

/** Samples of the trained agents, in the order of traces; the rollout itself if it has one agent, or no reward. */
export function samplesOf(rollout: ScoredRollout): Sample[] {
  const { traces, ...played } = rollout;
  if (traces === undefined || played.reward === null) return [rollout];
  return traces.flatMap((trace, at) => (trace.isTrained ? [sampleOf(played, trace, at)] : []));
}

/** An episode's reward as one number: the mean over its trained agents. */
export function meanReward(traces: readonly AgentTrace[]): number {
  const trained = traces.filter(({ isTrained }) => isTrained);
  return trained.reduce((sum, { reward }) => sum + reward, 0) / trained.length;
}

/**
 * An agent's sample. It is truncated if its own last turn was, or its time was over; other agents of the episode do not
 * matter.
 */
export function sampleOf(played: RewardedRollout, trace: AgentTrace, at: number): Sample {
  const turns = played.turns.filter((turn) => turn.trace === at);
  const isCut = trace.isTruncated === true || turns.at(-1)?.finishReason === 'length';
  const outcome =
    played.outcome === 'truncated' || played.outcome === 'ok' ? (isCut ? 'truncated' : 'ok') : played.outcome;
  const { agent, reward, metrics } = trace;
  return { ...played, turns, outcome, reward, metrics, agent };
}

/** A rollout's rows, or those of all its trained agents; `sampledAt` is among the sampled tokens of the rollout. */
export function rowsOfEpisode(rollout: ScoredRollout, settings: TrajectorySettings): ReturnType<typeof rowsOfRollout> {
  if (rollout.traces === undefined) return rowsOfRollout(rollout, settings);
  let sampled = 0;
  const places = rollout.turns.map(({ tokenIds, trace }) => ({
    trace,
    places: tokenIds.map(() => sampled++),
  }));
  const made = rollout.traces.flatMap(({ isTrained }, at) => {
    if (!isTrained || rollout.reward === null) return [];
    const own = places.filter(({ trace }) => trace === at).flatMap((turn) => turn.places);
    const { rows, ...counts } = rowsOfRollout(sampleOf(rollout, rollout.traces![at]!, at), settings);
    return [{ ...counts, rows: rows.map((row) => ({ ...row, sampledAt: row.sampledAt.map((i) => own[i] ?? -1) })) }];
  });
  return {
    rows: made.flatMap(({ rows }) => rows),
    overlongRows: made.reduce((sum, { overlongRows }) => sum + overlongRows, 0),
    isMasked: made.length > 0 && made.every(({ isMasked }) => isMasked),
  };
}

/** The group with its samples in place of its rollouts, ordered by index. */
export function groupOfSamples(group: ScoredGroup): Omit<ScoredGroup, 'rollouts'> & { readonly rollouts: Sample[] } {
  return { ...group, rollouts: group.rollouts.toSorted((a, b) => a.index - b.index).flatMap(samplesOf) };
}

/** Running means of rewards, by environment and role: all that `rae` keeps from one group to the next. One that is missing is 0. */
export type Baselines = Readonly<Record<string, Readonly<Record<string, number>>>>;

export function isRoleAdvantage(advantage: unknown): advantage is RoleAdvantage {
  return typeof advantage === 'object' && advantage !== null && 'type' in advantage;
}

/**
 * Advantages of the samples of one group, and the baselines after it.
 *
 *     rae                A = r − b, then b ← decay · b + (1 − decay) · r, sample after sample, with a b for each role of an environment that
 *                        begins at 0   (SPIRAL, arXiv:2506.24119; prime-rl's orchestrator/algo/rae.py)
 *     hierarchical_grpo  A = r − mean over the samples of the same role: of the same episode where the role is one of `episodeAgents`, else of
 *                        the group   (prime-rl's orchestrator/algo/hierarchical_grpo.py)
 *
 * Aligned with the samples; 0 where there is no reward, which moves no baseline.
 */
export function roleAdvantages(
  { environment, rollouts }: { readonly environment: string; readonly rollouts: readonly Sample[] },
  kind: RoleAdvantage,
  baselines: Baselines = {},
): { readonly advantages: number[]; readonly baselines: Baselines } {
  if (kind.type === 'hierarchical_grpo') return { advantages: comparedByRole(rollouts, kind.episodeAgents), baselines };
  const own: Record<string, number> = { ...baselines[environment] };
  const advantages = rollouts.map(({ reward, agent = onlyAgent }) => {
    if (reward === null) return 0;
    const baseline = own[agent] ?? 0;
    own[agent] = kind.decay * baseline + (1 - kind.decay) * reward;
    return reward - baseline;
  });
  return { advantages, baselines: { ...baselines, [environment]: own } };
}

function comparedByRole(samples: readonly Sample[], episodeAgents: readonly string[]): number[] {
  const keys = samples.map(({ agent = onlyAgent, index }) =>
    JSON.stringify(episodeAgents.includes(agent) ? [agent, index] : [agent]),
  );
  const advantages = samples.map(() => 0);
  for (const key of new Set(keys)) {
    const peers = [...samples.keys()].filter((i) => keys[i] === key);
    const compared = groupAdvantages(
      peers.map((i) => samples[i]!.reward),
      'centered',
    );
    for (const [k, i] of peers.entries()) advantages[i] = compared[k]!;
  }
  return advantages;
}
