import { layout } from '../core/layout.ts';
import { decodeRanges } from '../core/rl/ledger.ts';
import { stepMetrics } from '../core/rl/metrics.ts';
import { packSamples } from '../core/rl/pack.ts';
import type { AdvantageFunction, AdvantageKind } from '../core/rl/advantage.ts';
import { learningRateAt } from '../core/rl/schedule.ts';
import type { ScoredGroup } from '../core/rl/rollout.ts';
import type { KeptGroups, ObjectRef, Overrides, PolicyVersion, RunHandle, StepPlan } from '../core/rl/run-state.ts';
import { hash32 } from '../core/random.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import { importUserFunction } from '../engine/index.ts';
import { decodeJson, encodeJson, encodeRows, putJson } from '../backends/store/objects.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { readJson, readRows, specOf, storeOf } from './run-access.ts';

/** What a step's rollouts were packed into. */
export interface PackedBatch {
  readonly batch: ObjectRef;
  readonly metrics: Readonly<Record<string, number>>;
}

/** Packs the chosen groups into rows, in ordinal order, and measures everything that was sampled for the step. */
export async function packBatch(input: {
  readonly run: RunHandle;
  readonly step: number;
  readonly trained: readonly KeptGroups[];
  /** Scored rounds of this step, for its metrics. */
  readonly scored: readonly ObjectRef[];
}): Promise<{ packed: ObjectRef; rows: number; reward: number; metrics: Readonly<Record<string, number>> }> {
  const { run, step } = input;
  const spec = await specOf(run);
  const store = storeOf(run);
  const trained: ScoredGroup[] = [];
  for (const source of input.trained) {
    const wanted = new Set(decodeRanges(source.ordinals));
    trained.push(...(await readRows<ScoredGroup>(run, source.scored)).filter(({ ordinal }) => wanted.has(ordinal)));
  }
  const finished = (await Promise.all(input.scored.map((ref) => readRows<ScoredGroup>(run, ref)))).flat();
  const { batch, stats } = packSamples(trained, { advantage: await advantageOf(spec) });
  const metrics: Record<string, number> = {
    ...stepMetrics({ step, finished, trained, filter: spec.filter }),
    'batch/rows': stats.rows,
    'batch/trained_tokens': stats.trainedTokens,
  };
  // By content: another batch for the same step (after a refusal) never takes the place of one that a plan refers to.
  const bytes = encodeRows(batch.samples);
  const digest = sha256(bytes);
  const stored = await store.put(layout.batch(run.lineage, step, digest), bytes);
  const packed = await putJson(store, layout.packed(run.lineage, step, digest), {
    batch: { ...stored, count: batch.samples.length },
    metrics,
  } satisfies PackedBatch);
  const headline = ['train/agg/all/metrics/exact_match', 'train/agg/all/solved_all', 'train/agg/all/solved_none'];
  return {
    packed,
    rows: stats.rows,
    reward: metrics['train/reward'] ?? 0,
    metrics: Object.fromEntries(headline.flatMap((name) => (name in metrics ? [[name, metrics[name]!]] : []))),
  };
}

/** The name of one of ours, or the function of a file the config names, as it was when the run was opened. */
async function advantageOf({ advantage }: RunSpec): Promise<AdvantageKind | AdvantageFunction> {
  if (typeof advantage === 'string') return advantage;
  return (await importUserFunction(advantage.import, 'advantage')) as AdvantageFunction; // what it gives is checked
}

/** Fixes everything that decides the step's bits. A plan that is already stored for these groups stands. */
export async function planStep(input: {
  readonly run: RunHandle;
  readonly step: number;
  readonly attempt: number;
  readonly from: PolicyVersion;
  readonly reference: PolicyVersion;
  readonly klBeta: number;
  readonly overrides: Overrides;
  readonly packed: ObjectRef;
}): Promise<{ plan: ObjectRef; learningRate: number; snapshot: boolean }> {
  const { run, step, attempt, from, reference, klBeta, overrides } = input;
  const spec = await specOf(run);
  const store = storeOf(run);
  const { batch } = await readJson<PackedBatch>(run, input.packed);
  const peak = overrides.learningRate ?? spec.learningRate;
  const proposal: StepPlan = {
    lineage: run.lineage,
    step,
    attempt,
    from,
    batch,
    packed: input.packed,
    learningRate: learningRateAt({ step, maxSteps: spec.maxSteps, peak, schedule: spec.schedule }),
    temperature: spec.sampling.temperature,
    klBeta,
    reference,
    loss: spec.loss,
    optimizer: spec.optimizer,
    numIterations: spec.numIterations,
    microBatchSize: spec.microBatchSize,
    ...(spec.lora === null ? {} : { dropoutSeed: hash32('dropout', spec.seed, run.lineage, step) }),
    snapshot: step % spec.checkpoints.interval === 0 || step === spec.maxSteps || step === overrides.stopAfter,
  };
  const key = layout.plan(run.lineage, step, attempt, input.packed.sha256, from.replay);
  const { bytes } = await store.putIfAbsent(key, encodeJson(proposal));
  const plan = decodeJson<StepPlan>(bytes, key);
  const ref = { key, sha256: sha256(bytes), bytes: bytes.byteLength };
  return { plan: ref, learningRate: plan.learningRate, snapshot: plan.snapshot };
}
