import { ApplicationFailure, workflowInfo } from '@temporalio/workflow';
import { taskQueues } from '../core/names.ts';
import { nearestName } from '../core/suggest.ts';

const types = ['trainRun', 'evaluate', 'optimizePrompt', 'evaluateNewest', 'sweep', 'sweepSandboxes'];

/** Handles unknown workflow types. Without it the workflow task would fail, and Temporal would retry it for ever. */
export async function unknownWorkflow(..._given: readonly unknown[]): Promise<never> {
  const { workflowType, parent } = workflowInfo();
  // Ratchet itself started a child of this type, so a worker of a newer version knows it. The task fails and goes to
  // that worker.
  if (parent !== undefined) throw new TypeError(`no workflow type ${workflowType} in this version of Ratchet`);
  const near = nearestName(workflowType, types);
  throw ApplicationFailure.nonRetryable(
    `There is no workflow type ${JSON.stringify(workflowType.slice(0, 60))} here; nothing was started.${near === undefined ? '' : ` Did you mean ${near}?`} There are: ${types.join(', ')}. For example:\nnpx ratchet-rl temporal workflow start --type trainRun --task-queue ${taskQueues.orchestrator} --workflow-id words --input '"words.toml"'`,
    'InputInvalid',
  );
}
