import { type AdvantageFunction, type AdvantageKind, customAdvantages, groupAdvantages } from './advantage.ts';
import type { PackedRow } from './batch.ts';
import { allFlags, isEnforced } from './filters.ts';
import type { ScoredGroup, ScoredRollout } from './rollout.ts';
import { rowsOfRollout, type TokenRow, type TrajectorySettings, usualTrajectories } from './trajectories.ts';
import type { RunSpec } from '../../config/run-spec.ts';

/** From scored groups to the rows a trainer gets. */

interface PackStats {
  readonly groups: number;
  /** Rollouts with a reward; those without are not trained. */
  readonly rollouts: number;
  readonly rows: number;
  readonly totalTokens: number;
  /** Tokens that count in the loss. */
  readonly trainedTokens: number;
  /** Of those, tokens whose advantage is not 0. Without any, the batch teaches nothing. */
  readonly signalTokens: number;
}

/** What of the rollouts is not in the batch, or not whole, and why. */
export interface SetAside {
  /** Rows longer than `seqLen`. */
  readonly overlongRows: number;
  /** Rollouts without loss because they were cut or too long. */
  readonly maskedRollouts: number;
  /** Rollouts that a filter took the loss of. */
  readonly filteredRollouts: number;
}

interface PackOptions extends Partial<TrajectorySettings> {
  readonly advantage: AdvantageKind | AdvantageFunction;
  readonly rolloutFilters?: RunSpec['rolloutFilters'];
}

/**
 * Packs groups by ordinal and rollouts by index, whatever the order they arrived in; trajectories.ts says what the rows of a
 * rollout are. Every sampled token has its rollout's advantage. Advantages are of the whole group: a rollout that a filter,
 * or its length, takes the loss of counts in the baseline.
 */
export function packSamples(
  groups: readonly ScoredGroup[],
  { advantage: kind, rolloutFilters: filters = { pre: [], post: [] }, ...trajectories }: PackOptions,
): {
  readonly batch: { readonly samples: readonly PackedRow[] };
  readonly stats: PackStats;
  readonly setAside: SetAside;
} {
  const settings = { ...usualTrajectories, ...trajectories };
  const samples: PackedRow[] = [];
  const rolloutOfRow: number[] = [];
  let [rollouts, overlongRows, maskedRollouts, filteredRollouts] = [0, 0, 0, 0];
  for (const group of groups.toSorted((a, b) => a.ordinal - b.ordinal)) {
    const inOrder = group.rollouts.toSorted((a, b) => a.index - b.index);
    for (const [i, advantage] of advantagesOf({ ...group, rollouts: inOrder }, kind).entries()) {
      const rollout = inOrder[i]!;
      if (rollout.reward === null) continue;
      requireSound(rollout, advantage);
      rollouts += 1;
      if (isEnforced(allFlags(rollout, { advantage, filters }))) {
        filteredRollouts += 1;
        continue;
      }
      const made = rowsOfRollout(rollout, settings);
      overlongRows += made.overlongRows;
      maskedRollouts += made.isMasked ? 1 : 0;
      samples.push(...made.rows.map((row) => withAdvantage(row, advantage)));
      rolloutOfRow.push(...made.rows.map(() => rollouts - 1));
    }
  }
  const isEachOne = rolloutOfRow.length === rollouts && rolloutOfRow.every((index, row) => index === row);
  const rows = isEachOne
    ? samples
    : samples.map((row, i) => ({ ...row, rollout: { index: rolloutOfRow[i]!, of: rollouts } }));
  const totalTokens = sum(samples.map(({ tokenIds }) => tokenIds.length));
  const trainedTokens = sum(samples.map(({ lossMask }) => sum(lossMask)));
  const signalTokens = sum(samples.map(countSignal));
  return {
    batch: { samples: rows },
    stats: { groups: groups.length, rollouts, rows: samples.length, totalTokens, trainedTokens, signalTokens },
    setAside: { overlongRows, maskedRollouts, filteredRollouts },
  };
}

/** Aligned with the group's rollouts; 0 where there is no reward. */
export function advantagesOf(group: ScoredGroup, kind: AdvantageKind | AdvantageFunction): number[] {
  if (typeof kind !== 'string') return customAdvantages(group, kind);
  return groupAdvantages(
    group.rollouts.map(({ reward }) => reward),
    kind,
  );
}

function withAdvantage(
  { tokenIds, lossMask, behaviorLogprobs, samplingLogprobs }: TokenRow,
  advantage: number,
): PackedRow {
  const advantages = lossMask.map((mask) => (mask === 1 ? advantage : 0));
  return {
    tokenIds,
    lossMask,
    ...(behaviorLogprobs === undefined ? {} : { behaviorLogprobs }),
    advantages,
    ...(samplingLogprobs === undefined ? {} : { samplingLogprobs }),
  };
}

function countSignal({ lossMask, advantages }: PackedRow): number {
  return lossMask.filter((mask, t) => mask === 1 && advantages[t] !== 0).length;
}

/** Whatever came before, nothing that is not a finite number enters a batch, and no token without its log probability. */
function requireSound(rollout: ScoredRollout, advantage: number): void {
  const place = `Rollout ${rollout.group}/${rollout.index}`;
  for (const { tokenIds, logprobs, samplingLogprobs } of rollout.turns) {
    const uneven = [logprobs, samplingLogprobs].find((given) => given && given.length !== tokenIds.length);
    if (uneven) throw new Error(`${place} has ${tokenIds.length} sampled tokens but ${uneven.length} logprobs.`);
  }
  const logprobs = rollout.turns.flatMap((turn) => [...(turn.logprobs ?? []), ...(turn.samplingLogprobs ?? [])]);
  for (const [what, values] of [
    ['reward', [rollout.reward]],
    ['advantage', [advantage]],
    ['log probability', logprobs],
  ] as const) {
    const strange = values.find((value) => !Number.isFinite(value));
    if (strange === undefined) continue;
    throw new Error(`${place} has the ${what} ${strange}, which must not be trained.`);
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
