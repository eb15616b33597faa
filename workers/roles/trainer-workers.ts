import type { ActivitySlotInfo, CustomSlotSupplier, Worker, WorkerOptions } from '@temporalio/worker';
import {
  createLeaseActivities,
  createTrainActivities,
  createUploadActivities,
} from '../../activities/of-gpu-worker.ts';
import { PolicyTrainer } from '../../learn/policy-trainer.ts';
import { specOf } from '../../runs/run-access.ts';
import { TrainerDrain } from '../../activities/around/trainer-drain.ts';
import type { StoreView } from '../../activities/around/store-view.ts';
import type { ProcessLease } from '../../activities/around/process-lease.ts';
import { PendingVersions } from '../../learn/pending-versions.ts';
import { openTrainer } from '../../backends/trainer/index.ts';
import { taskQueues, trainerLeasedSignalName, trainerQueues } from '../../core/names.ts';
import { loadTokenizer } from '../../engine/model/tokenizer/load-tokenizer.ts';
import type { JoinedPool } from './joined-pool.ts';
import { PoolMembership } from './pool-membership.ts';
import { fewSlots } from './few-slots.ts';
import { type OpenedWorker, runTogether } from './run-worker.ts';
import { pendingFolderHere } from '../stack/pending-folder.ts';
import type { TemporalLink } from '../temporal/temporal-link.ts';

/**
 * One GPU process. On the shared queue one run at a time holds it; that run's training and uploads come over queues of
 * the process's own, each with one slot.
 */
export async function openTrainerWorkers(options: TrainerOptions): Promise<OpenedWorker> {
  const { common, link, open, view, lease, graceMs, say, joined } = options;
  const drain = new TrainerDrain();
  const dependencies = {
    lease,
    drain,
    trainer: new PolicyTrainer(async (run) =>
      openTrainer((await specOf(run)).trainer, (line) => process.stderr.write(`${line}\n`)),
    ),
    pending: new PendingVersions(pendingFolderHere(say), { isElsewhere: process.env['RATCHET_PENDING'] !== undefined }),
    tokenizer: loadTokenizer,
  };
  const holding = createLeaseActivities(dependencies, async (workflowId, held) =>
    link.client.workflow.getHandle(workflowId).signal(trainerLeasedSignalName, held),
  );
  const queues = trainerQueues(lease.holder);
  const one = { ...common, maxConcurrentActivityTaskPolls: 1 };
  const alone = { ...one, maxConcurrentActivityTaskExecutions: 1 };
  const isDrained = graceMs >= graceMsDrained;
  // Work under way is drained before these workers shut down, so their own grace can be short.
  const ending = isDrained ? { shutdownGraceTime: lastMs, shutdownForceTime: 3 * lastMs } : {};
  const activity = [...(common.interceptors?.activity ?? []), () => ({ inbound: drain })];
  const working = { ...alone, ...ending, interceptors: { activity } };
  const workers = await Promise.all([
    // A trainer of a pool is given to runs by name: it takes none from the shared queue.
    joined
      ? open({ ...one, taskQueue: queues.hold, activities: holding, maxConcurrentActivityTaskExecutions: holdsOfPool })
      : open({
          ...one,
          taskQueue: taskQueues.train,
          activities: holding,
          tuner: { ...fewSlots, activityTaskSlotSupplier: new LeaseSlot(lease, view) },
        }),
    ...(joined ? [] : [open({ ...alone, taskQueue: queues.hold, activities: holding })]),
    open({ ...working, taskQueue: queues.steps, activities: createTrainActivities(dependencies) }),
    open({ ...working, taskQueue: queues.uploads, activities: createUploadActivities(dependencies) }),
  ]);
  const membership = joined && new PoolMembership({ client: () => link.client, joined, lease, say });
  const together = joiningWhile(runTogether(workers), membership);
  if (!isDrained) return together;
  const takingRuns = workers.slice(0, -2);
  const leave = async (): Promise<void> => {
    const left = await drain.drain(graceMs, { isHeld: lease.heldBy !== null });
    if (left.length > 0)
      say(`not finished within the grace of ${graceMs / 1000} s, done again by another: ${left.join(', ')}`);
    lease.clear();
    together.shutdown();
  };
  return {
    ...together,
    shutdown: () => {
      lease.close();
      void membership?.leave();
      for (const worker of takingRuns) if (worker.getState() === 'RUNNING') worker.shutdown();
      void leave();
    },
  };
}

/** It is a member of its pool from when it runs until it shuts down. */
function joiningWhile(worker: OpenedWorker, membership: PoolMembership | undefined): OpenedWorker {
  if (membership === undefined) return worker;
  return {
    ...worker,
    run: () => {
      void membership.stay();
      return worker.run();
    },
    shutdown: () => {
      void membership.leave();
      worker.shutdown();
    },
  };
}

/** A run's next lease comes while its former one ends: after continue-as-new, or when it was not heard of. */
const holdsOfPool = 2;

interface TrainerOptions {
  readonly common: WorkerOptions;
  readonly link: TemporalLink;
  readonly open: (options: WorkerOptions) => Promise<Worker>;
  readonly view: StoreView;
  readonly lease: ProcessLease;
  readonly graceMs: number;
  readonly say: (line: string) => void;
  /** The pool that gives it to runs; missing: it takes runs of no pool. */
  readonly joined?: JoinedPool;
}

/** Least grace in which a step might finish; with a shorter one, work under way is abandoned at once. */
const graceMsDrained = 2_000;
/** Time for the final report of work that was given up. */
const lastMs = 500;

/**
 * The single slot of the shared queue. It is not offered while a run holds the process through the process's own queue, or while the
 * process does not see a store.
 */
class LeaseSlot implements CustomSlotSupplier<ActivitySlotInfo> {
  readonly type = 'custom';
  readonly #lease: ProcessLease;
  readonly #view: StoreView;
  #isGiven = false;

  constructor(lease: ProcessLease, view: StoreView) {
    this.#lease = lease;
    this.#view = view;
  }

  async reserveSlot(_: unknown, signal: AbortSignal): Promise<object> {
    for (;;) {
      if (!this.#view.isClear) await this.#view.change(signal);
      else if (this.#isGiven || !this.#lease.isFree) await this.#lease.change(signal);
      else break;
    }
    this.#isGiven = true;
    return {};
  }

  tryReserveSlot(): null {
    return null;
  }

  markSlotUsed(): void {
    // Nothing to do: the slot counts from its reservation.
  }

  releaseSlot(): void {
    this.#isGiven = false;
    this.#lease.tellChange();
  }
}
