/**
 * Every failure that Ratchet throws on purpose. The code is the failure type shown in the Temporal UI; whether a retry
 * may help is a property of the code, never of the place that throws.
 */
export const errorCodes = {
  ConfigInvalid: { retryable: false },
  NotAllowed: { retryable: false },
  EnvironmentUnknown: { retryable: false },
  EnvironmentBroken: { retryable: false },
  EnvironmentUnavailable: { retryable: true },
  ModelUnsupported: { retryable: false },
  CheckpointDamaged: { retryable: false },
  WrittenByNewer: { retryable: true },
  CommitConflict: { retryable: false },
  RunNotFound: { retryable: false },
  Unsupported: { retryable: false },
  StoreFull: { retryable: true },
  StoreUnavailable: { retryable: true },
  StoreNotSeen: { retryable: true },
  EngineDied: { retryable: true },
  InferenceUnavailable: { retryable: true },
  InferenceRejected: { retryable: false },
  PromptTooLong: { retryable: false },
  BudgetReached: { retryable: false },
  OutOfMemory: { retryable: true },
  NcclFailed: { retryable: true },
  VersionNotHeld: { retryable: true },
  TrainerDetached: { retryable: true },
  TrainerBusy: { retryable: true },
  TrainerUnavailable: { retryable: true },
  TrainerFailing: { retryable: false },
  TrainerSuperseded: { retryable: false },
  RolloutTakenOver: { retryable: true },
  ServerUnavailable: { retryable: true },
  SandboxRefused: { retryable: false },
  SandboxUnavailable: { retryable: true },
  SandboxUnanswered: { retryable: true },
  FaultInjected: { retryable: true },
  BugSuspected: { retryable: true },
  Bug: { retryable: false },
} as const;

export type ErrorCode = keyof typeof errorCodes;

/**
 * A failure with a code and a message that the reader can act on: the expected value, the received one, the place, and
 * advice.
 */
export class RatchetError extends Error {
  readonly code: ErrorCode;
  /** Wait before the next attempt, if the server specified one. */
  readonly retryAfterMs: number | undefined;

  constructor(code: ErrorCode, message: string, options: { cause?: unknown; retryAfterMs?: number } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = code;
    this.code = code;
    this.retryAfterMs = options.retryAfterMs;
  }

  get isRetryable(): boolean {
    return errorCodes[this.code].retryable;
  }
}

/** Converts an error of code that cannot import ours: one with a code of ours becomes a RatchetError. */
export function asRatchetError(error: unknown): unknown {
  if (!(error instanceof Error) || error instanceof RatchetError) return error;
  const { code } = error as { readonly code?: unknown };
  if (typeof code !== 'string' || !Object.hasOwn(errorCodes, code)) return error;
  return new RatchetError(code as ErrorCode, error.message, { cause: error });
}
