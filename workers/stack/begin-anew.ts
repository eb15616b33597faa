import type { Client, WorkflowExecutionDescription, WorkflowStartOptions } from '@temporalio/client';
import {
  type InternalWorkflowStartOptions,
  InternalWorkflowStartOptionsSymbol,
} from '@temporalio/client/lib/internal.js';
import { memoKeys } from '../../core/names.ts';
import { present } from '../../core/present.ts';

/**
 * Starts a workflow in the place of this execution, which ends: under its id, on its queue, with its memo and its summary.
 * Idempotent per execution: when two orchestrators do it at once, the first start counts, and the second finds what that began.
 */
export async function beginAnew(
  client: Client,
  found: WorkflowExecutionDescription,
  args: unknown[],
  more: Pick<WorkflowStartOptions, 'typedSearchAttributes' | 'workflowTaskTimeout' | 'workflowExecutionTimeout'> = {},
): Promise<void> {
  const { type, workflowId, runId, taskQueue, memo } = found;
  const summary = await found.staticSummary();
  const options: WorkflowStartOptions & InternalWorkflowStartOptions = {
    workflowId,
    taskQueue,
    args,
    // In one call: there is no moment at which it is gone.
    workflowIdConflictPolicy: 'TERMINATE_EXISTING',
    workflowIdReusePolicy: 'ALLOW_DUPLICATE',
    // It says that the input may come from an earlier execution or another version.
    memo: { ...memo, [memoKeys.takenOverFrom]: runId },
    ...present({ staticSummary: summary }),
    ...more,
    // The server takes a second request of one id for a repetition of the first, and ends nothing.
    [InternalWorkflowStartOptionsSymbol]: { requestId: `in place of ${runId}` },
  };
  await client.workflow.start(type, options);
}
