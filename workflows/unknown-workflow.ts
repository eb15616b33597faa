import { ApplicationFailure, workflowInfo } from '@temporalio/workflow';
import { taskQueues } from '../core/names.ts';
import { nearestName } from '../core/suggest.ts';

const types = ['trainRun', 'evaluate', 'optimizePrompt', 'evaluateNewest'];

/** Stands in for a workflow type that there is not: without it the workflow task fails, and is tried again for ever. */
export async function unknownWorkflow(..._given: readonly unknown[]): Promise<never> {
  const { workflowType, parent } = workflowInfo();
  // Ratchet begins children itself: of a newer version another worker knows the type.
  if (parent !== undefined) throw new TypeError(`no workflow type ${workflowType} in this version of Ratchet`);
  const near = nearestName(workflowType, types);
  throw ApplicationFailure.nonRetryable(
    `There is no workflow type ${JSON.stringify(workflowType.slice(0, 60))} here; nothing was begun.${near === undefined ? '' : ` Did you mean ${near}?`} There are: ${types.join(', ')}. For example:\nnpx ratchet temporal workflow start --type trainRun --task-queue ${taskQueues.orchestrator} --workflow-id words --input '"words.toml"'`,
    'InputInvalid',
  );
}
