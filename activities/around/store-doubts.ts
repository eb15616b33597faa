import os from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import { Context } from '@temporalio/activity';
import { ApplicationFailure, CancelledFailure } from '@temporalio/common';
import type { ActivityExecuteInput, ActivityInboundCallsInterceptor, Next } from '@temporalio/worker';
import { RatchetError } from '../../core/errors.ts';
import { storeMissedSignalName, type WorkerRole } from '../../core/names.ts';
import type { EvaluationPlace } from '../../core/eval/evaluation.ts';
import { layout } from '../../runs/layout.ts';
import type { StoreMissed } from '../../core/rl/run-state.ts';
import { type Opened, requireStore } from '../../runs/run-access.ts';
import { withHeartbeat } from './heartbeat.ts';
import type { StoreView } from './store-view.ts';
import { signalTo } from './tell-workflow.ts';

/** Signals the run what this worker does not see, or null once it sees the store again. */
type Tell = (why: string | null) => void;

export interface StoreDoubtsOptions {
  readonly role: WorkerRole;
  readonly view: StoreView;
  /** Called when this process does not see a run's store. The process must then release what it holds of that run. */
  readonly onMissed?: (run: string, error: RatchetError) => void;
  /** How long damage is retried before it is final. */
  readonly damagePatienceMs?: number;
}

/** Failures caused by another workflow or worker, so the store is not checked. */
const ofOthers: readonly string[] = ['TrainerSuperseded', 'TrainerBusy', 'CommitConflict', 'FaultInjected'];

/** A check that takes longer than this sends heartbeats. */
const quickMs = 500;
/** Limit for the check after a failure. No heartbeats are sent then, so a check that takes longer gives no answer. */
const lookMsMax = 2_000;
/** Short, so that another worker can take the activity quickly. */
const missedRetryMs = 1_000;
const damageRetryMs = 5_000;
/** Longer than network file systems cache names and listings, and than a server's wrong answers usually last. */
const damagePatienceDefaultMs = 60_000;
/** A server that does not answer is usually unreachable for every worker, so a process keeps its run this long before it releases it. */
const heldMs = 60_000;
/** How often the same warning is sent to a run. */
const tellAgainMs = 300_000;
/** Most entries kept: activities with damage, and runs that were notified. */
const doubtsMax = 1_000;

/**
 * Checks before an activity, and after its failure, whether this worker sees the store that the run was opened in. One worker's view may be
 * wrong, so a missing store is not a missing run: the activity fails for another worker to take, this worker stops polling for a while, and
 * the run shows which worker it is. Damage is read again, perhaps by another worker, before it is final.
 */
export class StoreDoubts implements ActivityInboundCallsInterceptor {
  readonly #options: StoreDoubtsOptions;
  /** When each activity first met damage. */
  readonly #damagedAt = new Map<string, number>();
  /** When each server stopped answering, by place. */
  readonly #silentSince = new Map<string, number>();
  /** Runs that were notified, by workflow and place. */
  readonly #told = new Map<string, { readonly at: number; readonly place: string; readonly tell: Tell }>();

  constructor(options: StoreDoubtsOptions) {
    this.#options = options;
  }

  async execute(input: ActivityExecuteInput, next: Next<ActivityInboundCallsInterceptor, 'execute'>): Promise<unknown> {
    const opened = openedIn(input.args[0]);
    try {
      if (opened) await requireHeard(opened);
      const result = await next(input);
      if (opened) this.#sees(placeOf(opened));
      return result;
    } catch (error) {
      if (opened && !isOfOthers(error)) await this.#doubt(opened, error, input.args[0]);
      throw isDamage(error) ? this.#lookedAtAgain(error) : error;
    }
  }

  /** Throws an error that names this worker if the store caused the failure; otherwise returns. */
  async #doubt(opened: Opened, failed: unknown, input: unknown): Promise<void> {
    const place = placeOf(opened);
    const error = isUnavailable(failed) ? failed : await missing(opened, failed);
    if (error === null) return;
    const told = new RatchetError(error.code, `${this.#name()}: ${error.message}`, {
      cause: error,
      retryAfterMs: error.retryAfterMs ?? missedRetryMs,
    });
    this.#options.view.missed(place, { look: () => looksWell(opened), seen: () => this.#isSeen(place) });
    this.#tell(place, input, told.message);
    const since = this.#silentSince.get(place) ?? performance.now();
    this.#silentSince.set(place, since);
    const isLong = performance.now() - since > heldMs;
    if (error.code === 'StoreNotSeen' || isLong) this.#options.onMissed?.(place, told);
    throw told;
  }

  #sees(place: string): void {
    this.#isSeen(place);
    this.#options.view.saw(place);
  }

  /** Notifies every run that was told the store was missing. */
  #isSeen(place: string): void {
    this.#silentSince.delete(place);
    for (const [key, one] of this.#told) {
      if (one.place !== place) continue;
      this.#told.delete(key);
      one.tell(null);
    }
  }

  /** Makes damage retryable for a while: a later read, or another worker, may find what was stored. */
  #lookedAtAgain(error: RatchetError): unknown {
    const { workflowExecution, activityId, retryPolicy } = Context.current().info;
    if (retryPolicy?.maximumAttempts === 1) return error; // no retry follows
    const key = `${workflowExecution?.runId} ${activityId}`;
    const since = this.#damagedAt.get(key) ?? performance.now();
    this.#damagedAt.delete(key);
    if (performance.now() - since >= (this.#options.damagePatienceMs ?? damagePatienceDefaultMs)) return error;
    this.#damagedAt.set(key, since);
    if (this.#damagedAt.size > doubtsMax) this.#damagedAt.delete(this.#damagedAt.keys().next().value!);
    return ApplicationFailure.create({
      type: error.code,
      message: `${error.message} It is read again before this is final (${this.#name()}).`,
      nonRetryable: false,
      nextRetryDelay: damageRetryMs,
      cause: error,
    });
  }

  #name(): string {
    const { role } = this.#options;
    return `${role === 'train' ? 'GPU' : role} worker ${process.pid} on ${os.hostname()}`;
  }

  /** Signals the run's workflow what this worker does not see, at most once per `tellAgainMs`. */
  #tell(place: string, input: unknown, why: string): void {
    const context = Context.current();
    const workflowId = runWorkflowOf(context.info, input);
    if (workflowId === null) return;
    const { client } = context;
    const key = `${workflowId} ${place}`;
    const at = performance.now();
    if (at - (this.#told.get(key)?.at ?? -Infinity) < tellAgainMs) return;
    const tell: Tell = (said) => {
      const told: StoreMissed = { worker: this.#name(), why: said };
      process.stderr.write(`${said ?? `${place} is seen again`}\n`);
      // If the signal fails, the run still learns of the problem from the failed attempts.
      signalTo(client, workflowId, storeMissedSignalName, told).catch(() => undefined);
    };
    this.#told.set(key, { at, place, tell });
    if (this.#told.size > doubtsMax) this.#told.delete(this.#told.keys().next().value!);
    tell(why);
  }
}

/** Returns the store that an activity works in: that of its run, its evaluation or its search. */
function openedIn(input: unknown): Opened | null {
  const {
    run,
    handle,
    input: asked,
    takesOver,
  } = (input ?? {}) as {
    run?: unknown;
    handle?: unknown;
    input?: { results?: EvaluationPlace };
    takesOver?: { handle?: unknown };
  };
  if (isOpened(run, 'store')) return run as Opened;
  // A run that code of another version had opened.
  if (isOpened(takesOver?.handle, 'store')) return takesOver!.handle as Opened;
  if (isOpened(handle, 'place')) return handle as Opened;
  // An evaluation that is opened inside a run.
  return asked?.results?.prefix ? { place: asked.results, spec: { key: layout.run(), sha256: '' } } : null;
}

function isOpened(value: unknown, key: string): boolean {
  return typeof value === 'object' && value !== null && 'spec' in value && key in value;
}

/** The store of a run, as leases of GPU workers name it. */
function placeOf(opened: Opened): string {
  const { store, name } = 'place' in opened ? opened.place : opened;
  return `${store}${name}`;
}

/** Returns the id of the workflow to signal: the run's own, or for rounds the run that started them. */
function runWorkflowOf({ workflowType, workflowExecution }: Context['info'], input: unknown): string | null {
  const { tells } = (input ?? {}) as { readonly tells?: unknown };
  if (workflowType === 'trainRun') return workflowExecution?.workflowId ?? null;
  return workflowType === 'playRounds' && typeof tells === 'string' ? tells : null;
}

/** Throws unless the place is the run's store, so that nothing is written elsewhere. */
async function requireHeard(opened: Opened): Promise<void> {
  const { info } = Context.current();
  const check = requireStore(opened);
  const isQuick = await Promise.race([check.then(() => true), delay(quickMs, false, { ref: false })]);
  if (isQuick) return;
  if (info.heartbeatTimeoutMs === undefined) return check;
  // Keeps the previous attempt's heartbeat details for this attempt and the next one.
  await withHeartbeat(
    () => check,
    () => info.heartbeatDetails as unknown,
  );
}

/** Returns why the store is not seen from here; null if it is seen, or if the check takes too long. */
async function missing(opened: Opened, failed: unknown): Promise<RatchetError | null> {
  if (failed instanceof RatchetError && failed.code === 'StoreNotSeen') return failed;
  return Promise.race([
    requireStore(opened, { isNow: true }).then(
      () => null,
      (error: unknown) => (error instanceof RatchetError && error.code === 'StoreNotSeen' ? error : null),
    ),
    delay(lookMsMax, null, { ref: false }),
  ]);
}

async function looksWell(opened: Opened): Promise<boolean> {
  return requireStore(opened, { isNow: true }).then(
    () => true,
    () => false,
  );
}

function isOfOthers(error: unknown): boolean {
  if (error instanceof CancelledFailure) return true;
  return error instanceof RatchetError && ofOthers.includes(error.code);
}

function isUnavailable(error: unknown): error is RatchetError {
  return error instanceof RatchetError && error.code === 'StoreUnavailable';
}

function isDamage(error: unknown): error is RatchetError {
  return error instanceof RatchetError && error.code === 'CheckpointDamaged';
}
