import { layout } from '../runs/layout.ts';
import { widenedBounds } from '../core/rl/difficulty.ts';
import { decodeRanges } from '../core/rl/ledger.ts';
import type { CurriculumState } from '../core/rl/curriculum.ts';
import { environmentReward, stepMetrics } from '../core/rl/metrics.ts';
import { poolMetrics } from '../core/rl/pools.ts';
import { allFlags, filterMetrics } from '../core/rl/filters.ts';
import { type PromptsOfBatch, promptsOfBatch } from '../core/rl/prompts-of-batch.ts';
import { advantagesOf, packSamples, type SetAside } from '../core/rl/pack.ts';
import type { AdvantageFunction, AdvantageKind } from '../core/rl/advantage.ts';
import type { ScoredGroup } from '../core/rl/rollout.ts';
import type { KeptGroups, ObjectRef, RunHandle } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { importUserFunction } from '../engine/index.ts';
import { encodeRows, putJson } from '../backends/store/objects.ts';
import { sha256 } from '../backends/store/file-store.ts';
import type { LeaseInput } from './lease-groups.ts';
import { poolsOf } from '../runs/pools.ts';
import { readRows, specOf, storeOf } from '../runs/run-access.ts';

/** Tokens that count in the loss; `batch/signal_tokens` are those of them whose advantage is not 0. */
export const trainedTokens = 'batch/trained_tokens';

/** What a step's rollouts were packed into. */
export interface PackedBatch {
  readonly batch: ObjectRef;
  readonly metrics: Readonly<Record<string, number>>;
  /** As in {@link StepPlan}. */
  readonly prompts?: PromptsOfBatch;
}

/**
 * Packs the chosen groups into rows, in ordinal order, and measures everything that was sampled for the step. A batch
 * without a token that has an advantage says so; it is never planned.
 */
export async function packBatch(input: {
  readonly run: RunHandle;
  readonly step: number;
  readonly trained: readonly KeptGroups[];
  /** Scored rounds of this step, for its metrics. */
  readonly scored: readonly ObjectRef[];
  /** The groups were chosen by the widened filter. */
  readonly widened?: boolean;
  /** As these groups left it, for the sizes of its pools. */
  readonly curriculum?: CurriculumState;
  readonly datasets?: LeaseInput['datasets'];
}): Promise<{
  packed: ObjectRef;
  hasSignal: boolean;
  rows: number;
  /** Mean over all that was sampled for it; null where its groups were sampled for an earlier step. */
  reward: number | null;
  metrics: Readonly<Record<string, number>>;
}> {
  const { run, step } = input;
  const spec = await specOf(run);
  const store = storeOf(run);
  const sources = await Promise.all(
    input.trained.map(async ({ scored, ordinals }) => {
      return { scored, ordinals: new Set(decodeRanges(ordinals)), groups: await readRows<ScoredGroup>(run, scored) };
    }),
  );
  const trained = sources.flatMap(({ ordinals, groups }) => groups.filter(({ ordinal }) => ordinals.has(ordinal)));
  const finished = (await Promise.all(input.scored.map((ref) => readRows<ScoredGroup>(run, ref)))).flat();
  const advantage = await advantageOf(spec);
  const { batch, stats, setAside } = packSamples(trained, { ...spec, advantage });
  const filter = input.widened === true ? widenedBounds(spec.filter) : spec.filter;
  const { curriculum, datasets } = input;
  const pools = curriculum && datasets ? await poolFigures(run, spec, curriculum, datasets) : {};
  const metrics: Record<string, number> = {
    ...stepMetrics({ step, finished, trained, filter, environments: spec.environments.map(({ name }) => name) }),
    ...pools,
    ...(input.widened === true ? { 'filter/widened': 1 } : {}),
    ...flagMetrics({ finished, trained, spec, advantage }),
    ...cutMetrics(finished, spec, setAside),
    'batch/rows': stats.rows,
    [trainedTokens]: stats.trainedTokens,
    'batch/signal_tokens': stats.signalTokens,
  };
  // By content: another batch for the same step (after a refusal) never takes the place of one that a plan refers to.
  const bytes = encodeRows(batch.samples);
  const digest = sha256(bytes);
  const stored = await store.put(layout.batch(run.lineage, step, digest), bytes);
  const prompts = promptsOfBatch(trained);
  const packed = await putJson(store, layout.packed(run.lineage, step, digest), {
    batch: { ...stored, count: batch.samples.length },
    metrics,
    ...(prompts ? { prompts } : {}),
  } satisfies PackedBatch);
  const headline = [
    'train/agg/all/metrics/exact_match',
    'train/agg/all/solved_all',
    'train/agg/all/solved_none',
    ...spec.environments.map(({ name }) => environmentReward(name)),
    'train/agg/all/is_truncated/mean',
    'off_policy/mean',
    'off_policy/max',
  ];
  return {
    packed,
    hasSignal: (asksForAdvantages(spec) ? stats.signalTokens : stats.trainedTokens) > 0,
    rows: stats.rows,
    reward: metrics['train/reward'] ?? null,
    metrics: Object.fromEntries(
      [...headline, ...Object.keys(pools)].flatMap((name) => (name in metrics ? [[name, metrics[name]!]] : [])),
    ),
  };
}

/** Whether a token without an advantage teaches nothing. */
function asksForAdvantages({ loss }: RunSpec): boolean {
  return loss.type !== 'cross_entropy' && loss.teacherTau === 0;
}

/** Of rollout filters, over all that has a reward. A custom advantage is asked for the groups of the batch alone. */
function flagMetrics({
  finished,
  trained,
  spec: { rolloutFilters: filters },
  advantage,
}: {
  readonly finished: readonly ScoredGroup[];
  readonly trained: readonly ScoredGroup[];
  readonly spec: RunSpec;
  readonly advantage: AdvantageKind | AdvantageFunction;
}): Record<string, number> {
  if (filters.pre.length + filters.post.length === 0) return {};
  const inBatch = new Set(trained.map(({ ordinal }) => ordinal));
  const flagged = finished.flatMap((group) => {
    const isAsked = typeof advantage === 'string' || inBatch.has(group.ordinal);
    const advantages = advantagesOf(group, isAsked ? advantage : 'centered');
    return group.rollouts.flatMap((rollout, i) =>
      rollout.reward === null ? [] : [{ flags: allFlags(rollout, { advantage: advantages[i]!, filters }) }],
    );
  });
  return filterMetrics(flagged, filters);
}

/** What was cut, where the config says what becomes of it. */
function cutMetrics(
  finished: readonly ScoredGroup[],
  { seqLen, overlongRows, maskTruncated, zeroTruncated }: RunSpec,
  setAside: SetAside,
): Record<string, number> {
  const zeroed = finished.flatMap(({ rollouts }) => rollouts.filter((one) => one.rewardBeforeCut !== undefined));
  return {
    ...(seqLen === null ? {} : { 'batch/overlong_rows': setAside.overlongRows }),
    ...(maskTruncated || overlongRows === 'mask' ? { 'batch/masked_rollouts': setAside.maskedRollouts } : {}),
    ...(zeroTruncated ? { 'rollout/zeroed': zeroed.length } : {}),
  };
}

async function poolFigures(
  run: RunHandle,
  { environments }: RunSpec,
  curriculum: CurriculumState,
  datasets: LeaseInput['datasets'],
): Promise<Record<string, number>> {
  const pooled = environments.map(({ name, pools }) => ({
    name,
    pools,
    datasetLength: datasets.find((dataset) => dataset.name === name)?.datasetLength ?? 0,
  }));
  return poolMetrics(await poolsOf(run, curriculum), pooled);
}

/** The name of one of ours, or the function of a file the config names, as it was when the run was opened. */
async function advantageOf({ advantage }: RunSpec): Promise<AdvantageKind | AdvantageFunction> {
  if (typeof advantage === 'string') return advantage;
  return (await importUserFunction(advantage.import, 'advantage')) as AdvantageFunction; // what it gives is checked
}
