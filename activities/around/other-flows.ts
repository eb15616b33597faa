import { Context } from '@temporalio/activity';
import { WorkflowNotFoundError } from '@temporalio/common';
import { isRolloutsWorkflowOf, rolloutsWorkflowPrefix } from '../../core/names.ts';
import { outsideOfActivities } from './tell-workflow.ts';

/**
 * Cancels the workflows that generate rounds of this activity's run and are not among `known`. A terminated run cannot
 * cancel them: they would continue beside those of its next execution, and sample the same groups.
 */
export async function cancelOtherFlows(known: readonly string[]): Promise<void> {
  const { client, info } = Context.current();
  const run = info.workflowExecution?.workflowId;
  if (run === undefined) return;
  const prefix = rolloutsWorkflowPrefix(run);
  const query = `WorkflowType = 'playRounds' AND ExecutionStatus = 'Running' AND WorkflowId BETWEEN '${prefix}' AND '${prefix}~'`;
  await outsideOfActivities(async () => {
    for await (const { workflowId } of client.workflow.list({ query })) {
      if (!isRolloutsWorkflowOf(run, workflowId) || known.includes(workflowId)) continue;
      try {
        await client.workflow.getHandle(workflowId).cancel();
      } catch (error) {
        if (!(error instanceof WorkflowNotFoundError)) throw error; // it has ended meanwhile
      }
    }
  });
}
