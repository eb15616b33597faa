import {
  isGrpcServiceError,
  NamespaceNotFoundError,
  ServiceError,
  WorkflowNotFoundError,
  WorkflowUpdateRPCTimeoutOrCancelledError,
} from '@temporalio/client';
import { RatchetError } from '../../core/errors.ts';
import { rootMessage } from './root-message.ts';

/** Explains failures of a Temporal server; returns any other error unchanged. */
export function temporalTrouble(error: unknown): unknown {
  if (error instanceof NamespaceNotFoundError) {
    return new RatchetError(
      'ServerUnavailable',
      `This Temporal server has no namespace ${JSON.stringify(error.namespace)}. TEMPORAL_NAMESPACE names the one the workers use; missing = "default".`,
      { cause: error },
    );
  }
  if (error instanceof WorkflowNotFoundError) {
    return new RatchetError(
      'RunNotFound',
      `This Temporal server does not know the workflow ${error.workflowId} (any more): it may have been deleted. What a run has stored is still there, and npx ratchet-rl train with its run file continues it; npx ratchet-rl status lists the runs.`,
      { cause: error },
    );
  }
  if (!(error instanceof Error && isServers(error))) return error;
  return new RatchetError(
    'ServerUnavailable',
    `The Temporal server did not do what it was asked: ${rootMessage(error)}. Is it running, and reachable from here?`,
    { cause: error },
  );
}

function isServers(error: Error): boolean {
  return (
    error instanceof ServiceError ||
    error instanceof WorkflowUpdateRPCTimeoutOrCancelledError ||
    isGrpcServiceError(error)
  );
}
