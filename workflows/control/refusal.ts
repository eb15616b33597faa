import { ApplicationFailure } from '@temporalio/workflow';

/** What an update that makes no sense now is answered with. */
export function refusal(message: string): ApplicationFailure {
  return ApplicationFailure.nonRetryable(message, 'Refused');
}
