import type { ModelConfig } from '../model/config.ts';
import type { RowRequest } from './decode-batch.ts';
import type { LaneCounters, LaneOptions, RowEnd } from './decode-lane.ts';

/** What a worker thread that decodes is started with. */
export interface WorkerSettings {
  readonly config: ModelConfig;
  readonly options: LaneOptions;
}

export type ToWorker =
  | {
      readonly kind: 'submit';
      readonly version: number;
      readonly rows: readonly { readonly id: number; readonly request: RowRequest }[];
    }
  /** Comes before the first rows of a version. */
  | { readonly kind: 'weights'; readonly version: number; readonly flat: Float32Array }
  /** The version's rows have ended. `prompts`: none will come either. */
  | { readonly kind: 'forget'; readonly version: number; readonly prompts: boolean }
  | { readonly kind: 'drop'; readonly ids: readonly number[] }
  | { readonly kind: 'close' };

/** What happened in one step of a version. */
export interface Stepped {
  readonly kind: 'stepped';
  /** Aligned: a sampled token each. */
  readonly ids: readonly number[];
  readonly tokenIds: Int32Array;
  readonly logprobs: Float32Array;
  readonly samplingLogprobs: Float32Array;
  readonly ends: readonly RowEnd[];
  readonly failures: readonly { readonly ids: readonly number[]; readonly error: unknown }[];
  readonly counters: LaneCounters;
}

export type FromWorker = { readonly kind: 'opened' } | Stepped | { readonly kind: 'closed' };
