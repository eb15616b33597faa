import { layout } from '../runs/layout.ts';
import { weightsReadWholeBytesMax } from '../core/limits.ts';
import { versionName } from '../core/names.ts';
import type { LostWork } from '../core/rl/lost-work.ts';
import type { ObjectRef, PolicyVersion, RunHandle, StepPlan } from '../core/rl/run-state.ts';
import { failpoint } from '../store/failpoints.ts';
import { isVersionSound, type VerifyOptions } from '../store/version-files.ts';
import { isOptimizerSound } from '../runs/versions/optimizer-state.ts';
import type { TrainOutcome } from '../backends/trainer/index.ts';
import { EngineFailures, halvedRows } from '../core/rl/engine-failures.ts';
import { lastProgress, withHeartbeat } from './around/heartbeat.ts';
import { type PlannedStep, planStep, type StepToPlan } from '../learn/plan-step.ts';
import type { PolicyTrainer, Recovery } from '../learn/policy-trainer.ts';
import { readCommit, readJson, storeOf } from '../runs/run-access.ts';
import { settleForgotten } from '../runs/lineages/settle-version.ts';
import { goingOn } from './trainer-claims.ts';
import type { TrainerDrain } from './around/trainer-drain.ts';
import type { ProcessLease } from './around/process-lease.ts';
import type { PendingVersions } from '../learn/pending-versions.ts';
import { lostIn, type WorkProgress, WorkUnderWay } from './around/work-under-way.ts';

export interface TrainedBatch extends PlannedStep {
  /** null when no version was made: the batch was refused, or `replay` says what came first. */
  readonly policy: PolicyVersion | null;
  readonly reason?: string;
  /** Set when memory ran out: the step may be planned once more with so many rows at once. */
  readonly halvedTo?: number;
  /** Set when retraining gave other weights than the plan's version: the step is to be planned from these. */
  readonly replay: PolicyVersion | null;
  /** Optimizer state at this version, if the plan asked for a snapshot, or the process is to end. */
  readonly optimizer: ObjectRef | null;
  /**
   * Place where the version waits for its commit, in the run's own folder; null when it is uploaded after the commit.
   */
  readonly pendingAt: string | null;
  /** Identity of the engine, on which the bits depend besides the plan; null when the trainer does not report one. */
  readonly engine: string | null;
  readonly metrics: Readonly<Record<string, number>>;
  readonly recovery: Recovery | null;
  readonly seconds: number;
  /** Work that earlier attempts lost; absent without any. */
  readonly lost?: LostWork;
}

export interface TrainDependencies {
  readonly trainer: PolicyTrainer;
  readonly pending: PendingVersions;
  readonly lease: ProcessLease;
  /** How this process comes to its end; missing: it ends at once. */
  readonly drain?: TrainerDrain;
}

/**
 * Applies the plan's batch to the plan's version; the result waits for its commit outside its place in the store. A
 * retry in the same process returns the result; in another process it restores, replays the stored batches, and repeats
 * the step. Stops without traces when another process holds the run by now.
 */
export const createTrainBatch = ({ trainer, pending, lease, drain }: TrainDependencies) => {
  let last: { readonly task: string; readonly result: TrainedBatch } | null = null;
  const failures = new EngineFailures();
  return async (input: StepToPlan & { readonly epoch: number }): Promise<TrainedBatch> => {
    const { run, step } = input;
    const work = new WorkUnderWay(lastProgress<WorkProgress>());
    const mayGoOn = goingOn(run, input.epoch, lease);
    return withHeartbeat(
      () => planAndTrain().finally(() => work.end()),
      () => ({ ...work.progress(), waitsFor: trainer.waitsFor() }),
    );

    async function planAndTrain(): Promise<TrainedBatch> {
      work.goOnFrom(null);
      work.begin(`step ${step}`);
      await mayGoOn();
      const planned = await planStep(input);
      await failpoint('plan.stored');
      // The run is part of it: two runs of one config have the very same plans, and each needs its own weights stored.
      const task = `${run.store}${run.name}/${run.lineage}#${planned.plan.sha256}`;
      return failures.during(task, `step ${step}`, () => attempt(task, planned));
    }

    async function attempt(task: string, planned: PlannedStep): Promise<TrainedBatch> {
      if (last?.task === task) return { ...last.result, ...lostIn(work.lost) };
      const plan = await readJson<StepPlan>(run, planned.plan);
      const recovery = await trainer.bringTo(run, plan.from, mayGoOn);
      const none = {
        ...planned,
        policy: null,
        replay: null,
        optimizer: null,
        pendingAt: null,
        engine: null,
        metrics: {},
        seconds: 0,
      };
      const replay = await keepReplayed({ trainer, pending, lease }, run, plan.from, recovery);
      if (replay) return { ...none, replay, recovery, ...lostIn(work.lost) };

      await mayGoOn();
      const startedAt = performance.now();
      let outcome: TrainOutcome;
      try {
        outcome = await trainer.train(run, plan);
      } catch (error) {
        const halvedTo = halvedRows(plan, error, { diedBefore: failures.diedOf(task) });
        if (halvedTo === null) throw error;
        return { ...none, halvedTo, reason: (error as Error).message, recovery, ...lostIn(work.lost) };
      }
      await failpoint('train.applied');
      await mayGoOn();
      // The next trainer continues from this version: without the optimizer's state it would train earlier steps again.
      const snapshot = plan.snapshot || drain?.isDraining === true;
      const wish = { snapshot, canary: plan.packed };
      const made = outcome.applied
        ? await trainer.keepPending(pending, run, { version: { step, digest: outcome.digest }, ...wish })
        : null;
      const result: TrainedBatch = {
        ...none,
        snapshot,
        policy: made?.policy ?? null,
        ...(outcome.reason === undefined ? {} : { reason: outcome.reason }),
        optimizer: made?.optimizer ?? null,
        pendingAt: made?.pendingAt ?? null,
        engine: await trainer.fingerprint(),
        metrics: outcome.metrics,
        recovery,
        seconds: (performance.now() - startedAt) / 1000,
        ...lostIn(work.lost),
      };
      last = { task, result };
      if (made !== null) drain?.trained({ owner: `${run.store}${run.name}`, ...result });
      return result;
    }
  };
};

/**
 * Makes a committed version that was lost before its upload again from stored batches, and keeps it pending here.
 * Returns the version that replaces it when the replay differs.
 */
export const createRemakeVersion = ({ trainer, pending, lease }: TrainDependencies) => {
  const failures = new EngineFailures();
  return async (input: {
    readonly run: RunHandle;
    readonly policy: PolicyVersion;
    readonly epoch: number;
  }): Promise<Remade> => {
    const { run, policy } = input;
    const work = `${run.store}${run.name}/${policy.digest}`;
    return withHeartbeat(
      () => failures.during(work, `making ${versionName(policy)} again`, attempt),
      () => ({ waitsFor: trainer.waitsFor() }),
    );

    async function attempt(): Promise<Remade> {
      const mayGoOn = goingOn(run, input.epoch, lease);
      await mayGoOn();
      if (pending.find(run, policy)) return { replay: null, recovery: null };
      const recovery = await trainer.bringTo(run, policy, mayGoOn);
      const replay = await keepReplayed({ trainer, pending, lease }, run, policy, recovery);
      if (!replay && !pending.find(run, policy)) await remake({ trainer, pending, lease }, run, policy);
      return { replay, recovery };
    }
  };
};

interface Remade {
  /** Version that replaces the requested one. */
  readonly replay: PolicyVersion | null;
  readonly recovery: Recovery | null;
}

/** Whether a version is complete in the store, byte for byte, with the optimizer's state if it has one. */
export async function isStored(
  run: RunHandle,
  policy: PolicyVersion,
  optimizer: ObjectRef | null,
  options: VerifyOptions = {},
): Promise<boolean> {
  const store = storeOf(run);
  if (!(await store.list(policy.weights)).includes(policy.file.key)) return false; // before anything is fetched
  return (await isVersionSound(store, policy, options)) && (optimizer === null || isOptimizerSound(store, optimizer));
}

/** Versions of these committed steps whose upload was interrupted, or whose file on a disk was damaged since. */
export async function findUnpublished(input: {
  readonly run: RunHandle;
  readonly steps: readonly number[];
}): Promise<readonly PolicyVersion[]> {
  const missing: PolicyVersion[] = [];
  for (const step of input.steps) {
    const found = await readCommit(input.run, step);
    if (!found) continue;
    const { policy } = found.commit;
    if (await isWhole(input.run, policy)) continue;
    if (!(await settleForgotten(input.run, found.commit))) missing.push(policy);
  }
  return missing;
}

/** A bucket guarantees its bytes, and copies are compared when made; a disk does neither. */
async function isWhole(run: RunHandle, policy: PolicyVersion): Promise<boolean> {
  const store = storeOf(run);
  if (store.uri.startsWith('file:')) return isStored(run, policy, null, { weightsBytesMax: weightsReadWholeBytesMax });
  const there = await store.list(policy.weights);
  return there.includes(policy.file.key) && there.includes(policy.sums.key);
}

/** After a recovery: keeps missing versions pending, and differing ones under a separate name. */
async function keepReplayed(
  dependencies: TrainDependencies,
  run: RunHandle,
  asked: PolicyVersion,
  recovery: Recovery | null,
): Promise<PolicyVersion | null> {
  const { trainer, pending } = dependencies;
  if (recovery?.differs) {
    const { step } = asked;
    const { digest } = recovery.differs;
    const known = pending.find(run, { step, digest });
    if (known) return known.policy;
    const version = { step, digest, replay: await nextReplay(run, asked) };
    return (await trainer.keepPending(pending, run, { version, snapshot: false, canary: null })).policy;
  }
  const isMadeAgain = recovery !== null && recovery.replayedSteps > 0;
  if (isMadeAgain && !pending.find(run, asked)) await remake(dependencies, run, asked);
  return null;
}

/** First number with a free folder: a replay that no commit names may be the previous end of the run. */
async function nextReplay(run: RunHandle, { step, replay = 0 }: PolicyVersion): Promise<number> {
  for (let next = replay + 1; ; next += 1) {
    if ((await storeOf(run).list(layout.weights(run.lineage, step, next))).length === 0) return next;
  }
}

async function remake({ trainer, pending }: TrainDependencies, run: RunHandle, asked: PolicyVersion): Promise<void> {
  const found = await readCommit(run, asked.step);
  const isCommitted = found?.commit.policy.digest === asked.digest;
  const optimizer = isCommitted ? found.commit.optimizer : null;
  if (await isStored(run, asked, optimizer)) return;
  const plan = isCommitted && found.commit.plan ? await readJson<StepPlan>(run, found.commit.plan) : null;
  const { file: _, ...version } = asked;
  await trainer.keepPending(pending, run, { version, snapshot: optimizer !== null, canary: plan?.packed ?? null });
}
