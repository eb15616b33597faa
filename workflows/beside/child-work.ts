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
  workflowInfo,
} from '@temporalio/workflow';
import { evaluationLookAgainMs } from '../../core/limits.ts';
import { onSignal } from '../control/listen.ts';
import type { RunControl } from '../control/run-control.ts';
import { awaitedLater } from './beside.ts';
import { rootCause } from './root-cause.ts';

/*
 * Work in child workflows that outlive the execution which began them: evaluations and prompt searches. A child is named after what it
 * does, keeps its results in the store, and tells its end by a signal to the workflow id it was given. So a parent that is continued,
 * or begun anew, begins it once more by that name: it is at work, goes on from the store, or has told its end already.
 */

/** What a child tells of its end. */
type ChildNotice<Result> = { readonly workflowId: string } & (
  | { readonly result: Result }
  | { readonly failed: string }
);

/** Whom a child tells its end; absent where nobody asked. */
interface Notified {
  readonly notify?: { readonly workflowId: string; readonly signal: string } | undefined;
}

/** Of children that outlive us; one that has ended may be begun again under its id. */
const outlivingUs = {
  parentClosePolicy: ParentClosePolicy.ABANDON,
  cancellationType: ChildWorkflowCancellationType.ABANDON,
  workflowIdReusePolicy: 'ALLOW_DUPLICATE',
} as const;

/** What a child is started with, beside its input. */
type ChildOptions = typeof outlivingUs & { readonly workflowId: string };

interface StartedChild<Result> {
  result(): Promise<Result>;
}

/** Why there is no result, in the child's words. */
export class ChildWorkFailed extends Error {}

/** The parent's side: children of one kind. */
export class ChildWork<Result> {
  /** By workflow id, until they are read. */
  readonly #notices = new Map<string, ChildNotice<Result>>();
  /** The server takes no workflow task that begins a child and cancels it: one that is being begun is waited for first. */
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

  /** The result of a child: of one that is begun here, or of one that was begun before. Nobody wants it any more once it is left. */
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
      // Neither we nor it know of its end: begun once more it goes on from the store, or is refused because it is at work.
    }
  }

  /**
   * Tells children that they belong to nobody any more, and waits until all have been told, also by an earlier call: the server passes on
   * nothing from a workflow that has ended. Those that have ended, or were not begun, need no word.
   */
  async cancel(workflowIds: readonly string[]): Promise<void> {
    const telling = workflowIds.map(async (workflowId) => {
      await this.#starting.get(workflowId)?.catch(() => undefined); // told to whoever begins it
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

/** The child's side: whoever asked is told how it ended. A run that has ended meanwhile need not hear of it. */
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

/** Null where one of that name is at work. */
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
