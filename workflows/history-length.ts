import { workflowInfo } from '@temporalio/workflow';
import { historyEventsMax } from '../core/limits.ts';

/** Whether this execution is to be continued as another one. */
export function isHistoryLong(): boolean {
  const { continueAsNewSuggested, historyLength } = workflowInfo();
  return continueAsNewSuggested || historyLength > historyEventsMax;
}
