/** gRPC status codes that a Temporal server answers with, and that are told apart here. */
export const grpcCode = {
  invalidArgument: 3,
  permissionDenied: 7,
  resourceExhausted: 8,
  unimplemented: 12,
  unauthenticated: 16,
} as const;

/** Status code of a call, or of the error that the client wrapped; -1 for another error. */
export function grpcCodeOf(error: unknown): number {
  const { code, cause } = error as { readonly code?: unknown; readonly cause?: unknown };
  if (typeof code === 'number') return code;
  return cause instanceof Error ? grpcCodeOf(cause) : -1;
}
