import { type ErrorCode, errorCodes, RatchetError } from '../../core/errors.ts';
import type { Optimizer } from './types.ts';
import type { OptimizerOptions } from './optimizer.ts';

/** What passes between a trainer's process and its owner, over Node's IPC channel with 'advanced' serialization. */
type TrainerMethod = Exclude<keyof Optimizer, 'close'>;

export interface TrainerCall {
  readonly id: number;
  readonly method: TrainerMethod | 'open';
  readonly args: readonly unknown[];
}

export type TrainerReply =
  { readonly id: number; readonly result: unknown } | { readonly id: number; readonly error: WireError };

interface WireError {
  readonly code: string | null;
  readonly message: string;
}

export interface OpenArguments {
  readonly model: string;
  readonly options: OptimizerOptions;
}

export function toWire(error: unknown): WireError {
  if (error instanceof RatchetError) return { code: error.code, message: error.message };
  return { code: null, message: error instanceof Error ? (error.stack ?? error.message) : String(error) };
}

export function fromWire({ code, message }: WireError): Error {
  return isErrorCode(code) ? new RatchetError(code, message) : new Error(`The trainer process failed: ${message}`);
}

function isErrorCode(code: string | null): code is ErrorCode {
  return code !== null && Object.hasOwn(errorCodes, code);
}
