import { widenedBounds } from '../core/rl/filters/difficulty.ts';
import { decodeRanges } from '../core/rl/ledger.ts';
import type { CurriculumState } from '../core/rl/sampling/curriculum.ts';
import {
  baselineMetrics,
  environmentReward,
  environmentTimeouts,
  isEffectCount,
  stepMetrics,
  trainedTokens,
} from '../core/rl/metrics.ts';
import { poolMetrics } from '../core/rl/sampling/pools.ts';
import { filterMetrics, filtersOf } from '../core/rl/filters/filters.ts';
import { factsOfGroup, type GroupFacts } from '../core/rl/rollout/group-facts.ts';
import { promptsOfBatch } from '../core/rl/rollout/prompts-of-batch.ts';
import { type Advantage, advantagesOf, ownAdvantage, Packer, type SetAside } from '../core/rl/learning/pack.ts';
import { type AdvantageFunction, codeOfAdvantage } from '../core/rl/learning/advantage.ts';
import type { ScoredGroup } from '../core/rl/rollout/rollout.ts';
import type { KeptGroups, ObjectRef, RunHandle, RunState } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { importUserFunction } from '../engine/index.ts';
import { present } from '../core/present.ts';
import type { LeaseGroups, LeaseInput, MayLease } from './lease-groups.ts';
import { BatchWriter, putPacked } from '../runs/rollouts/batches.ts';
import { poolsOf } from '../runs/rollouts/pools.ts';
import { specOf } from '../runs/run-access.ts';
import { GroupsInOrder } from '../runs/rollouts/scored-groups.ts';

interface PackInput {
  readonly run: RunHandle;
  readonly step: number;
  readonly trained: readonly KeptGroups[];
  /** Scored rounds of this step, for its metrics. */
  readonly scored: readonly ObjectRef[];
  /** The groups were chosen by the widened filter. */
  readonly widened?: boolean;
  /** Curriculum after these groups, for the sizes of its pools. */
  readonly curriculum?: CurriculumState;
  readonly datasets?: LeaseInput['datasets'];
  /** Baselines after the previous batch. */
  readonly baselines?: RunState['baselines'];
  /** The next step's first round, which is leased beside the packing. */
  readonly lease?: LeaseInput;
}

interface PackedBatch extends MayLease {
  readonly packed: ObjectRef;
  readonly hasSignal: boolean;
  readonly rows: number;
  /** Mean over everything sampled for it; null when its groups were sampled for an earlier step. */
  readonly reward: number | null;
  readonly metrics: Readonly<Record<string, number>>;
  /** Baselines for the next batch; absent when the run's advantage has none. */
  readonly baselines?: RunState['baselines'];
}

/**
 * Packs the chosen groups into rows, in ordinal order, and measures everything that was sampled for the step. A batch
 * without any advantage is reported and never planned. Idempotent: packed again, even after a death half-way, its parts
 * are the same objects.
 */
export const createPackBatch =
  (leaseGroups: LeaseGroups) =>
  async ({ lease, ...input }: PackInput): Promise<PackedBatch> => {
    const [packed, leased] = await Promise.all([packBatch(input), lease && leaseGroups(lease)]);
    return { ...packed, ...present({ leased }) };
  };

async function packBatch(input: PackInput): Promise<PackedBatch> {
  const { run, step, curriculum, datasets } = input;
  const spec = await specOf(run);
  const advantage = await advantageOf(spec);
  const { rows, finished, trained, packer } = await packRows(input, { ...spec, advantage });
  const { stats, setAside } = packer;
  const filter = input.widened === true ? widenedBounds(spec.filter) : spec.filter;
  const pools = curriculum && datasets ? await poolFigures(run, spec, curriculum, datasets) : {};
  const metrics: Record<string, number> = {
    ...stepMetrics({ step, finished, trained, filter, environments: spec.environments.map(({ name }) => name) }),
    ...pools,
    ...(input.widened === true ? { 'filter/widened': 1 } : {}),
    ...flagMetrics(finished, spec),
    ...cutMetrics(finished, spec, setAside),
    'batch/rows': stats.rows,
    [trainedTokens]: stats.trainedTokens,
    'batch/signal_tokens': stats.signalTokens,
    ...baselineMetrics(packer.baselines),
    ...(spec.environments.some(({ echo }) => echo !== undefined)
      ? { 'batch/observed_tokens': stats.observedTokens, 'batch/unplaced_messages': setAside.unplacedMessages }
      : {}),
  };
  const prompts = promptsOfBatch(trained);
  const packed = await putPacked(run, step, { rows, metrics, ...(prompts ? { prompts } : {}) });
  // Metrics that the workflow shows in the line of a step, and commits with it. All others stay in the packed batch.
  const headline = [
    'train/agg/all/metrics/exact_match',
    'train/agg/all/solved_all',
    'train/agg/all/solved_none',
    ...spec.environments.flatMap(({ name }) => [environmentReward(name), environmentTimeouts(name)]),
    'train/agg/all/is_truncated/mean',
    'off_policy/mean',
    'off_policy/max',
    ...Object.keys(metrics).filter(isEffectCount),
  ];
  return {
    packed,
    hasSignal: (asksForAdvantages(spec) ? stats.signalTokens : stats.trainedTokens) > 0,
    rows: stats.rows,
    reward: metrics['train/reward'] ?? null,
    ...(packer.baselines && { baselines: packer.baselines }),
    metrics: Object.fromEntries(
      [...headline, ...Object.keys(pools)].flatMap((name) => (name in metrics ? [[name, metrics[name]!]] : [])),
    ),
  };
}

/** Whether a token without an advantage has no effect. */
function asksForAdvantages({ loss }: RunSpec): boolean {
  return loss.type !== 'cross_entropy' && loss.teacherTau === 0;
}

/** Reads every group once, and keeps only what its figures need. */
async function packRows(
  { run, step, trained, scored, baselines }: Pick<PackInput, 'run' | 'step' | 'trained' | 'scored' | 'baselines'>,
  options: Omit<RunSpec, 'advantage'> & { readonly advantage: Advantage },
) {
  const { advantage, environments } = options;
  const packer = new Packer({ ...options, ...(baselines && { baselines }) });
  const writer = new BatchWriter(run, step);
  const facts = new Map<string, Map<number, GroupFacts>>();
  const note = (key: string, group: ScoredGroup, advantageOf: (index: number) => number): void => {
    const entry = environments.find(({ name }) => name === group.environment);
    const filters = filtersOf(options.rolloutFilters, entry);
    facts.get(key)!.set(group.ordinal, factsOfGroup(group, { advantageOf, filters }));
  };
  const sources = trained.map(({ scored: ref, ordinals }) => ({ ref, ordinals: decodeRanges(ordinals) }));
  const groups = new GroupsInOrder(run, sources, scored);
  for (const { key } of groups.refs) facts.set(key, new Map());
  // Groups outside the batch do not reach a custom advantage, and move no baseline.
  const fallback = typeof advantage === 'string' ? advantage : 'centered';
  for await (const { key, group, isWanted } of groups) {
    if (!isWanted) {
      const { pre, post } = options.rolloutFilters;
      const found =
        pre.length + post.length === 0 ? [] : advantagesOf(group, ownAdvantage(group, fallback, environments), options);
      note(key, group, (index) => found[group.rollouts.findIndex((rollout) => rollout.index === index)]!);
      continue;
    }
    const { rows, advantages } = packer.pack(group);
    note(key, group, (index) => advantages.get(index)!);
    for (const { sample, rollout } of rows) await writer.add(sample, rollout);
  }
  // Sorted, since sums depend on their order in the last bits, and an object's groups depend on when they ended.
  const byOrdinal = (found: GroupFacts[]): GroupFacts[] => found.toSorted((a, b) => a.ordinal - b.ordinal);
  const inFile = (key: string): GroupFacts[] => [...facts.get(key)!.values()];
  return {
    packer,
    rows: await writer.end({ of: packer.stats.rollouts }),
    finished: byOrdinal(scored.flatMap(({ key }) => inFile(key))),
    trained: byOrdinal(
      sources.flatMap(({ ref, ordinals }) => {
        const chosen = new Set(ordinals);
        return inFile(ref.key).filter(({ ordinal }) => chosen.has(ordinal));
      }),
    ),
  };
}

/** Metrics of rollout filters, over all rollouts with a reward. */
function flagMetrics(finished: readonly GroupFacts[], { rolloutFilters: filters }: RunSpec): Record<string, number> {
  const rewarded = finished.flatMap(({ rollouts }) => rollouts.filter(({ reward }) => reward !== null));
  return filterMetrics(rewarded, filters);
}

/** Metrics of truncated rollouts, when the config sets their fate. */
function cutMetrics(
  finished: readonly GroupFacts[],
  { seqLen, overlongRows, maskTruncated, zeroTruncated }: RunSpec,
  setAside: SetAside,
): Record<string, number> {
  const zeroed = finished.flatMap(({ rollouts }) => rollouts.filter(({ isZeroed }) => isZeroed));
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

/** Name of a built-in advantage, or the user's function, as of the run's opening. */
async function advantageOf({ advantage }: RunSpec): Promise<Advantage> {
  const code = codeOfAdvantage(advantage);
  if (code === null) return advantage as Exclude<typeof advantage, { readonly import: unknown }>;
  return (await importUserFunction(code, 'advantage')) as AdvantageFunction; // the function's results are validated
}
