import { randomBytes } from 'node:crypto';
import { mkdirSync, readdirSync, rmSync, statSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import type { Client } from '@temporalio/client';
import { type ActivitySlotInfo, type CustomSlotSupplier, Worker, type WorkerOptions } from '@temporalio/worker';
import { createHoldActivities, createTrainActivities, createUploadActivities } from '../activities/index.ts';
import { PolicyTrainer } from '../activities/policy-trainer.ts';
import { specOf } from '../activities/run-access.ts';
import { TrainerSeat } from '../activities/trainer-seat.ts';
import { VersionSpool } from '../activities/version-spool.ts';
import { openTrainer } from '../backends/trainer/index.ts';
import { RatchetError } from '../core/errors.ts';
import { taskQueues, trainerHeldSignalName, trainerQueues } from '../core/names.ts';
import { loadTokenizer } from '../engine/index.ts';

/**
 * One GPU process. On the shared queue it is held, by one run at a time; what that run wants trained and uploaded comes
 * over queues of the process's own, each with one slot.
 */
export async function openTrainerWorkers(common: WorkerOptions, client: Client): Promise<{ run(): Promise<void> }> {
  const seat = new TrainerSeat(`${hostName()}-${process.pid}-${randomBytes(3).toString('hex')}`);
  const dependencies = {
    seat,
    trainer: new PolicyTrainer(async (run) =>
      openTrainer((await specOf(run)).trainer, (line) => process.stderr.write(`${line}\n`)),
    ),
    spool: new VersionSpool(openSpoolFolder(), { isElsewhere: process.env['RATCHET_SPOOL'] !== undefined }),
    tokenizer: loadTokenizer,
  };
  const holding = createHoldActivities(dependencies, async (workflowId, held) =>
    client.workflow.getHandle(workflowId).signal(trainerHeldSignalName, held),
  );
  const queues = trainerQueues(seat.holder);
  const one = { ...common, maxConcurrentActivityTaskPolls: 1 };
  const alone = { ...one, maxConcurrentActivityTaskExecutions: 1 };
  const workers = await Promise.all([
    Worker.create({
      ...one,
      taskQueue: taskQueues.train,
      activities: holding,
      tuner: { ...fewSlots, activityTaskSlotSupplier: new SeatSlot(seat) },
    }),
    Worker.create({ ...alone, taskQueue: queues.hold, activities: holding }),
    Worker.create({ ...alone, taskQueue: queues.steps, activities: createTrainActivities(dependencies) }),
    Worker.create({ ...alone, taskQueue: queues.uploads, activities: createUploadActivities(dependencies) }),
  ]);
  return { run: async () => void (await Promise.all(workers.map((worker) => worker.run()))) };
}

const fewSlots = {
  workflowTaskSlotSupplier: { type: 'fixed-size', numSlots: 1 },
  localActivityTaskSlotSupplier: { type: 'fixed-size', numSlots: 1 },
  nexusTaskSlotSupplier: { type: 'fixed-size', numSlots: 1 },
} as const;

/** The shared queue's one slot: not offered while a run holds the process over the process's own queue. */
class SeatSlot implements CustomSlotSupplier<ActivitySlotInfo> {
  readonly type = 'custom';
  readonly #seat: TrainerSeat;
  #isGiven = false;

  constructor(seat: TrainerSeat) {
    this.#seat = seat;
  }

  async reserveSlot(_: unknown, signal: AbortSignal): Promise<object> {
    while (this.#isGiven || !this.#seat.isFree) await this.#seat.change(signal);
    this.#isGiven = true;
    return {};
  }

  tryReserveSlot(): null {
    return null;
  }

  markSlotUsed(): void {
    // It counts from its reservation.
  }

  releaseSlot(): void {
    this.#isGiven = false;
    this.#seat.tellChange();
  }
}

/** Part of a queue's name, so without what would be odd there. */
function hostName(): string {
  return os
    .hostname()
    .replaceAll(/[^A-Za-z0-9.-]/g, '-')
    .slice(0, 40);
}

/**
 * A folder of this process's own on its own disk, beside those of others; what dead processes left there is removed. Its
 * loss costs a replay, never a version.
 */
function openSpoolFolder(): string {
  const parent = process.env['RATCHET_SPOOL'] ?? path.join(os.tmpdir(), `ratchet-spool-${os.userInfo().uid}`);
  mkdirSync(parent, { recursive: true, mode: 0o700 });
  const { uid } = statSync(parent);
  if (uid !== os.userInfo().uid) {
    throw new RatchetError(
      'Unsupported',
      `${parent} belongs to somebody else (user ${uid}); set RATCHET_SPOOL to a folder of yours`,
    );
  }
  for (const name of readdirSync(parent)) {
    const pid = Number(/^(\d+)-[0-9a-f]+$/.exec(name)?.[1]);
    if (pid > 0 && !isAlive(pid)) rmSync(path.join(parent, name), { recursive: true, force: true });
  }
  const folder = path.join(parent, `${process.pid}-${randomBytes(4).toString('hex')}`);
  mkdirSync(folder, { mode: 0o700 });
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
