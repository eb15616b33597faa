import { type ErrorCode, errorCodes, RatchetError } from '../../core/errors.ts';
import type { MaskedSample, RowFacts } from '../../core/rl/learning/batch.ts';
import type { Optimizer } from './types.ts';
import type { OptimizerOptions } from './optimizer.ts';

/** Messages between a trainer's process and its owner, over Node's IPC channel with 'advanced' serialization. */
type TrainerMethod = Exclude<keyof Optimizer, 'close'>;

export interface TrainerCall {
  readonly id: number;
  readonly method: TrainerMethod | 'open';
  readonly args: readonly unknown[];
}

export type TrainerReply =
  | { readonly id: number; readonly result: unknown }
  | { readonly id: number; readonly error: WireError };

/** Rows that stay with the owner: the trainer's process requests them as needed. */
export interface RemoteRows {
  /** Id of the call. */
  readonly rowsOfCall: number;
  readonly rows: readonly RowFacts[];
}

export interface RowsRequest {
  readonly ask: number;
  readonly rowsOfCall: number;
  readonly places: readonly number[];
}

export type RowsAnswer =
  | { readonly ask: number; readonly samples: readonly MaskedSample[] }
  | { readonly ask: number; readonly error: WireError };

export function areRemote(value: unknown): value is RemoteRows {
  return typeof value === 'object' && value !== null && 'rowsOfCall' in value;
}

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
