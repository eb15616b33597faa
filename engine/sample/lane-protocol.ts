import type { ErrorCode } from '../../core/errors.ts';
import type { ModelConfig } from '../model/config.ts';
import type { Pointer } from '../onnx/c-api.ts';
import type { SharedSession } from '../onnx/runtime.ts';
import type { DecodeSessions } from './decode-batch.ts';
import type { LaneCounters, LaneOptions, NewRow, RowEnd } from './decode-lane.ts';

/** Data for the start of a lane's thread. */
export interface WorkerSettings {
  readonly config: ModelConfig;
  readonly options: LaneOptions;
}

/** The sessions and weights of a version by their addresses in the process: the thread that opened them holds them. */
export interface SharedVersion {
  /** The runtime's half of each tensor. */
  readonly weights: { readonly prefill: SharedTensors; readonly step: SharedTensors };
  readonly prefill: SharedSession;
  readonly step: SharedSession;
  readonly rows: DecodeSessions['rows'];
  readonly logits: { readonly prefill: string; readonly step: string };
}

export type SharedTensors = Readonly<Record<string, Pointer>>;

export type ToWorker =
  | {
      readonly kind: 'submit';
      readonly version: number;
      readonly shared: SharedVersion;
      readonly rows: readonly NewRow[];
    }
  | { readonly kind: 'forget'; readonly version: number }
  | { readonly kind: 'drop'; readonly ids: readonly number[] }
  | { readonly kind: 'close' };

export interface LaneFailure {
  readonly ids: readonly number[];
  /** null = not an error of ours. */
  readonly code: ErrorCode | null;
  readonly message: string;
}

/** Events of one step or a few. */
export interface Stepped {
  readonly kind: 'stepped';
  /** Four numbers a token: its row's id, the token's id, its logprob and its samplingLogprob. */
  readonly tokens: Float64Array;
  readonly ends: readonly RowEnd[];
  readonly failures: readonly LaneFailure[];
  readonly counters: LaneCounters;
  /** Messages of kind `submit` that had come. */
  readonly submits: number;
  /** Versions with rows left. */
  readonly versions: readonly number[];
}

export type FromWorker = { readonly kind: 'opened' } | Stepped;
