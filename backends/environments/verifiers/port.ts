import type { JsonValue } from '../../../core/spec/run-spec.ts';

/** What an environment needs of the bridge to a Python child; names are those of the pipe (`python/ratchet_bridge`). */

/** A message of OpenAI's API, as the child sends it. */
export interface WireMessage {
  readonly role: string;
  readonly content?: string | null | readonly Readonly<Record<string, unknown>>[] | undefined;
  readonly tool_calls?: readonly Readonly<Record<string, unknown>>[] | null | undefined;
  readonly tool_call_id?: string | null | undefined;
  readonly name?: string | null | undefined;
}

export type WireRow = Readonly<Record<string, JsonValue>>;

/** The child wants a turn of the model. */
export interface SampleWanted {
  readonly messages: readonly WireMessage[];
  readonly tools: readonly Readonly<Record<string, unknown>>[] | null;
}

export interface SampledTurn {
  readonly content: string | null;
  readonly tool_calls: readonly { readonly id: string; readonly name: string; readonly arguments: string }[];
  readonly finish_reason: 'stop' | 'length' | 'tool_calls';
  readonly usage: { readonly prompt_tokens: number; readonly completion_tokens: number };
  readonly tokens: null | {
    readonly prompt_ids: readonly number[];
    readonly completion_ids: readonly number[];
    readonly logprobs: readonly number[];
  };
}

export interface RolloutRequest {
  readonly env: string;
  readonly input: WireRow | string;
  readonly model: string;
  readonly sampling: WireRow;
  /** Scores it at its end, in the child. */
  readonly score: boolean;
  /** Keeps its state alive, for a later `score` or `release`. */
  readonly keep: boolean;
  readonly with_tokens: boolean;
  /** Rollouts of one are played by one child. */
  readonly group?: string;
}

export interface PlayedRow {
  readonly row: WireRow;
  readonly outcome: 'ok' | 'truncated' | 'policy_failure' | 'infra_failure' | 'overlong_prompt';
  readonly error: unknown;
  /** Where it was scored already. */
  readonly judged: Score | null;
  readonly live: Live | null;
}

export type Score =
  { readonly reward: number; readonly metrics: Readonly<Record<string, number>> } | { readonly error: unknown };

export interface LoadedPython {
  readonly env: string;
  readonly api: 'v0' | 'v1';
  readonly class: string;
  readonly requires_group: boolean;
  readonly reward_names: readonly string[];
  readonly weights: readonly number[];
  readonly tools: readonly Readonly<Record<string, unknown>>[] | null;
  readonly sampling: WireRow;
  readonly scoring: 'stored' | 'in_place';
  readonly scoring_why?: string | null | undefined;
  readonly is_single_turn: boolean;
}

/** What of a bridge an environment that is loaded needs. */
export interface PythonBridge {
  /** Plays one rollout. Rejects when the child died, or did not answer in time. */
  rollout(
    request: RolloutRequest,
    around: { readonly onSample: (wanted: SampleWanted) => Promise<SampledTurn>; readonly signal: AbortSignal },
  ): Promise<PlayedRow>;
  /** Scores rollouts of one example together, from their rows or from states that are kept alive. */
  score(
    request: {
      readonly env: string;
      readonly rollouts: readonly ({ readonly row: WireRow } | { readonly live: Live })[];
    },
    around?: { readonly signal?: AbortSignal | undefined },
  ): Promise<readonly Score[]>;
  /** Lets states go that were kept alive. */
  release(request: { readonly env: string; readonly live: readonly Live[] }): Promise<void>;
}

export type Live = string | number;
