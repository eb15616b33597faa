import { QueryNotRegisteredError, ServiceError, type WorkflowHandle } from '@temporalio/client';
import type { RunStatus } from '../../workflows/control/messages.ts';

/** null when the run has not begun to listen, or no orchestrator answers for it. */
export async function askStatus(handle: WorkflowHandle, timeoutMs = 10_000): Promise<RunStatus | null> {
  try {
    return await handle.client.withDeadline(Date.now() + timeoutMs, () => handle.query<RunStatus>('status'));
  } catch (error) {
    if (error instanceof QueryNotRegisteredError || error instanceof ServiceError) return null;
    throw error;
  }
}
