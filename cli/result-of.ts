import { setTimeout as delay } from 'node:timers/promises';
import {
  isGrpcServiceError,
  ServiceError,
  type Workflow,
  type WorkflowHandle,
  type WorkflowResultType,
} from '@temporalio/client';

/** How long a server that did not answer is left alone. */
const serverPauseMs = 1_000;

/** Waits for the end of a workflow, however often its server is restarted meanwhile. */
export async function resultOf<T extends Workflow>(
  handle: WorkflowHandle<T>,
  left: AbortSignal,
): Promise<WorkflowResultType<T>> {
  for (;;) {
    try {
      return await handle.client.withAbortSignal(left, () => handle.result());
    } catch (error) {
      if (left.aborted || !(error instanceof ServiceError || isGrpcServiceError(error))) throw error;
      await delay(serverPauseMs, undefined, { signal: left });
    }
  }
}
