import { setMaxListeners } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import {
  isGrpcServiceError,
  ServiceError,
  type Workflow,
  WorkflowFailedError,
  type WorkflowHandle,
  type WorkflowResultType,
} from '@temporalio/client';
import { rootMessage } from './root-message.ts';

/** Pause before asking a server again that did not answer. */
const serverPauseMs = 1_000;

/** Waits for the end of a workflow, however often its server is restarted meanwhile. */
export async function resultOf<T extends Workflow>(
  handle: WorkflowHandle<T>,
  left: AbortSignal,
): Promise<WorkflowResultType<T>> {
  setMaxListeners(0, left); // the client listens once for each of its requests, three a minute, until the end
  for (;;) {
    try {
      return await untilLeft(
        left,
        handle.client.withAbortSignal(left, () => handle.result()),
      );
    } catch (error) {
      if (left.aborted || !(error instanceof ServiceError || isGrpcServiceError(error))) throw error;
      await delay(serverPauseMs, undefined, { signal: left });
    }
  }
}

/** The client aborts the request under way; without this it would poll until the workflow ends. */
function untilLeft<T>(left: AbortSignal, result: Promise<T>): Promise<T> {
  const leaving = new AbortController();
  const gone = new Promise<never>((_, reject) => {
    const leave = (): void => reject(left.reason as Error);
    if (left.aborted) leave();
    else left.addEventListener('abort', leave, { signal: leaving.signal });
  });
  return Promise.race([result, gone]).finally(() => leaving.abort());
}

/** Returns why a closed workflow did not complete; null if it did. */
export async function failureOf(handle: WorkflowHandle): Promise<string | null> {
  try {
    await handle.result();
    return null;
  } catch (error) {
    if (error instanceof WorkflowFailedError) return rootMessage(error);
    throw error;
  }
}
