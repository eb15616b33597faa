import { widenedBounds } from '../core/rl/difficulty.ts';
import { decodeRanges } from '../core/rl/ledger.ts';
import type { CurriculumState } from '../core/rl/curriculum.ts';
import {
  baselineMetrics,
  environmentReward,
  environmentTimeouts,
  stepMetrics,
  trainedTokens,
} from '../core/rl/metrics.ts';
import { poolMetrics } from '../core/rl/pools.ts';
import { filterMetrics, filtersOf } from '../core/rl/filters.ts';
import { factsOfGroup, type GroupFacts } from '../core/rl/group-facts.ts';
import { promptsOfBatch } from '../core/rl/prompts-of-batch.ts';
import { type Advantage, advantagesOf, ownAdvantage, Packer, type SetAside } from '../core/rl/pack.ts';
import { type AdvantageFunction, codeOfAdvantage } from '../core/rl/advantage.ts';
import type { ScoredGroup } from '../core/rl/rollout.ts';
import type { KeptGroups, ObjectRef, RunHandle, RunState } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { importUserFunction } from '../engine/index.ts';
import type { LeaseInput } from './lease-groups.ts';
import { BatchWriter, putPacked } from '../runs/batches.ts';
import { poolsOf } from '../runs/pools.ts';
import { specOf } from '../runs/run-access.ts';
import { GroupsInOrder } from '../runs/scored-groups.ts';

interface PackInput {
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
  /** As the batch before left them. */
  readonly baselines?: RunState['baselines'];
}

/**
 * Packs the chosen groups into rows, in ordinal order, and measures everything that was sampled for the step. A batch
 * without a token that has an advantage says so; it is never planned. Packed again, or after a death in the middle of it, its parts are the
 * same objects.
 */
export async function packBatch(input: PackInput): Promise<{
  packed: ObjectRef;
  hasSignal: boolean;
  rows: number;
  /** Mean over all that was sampled for it; null where its groups were sampled for an earlier step. */
  reward: number | null;
  metrics: Readonly<Record<string, number>>;
  /** For the batch after it; absent where the run's advantage keeps none. */
  baselines?: RunState['baselines'];
}> {
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
  const headline = [
    'train/agg/all/metrics/exact_match',
    'train/agg/all/solved_all',
    'train/agg/all/solved_none',
    ...spec.environments.flatMap(({ name }) => [environmentReward(name), environmentTimeouts(name)]),
    'train/agg/all/is_truncated/mean',
    'off_policy/mean',
    'off_policy/max',
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

/** Whether a token without an advantage teaches nothing. */
function asksForAdvantages({ loss }: RunSpec): boolean {
  return loss.type !== 'cross_entropy' && loss.teacherTau === 0;
}

/** Reads every group once, and keeps of it what its figures need. */
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
  // Of a group that is not in the batch a custom advantage is not asked, and no baseline moves.
  const usual = typeof advantage === 'string' ? advantage : 'centered';
  for await (const { key, group, isWanted } of groups) {
    if (!isWanted) {
      const { pre, post } = options.rolloutFilters;
      const found =
        pre.length + post.length === 0 ? [] : advantagesOf(group, ownAdvantage(group, usual, environments), options);
      note(key, group, (index) => found[group.rollouts.findIndex((rollout) => rollout.index === index)]!);
      continue;
    }
    const { rows, advantages } = packer.pack(group);
    note(key, group, (index) => advantages.get(index)!);
    for (const { sample, rollout } of rows) await writer.add(sample, rollout);
  }
  const inFile = (key: string): GroupFacts[] => [...facts.get(key)!.values()].toSorted((a, b) => a.ordinal - b.ordinal);
  return {
    packer,
    rows: await writer.end({ of: packer.stats.rollouts }),
    finished: scored.flatMap(({ key }) => inFile(key)),
    trained: sources.flatMap(({ ref, ordinals }) => {
      const chosen = new Set(ordinals);
      return inFile(ref.key).filter(({ ordinal }) => chosen.has(ordinal));
    }),
  };
}

/** Of rollout filters, over all that has a reward. */
function flagMetrics(finished: readonly GroupFacts[], { rolloutFilters: filters }: RunSpec): Record<string, number> {
  const rewarded = finished.flatMap(({ rollouts }) => rollouts.filter(({ reward }) => reward !== null));
  return filterMetrics(rewarded, filters);
}

/** What was cut, where the config says what becomes of it. */
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

/** The name of one of ours, or the function of a file the config names, as it was when the run was opened. */
async function advantageOf({ advantage }: RunSpec): Promise<Advantage> {
  const code = codeOfAdvantage(advantage);
  if (code === null) return advantage as Exclude<typeof advantage, { readonly import: unknown }>;
  return (await importUserFunction(code, 'advantage')) as AdvantageFunction; // what it gives is checked
}
