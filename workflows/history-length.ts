import { workflowInfo } from '@temporalio/workflow';
import { historyEventsMax } from '../core/limits.ts';

/** Whether this execution is to be continued as another one. */
export function isHistoryLong(): boolean {
  const { continueAsNewSuggested, historyLength } = workflowInfo();
  return continueAsNewSuggested || historyLength > historyEventsMax;
}

/** Whether nothing more may be begun in it: what is in play ends, and then it is continued. */
export function isHistoryFull(): boolean {
  return workflowInfo().historyLength > 2 * historyEventsMax;
}
