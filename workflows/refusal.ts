import { ApplicationFailure } from '@temporalio/workflow';

/** An update that is not taken, with the words for whoever sent it. */
export function refusal(message: string): ApplicationFailure {
  return ApplicationFailure.nonRetryable(message, 'Refused');
}
