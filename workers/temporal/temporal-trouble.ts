import {
  isGrpcServiceError,
  NamespaceNotFoundError,
  ServiceError,
  WorkflowNotFoundError,
  WorkflowUpdateRPCTimeoutOrCancelledError,
} from '@temporalio/client';
import { RatchetError } from '../../core/errors.ts';
import { grpcCode, grpcCodeOf } from './grpc-code.ts';
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
  return new RatchetError('ServerUnavailable', `The Temporal server ${whatItDid(error)}`, { cause: error });
}

function whatItDid(error: Error): string {
  const said = rootMessage(error).replace(/\.$/, '');
  switch (grpcCodeOf(error)) {
    case grpcCode.permissionDenied:
    case grpcCode.unauthenticated:
      return `does not let these credentials do this: ${said}. TEMPORAL_NAMESPACE names the namespace, TEMPORAL_API_KEY or TEMPORAL_API_KEY_FILE has a key that may write there; the administrator of the namespace gives it.`;
    case grpcCode.resourceExhausted:
      return `takes no more requests of this namespace at the moment: ${said}. Type this again; if it stays so, its administrator has to raise the limit.`;
    default:
      return `did not do what it was asked: ${said}. Is it running, and reachable from here?`;
  }
}

function isServers(error: Error): boolean {
  return (
    error instanceof ServiceError ||
    error instanceof WorkflowUpdateRPCTimeoutOrCancelledError ||
    isGrpcServiceError(error)
  );
}
