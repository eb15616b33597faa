import { ApplicationFailure } from '@temporalio/workflow';

/** Failure of an update that makes no sense now. */
export function refusal(message: string): ApplicationFailure {
  return ApplicationFailure.nonRetryable(message, 'Refused');
}
