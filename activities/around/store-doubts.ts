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

/** Reports to a run what this worker cannot see or read; null once it can. */
type Tell = (why: string | null, isOlder: boolean) => void;

export interface StoreDoubtsOptions {
  readonly role: WorkerRole;
  readonly view: StoreView;
  /** Called when this process does not see a run's store. The process must then release what it holds of that run. */
  readonly onMissed?: (run: string, error: RatchetError) => void;
  /** How long damage is retried before it is final. */
  readonly damagePatienceMs?: number;
  /** Least time between later notices to a run, after two changes. */
  readonly changeMs?: number;
}

/** Reports about one place to a run. */
interface Told {
  readonly place: string;
  readonly tell: Tell;
  /** Why the place is not seen; null if it is seen. */
  why: string | null;
  /** The place is visible, but has objects of a newer version than this worker's. */
  isOlder: boolean;
  /** Last report, and its time. */
  told: string | null;
  at: number;
  /** Number of changes reported with less than that time between them. */
  changes: number;
  later: NodeJS.Timeout | null;
}

/** Failures caused by another workflow or worker, so the store is not checked. */
const ofOthers: readonly string[] = ['TrainerSuperseded', 'TrainerBusy', 'CommitConflict', 'FaultInjected'];

/** Activities that a command waits for. They fail for good if every worker is too old, or the command would wait for ever. */
const askedByPeople: readonly string[] = [
  'openRun',
  'checkRewind',
  'setBudget',
  'planEvaluations',
  'openEvaluation',
  'openRescore',
  'planPromptSearch',
  'openPromptSearch',
];

/** A longer check sends heartbeats. */
const quickMs = 500;
/** Limit for the check after a failure. No heartbeats are sent then, so a check that takes longer gives no answer. */
const lookMsMax = 2_000;
/** Short, so that another worker can take the activity quickly. */
const missedRetryMs = 1_000;
const damageRetryMs = 5_000;
/** Longer than network file systems cache names and listings, and than a server's wrong answers last as a rule. */
const damagePatienceDefaultMs = 60_000;
/**
 * A server that does not answer is probably unreachable for every worker, so a process keeps its run this long before
 * it releases it.
 */
const heldMs = 60_000;
/** How often the same warning is sent to a run. */
const tellAgainMs = 300_000;
/** The first two changes (missing, visible again) are reported at once, later ones this far apart. */
const changeDefaultMs = 60_000;
const changesAtOnce = 2;
/** Limit for remembered damaged activities, and for notified runs. */
const doubtsMax = 1_000;

/**
 * Distrusts one worker's view of a store. Before an activity begins, and after it failed, this checks that the store
 * its run was opened in is there. If not, the activity is left to other workers: this one takes no work for a while,
 * and the run is notified with the worker's name. The same holds for a worker that cannot read a newer version's
 * objects. Damage is read again, perhaps by another worker, before it is final.
 */
export class StoreDoubts implements ActivityInboundCallsInterceptor {
  readonly #options: StoreDoubtsOptions;
  /** When each activity first met damage. */
  readonly #damagedAt = new Map<string, number>();
  /** Time since which a place's server has not answered, and of its last failure. */
  readonly #silent = new Map<string, { readonly since: number; readonly last: number }>();
  /** Notified runs, by workflow and place. */
  readonly #told = new Map<string, Told>();

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
      const isFinal = isOfNewer(error) && isWaitedFor();
      if (opened && !isFinal && !isOfOthers(error)) await this.#doubt(opened, error, input.args[0]);
      throw isDamage(error) || isFinal ? this.#lookedAtAgain(error) : error;
    }
  }

  /** Throws an error that names this worker if the store caused the failure; otherwise returns. */
  async #doubt(opened: Opened, failed: unknown, input: unknown): Promise<void> {
    const place = placeOf(opened);
    const isOlder = isOfNewer(failed);
    const error = isUnavailable(failed) || isOlder ? failed : await missing(opened, failed);
    if (error === null) return;
    const version = isOlder ? ' is of an older version' : '';
    const told = new RatchetError(error.code, `${this.#name()}${version}: ${error.message}`, {
      cause: error,
      retryAfterMs: error.retryAfterMs ?? missedRetryMs,
    });
    // Looking at the store does not show what this version can read.
    const look = () => (isOlder ? Promise.resolve(false) : looksWell(opened));
    this.#options.view.missed(place, { look, seen: () => this.#isSeen(place) });
    this.#tell(place, input, { why: told.message, isOlder });
    const last = performance.now();
    const before = this.#silent.get(place);
    const since = before && last - before.last <= heldMs ? before.since : last;
    this.#silent.set(place, { since, last });
    const isLong = last - since > heldMs;
    if (error.code === 'StoreNotSeen' || isOlder || isLong) this.#options.onMissed?.(place, told);
    throw told;
  }

  #sees(place: string): void {
    this.#silent.delete(place);
    this.#isSeen(place);
    this.#options.view.saw(place);
  }

  /** Notifies every run that was warned about the missing store. */
  #isSeen(place: string): void {
    for (const one of this.#told.values()) if (one.place === place) this.#change(one, null);
  }

  /** Reports a change now, or once enough time has passed, if it still is one. */
  #change(one: Told, why: string | null): void {
    one.why = why;
    if (one.later) return;
    const { changeMs = changeDefaultMs } = this.#options;
    const isOther = (): boolean => (one.why === null) !== (one.told === null);
    const quietMs = performance.now() - one.at;
    if (!isOther() && (why === null || quietMs < tellAgainMs)) return;
    const say = (): void => {
      one.told = one.why;
      one.at = performance.now();
      one.tell(one.why, one.isOlder);
    };
    if (quietMs >= changeMs) one.changes = 0;
    one.changes += 1;
    if (one.changes <= changesAtOnce) return say();
    one.later = setTimeout(() => {
      one.later = null;
      if (isOther()) say();
    }, changeMs - quietMs).unref();
  }

  /** Makes damage retryable for a while: a later read, or another worker, may find the stored bytes. */
  #lookedAtAgain(error: RatchetError): unknown {
    const { workflowExecution, activityId, retryPolicy } = Context.current().info;
    if (retryPolicy?.maximumAttempts === 1) return error; // no retry follows
    const key = `${workflowExecution?.runId} ${activityId}`;
    const ends = { type: error.code, message: error.message, cause: error };
    const since = this.#damagedAt.get(key) ?? performance.now();
    this.#damagedAt.delete(key);
    if (performance.now() - since >= (this.#options.damagePatienceMs ?? damagePatienceDefaultMs))
      return error.isRetryable ? ApplicationFailure.create({ ...ends, nonRetryable: true }) : error;
    this.#damagedAt.set(key, since);
    if (this.#damagedAt.size > doubtsMax) this.#damagedAt.delete(this.#damagedAt.keys().next().value!);
    return ApplicationFailure.create({
      ...ends,
      message: `${error.message} It is read again before the failure is final (${this.#name()}).`,
      nonRetryable: false,
      nextRetryDelay: damageRetryMs,
    });
  }

  #name(): string {
    const { role } = this.#options;
    return `${role === 'train' ? 'GPU' : role} worker ${process.pid} on ${os.hostname()}`;
  }

  /** Notifies the run's workflow that this worker does not see the place. */
  #tell(place: string, input: unknown, { why, isOlder }: { readonly why: string; readonly isOlder: boolean }): void {
    const context = Context.current();
    const workflowId = runWorkflowOf(context.info, input);
    if (workflowId === null) return;
    const { client } = context;
    const key = `${workflowId} ${place}`;
    const known = this.#told.get(key);
    if (known) {
      known.isOlder = isOlder;
      return this.#change(known, why);
    }
    const tell: Tell = (said, isOld) => {
      const told: StoreMissed = { worker: this.#name(), why: said, ...(isOld ? { isOlder: true } : {}) };
      process.stderr.write(`${said ?? `work in ${place} goes on`}\n`);
      // A run that cannot be notified learns of it from its failed attempts.
      signalTo(client, workflowId, storeMissedSignalName, told).catch(() => undefined);
    };
    const one: Told = { place, tell, why: null, isOlder, told: null, at: -Infinity, changes: 0, later: null };
    this.#told.set(key, one);
    if (this.#told.size > doubtsMax) this.#told.delete(this.#told.keys().next().value!);
    this.#change(one, why);
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

function isOfNewer(error: unknown): error is RatchetError {
  return error instanceof RatchetError && error.code === 'WrittenByNewer';
}

/** Whether a person waits for it, who should learn that a newer version is needed. */
function isWaitedFor(): boolean {
  return askedByPeople.includes(Context.current().info.activityType);
}

function isDamage(error: unknown): error is RatchetError {
  return error instanceof RatchetError && error.code === 'CheckpointDamaged';
}
