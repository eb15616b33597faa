import { getExternalWorkflowHandle } from '@temporalio/workflow';

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
