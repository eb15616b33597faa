import { workflowInfo } from '@temporalio/workflow';
import { historyEventsMax } from '../core/limits.ts';

/** Whether this execution is to be continued as another one. */
export function isHistoryLong(): boolean {
  const { continueAsNewSuggested, historyLength } = workflowInfo();
  return continueAsNewSuggested || historyLength > historyEventsMax;
}

/** Whether nothing more may begin in this execution: work in flight ends, and then it continues as new. */
export function isHistoryFull(): boolean {
  return workflowInfo().historyLength > 2 * historyEventsMax;
}
