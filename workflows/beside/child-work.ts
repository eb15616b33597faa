import { WorkflowExecutionAlreadyStartedError } from '@temporalio/common';
import {
  CancellationScope,
  ChildWorkflowCancellationType,
  condition,
  ContinueAsNew,
  getExternalWorkflowHandle,
  isCancellation,
  ParentClosePolicy,
  type SignalDefinition,
  sleep,
  workflowInfo,
} from '@temporalio/workflow';
import type { RunSpec } from '../../config/run-spec.ts';
import { queuePriorityOf } from '../../core/fleet/rollout-turns.ts';
import { evaluationLookAgainMs } from '../../core/limits.ts';
import { memoKeys } from '../../core/names.ts';
import type { Overrides } from '../../core/rl/run-state.ts';
import { onSignal } from '../control/listen.ts';
import type { RunControl } from '../control/run-control.ts';
import { awaitedLater } from './beside.ts';
import { rootCause } from './root-cause.ts';

/*
 * Work in child workflows that outlive the execution which began them: evaluations and prompt searches. A child is
 * named after its work, keeps its results in the store, and signals its end to a given workflow id. So a parent that is
 * continued or restarted begins it again by that name: it is still running, continues from the store, or has already
 * signalled its end.
 */

/** Wait for an id that another execution has; it doubles. */
const idTakenFirstMs = 500;

/** Signal of a child's end. */
type ChildNotice<Result> = { readonly workflowId: string } & (
  | { readonly result: Result }
  | { readonly failed: string }
);

/** Recipient of the signal; absent when no workflow asked for one. */
interface Notified {
  readonly notify?: { readonly workflowId: string; readonly signal: string } | undefined;
}

/** Options for children that outlive their parent; an ended one may be started again under its id. */
const outlivingUs = {
  parentClosePolicy: ParentClosePolicy.ABANDON,
  cancellationType: ChildWorkflowCancellationType.ABANDON,
  workflowIdReusePolicy: 'ALLOW_DUPLICATE',
} as const;

/** Start options of a child, besides its input. */
type ChildOptions = typeof outlivingUs & { readonly workflowId: string };

/** A child of a run plays with the rollout workers of the run's pool, and has its priority there. */
export function memoOfPool(
  { queue }: Pick<RunSpec, 'queue'>,
  overrides: Overrides,
): { readonly memo?: Record<string, string | number> } {
  if (queue === undefined) return {};
  const priority = queuePriorityOf(queue, overrides);
  return { memo: { [memoKeys.pool]: queue.pool, ...(priority === 0 ? {} : { [memoKeys.priority]: priority }) } };
}

interface StartedChild<Result> {
  result(): Promise<Result>;
}

/** Why there is no result, in the child's words. */
export class ChildWorkFailed extends Error {}

/** The parent's side: children of one kind. */
export class ChildWork<Result> {
  /** Received signals by workflow id, until they are read. */
  readonly #notices = new Map<string, ChildNotice<Result>>();
  /**
   * The server accepts no workflow task that begins and cancels a child at once, so a cancel first awaits the start.
   */
  readonly #starting = new Map<string, Promise<unknown>>();
  #cancelling: Promise<unknown> = Promise.resolve();

  constructor(
    ended: SignalDefinition<[ChildNotice<Result>], 'evaluation-ended' | 'prompt-branch-ended'>,
    control: Pick<RunControl, 'ignored'>,
  ) {
    onSignal(
      ended,
      (notice: ChildNotice<Result>) => void this.#notices.set(notice.workflowId, notice),
      (problem) => control.ignored(problem),
    );
  }

  /** Result of a child that is begun here or was begun before. Rejects once the work was left behind. */
  async resultOf(
    workflowId: string,
    start: (options: ChildOptions) => Promise<StartedChild<Result>>,
    isLeft: () => boolean = () => false,
  ): Promise<Result> {
    for (;;) {
      const child = await this.#begin(workflowId, start);
      const isNoticed = (): boolean => this.#notices.has(workflowId) || isLeft();
      const ended = child?.ended ?? condition(isNoticed, evaluationLookAgainMs).then(() => null);
      const result = await Promise.race([ended, condition(isNoticed).then(() => null)]);
      const notice = this.#notices.get(workflowId);
      this.#notices.delete(workflowId);
      if (isLeft()) throw new ChildWorkFailed('it was left behind');
      if (notice && 'failed' in notice) throw new ChildWorkFailed(notice.failed);
      if (notice) return notice.result;
      if (result) return result;
      // Neither result nor signal came: started again, the child continues from the store, or is refused because it is
      // running.
    }
  }

  /**
   * Cancels children, and waits until all requests are sent, also those of an earlier call: the server sends nothing
   * more from a workflow that has ended. Children that have ended, or never began, need none.
   */
  async cancel(workflowIds: readonly string[]): Promise<void> {
    const telling = workflowIds.map(async (workflowId) => {
      await this.#starting.get(workflowId)?.catch(() => undefined); // its caller gets the failure
      await getExternalWorkflowHandle(workflowId).cancel();
    });
    this.#cancelling = Promise.allSettled([this.#cancelling, ...telling]);
    await this.#cancelling;
  }

  async #begin(
    workflowId: string,
    start: (options: ChildOptions) => Promise<StartedChild<Result>>,
  ): Promise<{ readonly ended: Promise<Result> } | null> {
    const starting = startUnlessAtWork(() => start({ ...outlivingUs, workflowId }));
    this.#starting.set(workflowId, starting);
    try {
      return await starting;
    } finally {
      this.#starting.delete(workflowId);
    }
  }
}

/** The child's side: signals its end to the requester. A run that has ended meanwhile needs no signal. */
export async function tellingItsEnd<Result>({ notify }: Notified, work: () => Promise<Result>): Promise<Result> {
  if (notify === undefined) return work();
  const { workflowId } = workflowInfo();
  const tell = (notice: ChildNotice<Result>): Promise<void> =>
    getExternalWorkflowHandle(notify.workflowId)
      .signal(notify.signal, notice)
      .catch(() => undefined);
  try {
    const result = await work();
    await tell({ workflowId, result });
    return result;
  } catch (error) {
    if (error instanceof ContinueAsNew) throw error;
    const failed = isCancellation(error) ? 'it was cancelled' : rootCause(error).message;
    await CancellationScope.nonCancellable(() => tell({ workflowId, failed }));
    throw error;
  }
}

/**
 * Begins a child once no other execution has its id: after an upgrade that of the parent before may still be ended.
 */
export async function onceItsIdIsFree<T>(child: () => Promise<T>): Promise<T> {
  for (let waitMs = idTakenFirstMs; ; waitMs = Math.min(2 * waitMs, evaluationLookAgainMs)) {
    try {
      return await child();
    } catch (error) {
      if (!(error instanceof WorkflowExecutionAlreadyStartedError)) throw error;
    }
    await sleep(waitMs);
  }
}

/** null when one of that name is running. */
async function startUnlessAtWork<Result>(
  start: () => Promise<StartedChild<Result>>,
): Promise<{ readonly ended: Promise<Result> } | null> {
  try {
    const child = await start();
    return { ended: awaitedLater(child.result()) };
  } catch (error) {
    if (error instanceof WorkflowExecutionAlreadyStartedError) return null;
    throw error;
  }
}
