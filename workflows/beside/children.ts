import { WorkflowExecutionAlreadyStartedError } from '@temporalio/common';
import { ChildWorkflowCancellationType, getExternalWorkflowHandle, ParentClosePolicy } from '@temporalio/workflow';

/** Of children that outlive us; one that has ended may be begun again under its id. */
export const outlivingUs = {
  parentClosePolicy: ParentClosePolicy.ABANDON,
  cancellationType: ChildWorkflowCancellationType.ABANDON,
  workflowIdReusePolicy: 'ALLOW_DUPLICATE',
} as const;

/** Null where one of that name is at work. */
export async function unlessAtWork<T>(start: Promise<T>): Promise<T | null> {
  try {
    return await start;
  } catch (error) {
    if (error instanceof WorkflowExecutionAlreadyStartedError) return null;
    throw error;
  }
}

/**
 * Child workflows that outlive us, and are told when they belong to nobody any more. The server takes no workflow task that begins a
 * child and cancels it: one that is being begun is waited for first.
 */
export class Children {
  readonly #starting = new Map<string, Promise<unknown>>();

  /** Of one that is being begun: remembers its start, and gives it back. */
  begin<T>(workflowId: string, start: Promise<T>): Promise<T> {
    this.#starting.set(workflowId, start);
    const forget = (): void => void this.#starting.delete(workflowId);
    start.then(forget, forget);
    return start;
  }

  /** Those that have ended, or were not begun, need no word. */
  async cancel(workflowIds: readonly string[]): Promise<void> {
    await Promise.allSettled(
      workflowIds.map(async (workflowId) => {
        await this.#starting.get(workflowId)?.catch(() => undefined); // told to whoever begins it
        await getExternalWorkflowHandle(workflowId).cancel();
      }),
    );
  }
}
