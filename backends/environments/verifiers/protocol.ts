import { z } from 'zod';
import { parseExact } from '../../../core/exact-json.ts';
import { effectKinds } from '../../../core/rl/rollout/effects.ts';
import type { JsonValue } from '../../../config/run-spec.ts';

/**
 * Messages on the pipe to a Python child (`python/ratchet_bridge`): JSON, one object per line. Requests have an id and
 * are answered once, in any order; a rollout requests a turn of the model by an event in between.
 */
export const protocolVersion = 1;

/** A value from `JSON.parse`, not checked further. */
const json = z.custom<JsonValue>(() => true);
const jsonObject = z.custom<Readonly<Record<string, JsonValue>>>(
  (value) => typeof value === 'object' && value !== null && !Array.isArray(value),
  'expected an object',
);
export type WireRow = Readonly<Record<string, JsonValue>>;

/** `Refused`, `Cancelled`, `Deadline`, `PackageMissing` …, or the name of a Python exception. */
export const WireError = z.object({
  type: z.string(),
  message: z.string(),
  /** A retry may help: the outside world failed, not the environment's code. */
  retryable: z.boolean().default(false),
  traceback: z.string().default(''),
  fix: z.string().optional(),
});
export type WireError = z.infer<typeof WireError>;

const Api = z.enum(['v0', 'v1']);
type Api = z.infer<typeof Api>;

export const Ready = z.object({
  event: z.literal('ready'),
  protocol: z.number(),
  /** Null if the package is not installed. */
  verifiers: z.string().nullable(),
  python: z.string(),
  apis: z.array(Api),
  pid: z.int(),
});
export type Ready = z.infer<typeof Ready>;

const SampleWanted = z.object({
  event: z.literal('sample'),
  sample: z.int(),
  /** The rollout that requests the turn. */
  request: z.int(),
  messages: z.custom<readonly WireMessage[]>(Array.isArray, 'expected a list'),
  tools: z.custom<readonly WireTool[]>(Array.isArray).nullable(),
  sampling: jsonObject,
  /** The agent that requests it, in an episode that may have several. */
  trace: z.string().optional(),
});

const NoteTold = z.object({
  event: z.literal('note'),
  /** Numbers the question, in the child. */
  note: z.int(),
  /** The rollout that it is about. */
  request: z.int(),
  /** What is to be called, and how; missing where `key` is settled. */
  begin: z.object({ kind: z.enum(effectKinds), name: z.string(), arguments: z.string() }).optional(),
  settle: z.object({ key: z.string(), answer: json }).optional(),
  /** A prompt and the state beside it, from which the rollout goes on after a death. */
  state: z.object({ key: z.string(), note: json }).optional(),
});

/** What a rollout has written down: a call with an effect that a tool begins or settles, or its state. */
export type WireNote = Pick<z.infer<typeof NoteTold>, 'begin' | 'settle' | 'state'>;

/** What is said to it. */
export type WireNoted =
  /** A state is written down, or is too large for it. */
  | { readonly state: 'noted' | 'refused' }
  | { readonly state: 'make'; readonly key: string; readonly idempotency_key: string }
  | { readonly state: 'settled'; readonly answer: JsonValue }
  | { readonly state: 'in_doubt'; readonly message: string };

const Event = z.discriminatedUnion('event', [
  Ready,
  SampleWanted,
  NoteTold,
  z.object({ event: z.literal('heartbeat'), busy: z.int() }),
  /** The environment no longer waits for this turn. */
  z.object({ event: z.literal('unwanted'), sample: z.int(), request: z.int() }),
]);
export type Event = z.infer<typeof Event>;

const ChildReply = z.object({
  id: z.int().nullable(),
  ok: z.boolean(),
  result: json.optional(),
  /** The file with the result, which the reader removes. */
  spilled: z.string().optional(),
  error: WireError.optional(),
});
export type ChildReply = z.infer<typeof ChildReply>;

/** A line of a child. Throws if it violates the protocol; rows and messages are checked by their readers. */
export function readLine(line: string): Event | ChildReply {
  // Tools and messages are passed on to prompts and servers, with Python's form of their numbers.
  const said: unknown = parseExact(line);
  const isEvent = typeof said === 'object' && said !== null && 'event' in said;
  return isEvent ? Event.parse(said) : ChildReply.parse(said);
}

/** A message in the form of OpenAI's API. */
export interface WireMessage {
  readonly role: string;
  readonly content?: string | null | readonly Readonly<Record<string, unknown>>[] | undefined;
  readonly tool_calls?: readonly Readonly<Record<string, unknown>>[] | null | undefined;
  readonly tool_call_id?: string | null | undefined;
  readonly name?: string | null | undefined;
}

/** A tool of OpenAI's API: `{ type: 'function', function: { name, description, parameters } }`. */
export type WireTool = Readonly<Record<string, unknown>>;

/** A turn that the environment requests from the model. */
export interface TurnRequest {
  readonly messages: readonly WireMessage[];
  readonly tools: readonly WireTool[] | null;
  /** The environment's sampling settings, over the given ones. */
  readonly sampling: WireRow;
  /** Name of the requesting agent in its rollout; absent if there is only one. */
  readonly trace?: string;
  /** Aborted when the turn is no longer needed. */
  readonly signal: AbortSignal;
}

export interface SampledTurn {
  /** `turn_N`, N = its index in the rollout. */
  readonly id?: string;
  readonly content: string | null;
  readonly reasoning_content?: string;
  readonly tool_calls: readonly { readonly id: string; readonly name: string; readonly arguments: string }[];
  readonly finish_reason: 'stop' | 'length' | 'tool_calls';
  readonly usage: { readonly prompt_tokens: number; readonly completion_tokens: number };
  /** Present for environments that read tokens (`with_tokens`). */
  readonly tokens: null | {
    readonly prompt_ids: readonly number[];
    readonly completion_ids: readonly number[];
    readonly logprobs: readonly number[];
  };
}

export interface LoadRequest {
  /** The handle for later calls. */
  readonly env: string;
  /** The environment's id; its last part, with `_` for `-`, is the module that is imported. */
  readonly env_id: string;
  readonly api?: Api;
  /** Arguments of `load_environment` (v0). */
  readonly args?: WireRow;
  /** Bound on turns of a rollout, whatever its code says (v0). A single-turn environment stays that. */
  readonly max_turns?: number;
  /** Arguments of `set_kwargs` (v0): `max_seq_len`, `timeout_seconds` … */
  readonly extra?: WireRow;
  /** The environment's config table (v1). */
  readonly config?: WireRow;
  /** Overrides what the environment's classes imply. */
  readonly scoring?: 'stored' | 'in_place';
}

export const LoadedEnvironment = z.object({
  env: z.string(),
  api: Api,
  class: z.string(),
  /** Its reward functions compare the rollouts of a group. */
  requires_group: z.boolean(),
  provides_advantages: z.boolean(),
  reward_names: z.array(z.string()),
  /** One for each name; 0 = a metric. */
  weights: z.array(z.number()),
  system_prompt: z.string().nullable(),
  tools: z.custom<readonly WireTool[]>(Array.isArray).nullable(),
  max_turns: z.number().nullable(),
  /** Its own sampling settings. */
  sampling: jsonObject,
  /** `stored` = a row is enough to score a rollout; `in_place` = it is scored in the process that ran it. */
  scoring: z.enum(['stored', 'in_place']),
  scoring_why: z.string().nullable(),
  is_single_turn: z.boolean(),
  /** Its rollouts go on from their state after a death; else why not (v0). */
  says_state: z.boolean().optional(),
  says_state_why: z.string().nullish(),
  /** Roles of the policy (v1). */
  agents: z.array(z.string()).optional(),
  /** Digest of its module's files, hex; null or missing without files. */
  code: z.string().nullish(),
});
export type LoadedEnvironment = z.infer<typeof LoadedEnvironment>;

export const WireInputs = z.object({
  total: z.int(),
  /** JSON lines in the spill folder; owned by the caller. */
  file: z.string(),
  /** Columns whose values JSON cannot represent (dates, images); environments get JSON in their place. */
  changed_columns: z.array(z.string()),
  /** The first row with a prompt part beside text, and the part's type; missing if there is none. */
  unlike_text: z.object({ index: z.int().min(0), type: z.string() }).nullish(),
  /** Its tasks have no end: these are the first of them (v1). */
  cut_off: z.boolean().optional(),
});
export type WireInputs = z.infer<typeof WireInputs>;

export interface RolloutRequest {
  readonly env: string;
  /** A line of the inputs, or its value. The line keeps forms that JavaScript's numbers lose: 1.0, large integers. */
  readonly input: WireRow | string;
  readonly model: string;
  /** Merged over the environment's own, as verifiers' `generate` does. */
  readonly sampling: WireRow;
  /** Columns of its state for the row's `state_columns`, as verifiers writes them. */
  readonly columns?: readonly string[];
  /** Score it at its end, in the child. */
  readonly score: boolean;
  /** Keep its state alive, for a later `score` or `release`. */
  readonly keep: boolean;
  readonly with_tokens: boolean;
  readonly deadline_s?: number;
  /** The rollout then ends with its present state, which is scored. */
  readonly truncate_s?: number;
  /** Rollouts of a group run in one child. */
  readonly group?: string;
  /** Replaces the one of the input; '' = none. */
  readonly system_prompt?: string;
  /** States that earlier attempts wrote down, by key; missing = none are to be. */
  readonly noted?: Readonly<Record<string, JsonValue>>;
  /** A child died with it before: it runs apart from unsuspected rollouts. */
  readonly isSuspect?: boolean;
}

/** Requested columns of the state, as scoring left them. */
const columns = { columns: jsonObject.optional() };

export const Score = z.union([
  z.object({ error: WireError, ...columns }),
  z.object({
    ...columns,
    reward: z.number(),
    metrics: z.record(z.string(), z.number()),
    /** Reward functions that threw, and count as 0 like in verifiers: errors by name. */
    raised: z.record(z.string(), z.string()).optional(),
    /** The environment's own reward of each turn, up to the last with one; missing if there is none. */
    turn_rewards: z.array(z.number()).optional(),
    /** Start and end of scoring, in answers of `score`. */
    scored_s: z.tuple([z.number(), z.number()]).optional(),
    /** Traces of an episode with several agents (v1), by the names with which they requested turns. */
    traces: z
      .array(
        z.object({
          trace: z.string(),
          agent: z.string(),
          trained: z.boolean(),
          truncated: z.boolean(),
          reward: z.number(),
          metrics: z.record(z.string(), z.number()),
        }),
      )
      .optional(),
  }),
]);
export type Score = z.infer<typeof Score>;

export const WirePlayedRow = z.object({
  /** A row of verifiers' results.jsonl. `scoring_state`, a text, is what `score` needs beside verifiers' own keys. */
  row: jsonObject,
  outcome: z.enum(['ok', 'truncated', 'policy_failure', 'infra_failure', 'overlong_prompt']),
  error: WireError.nullable(),
  /** True if `score` accepts the row. */
  scorable: z.boolean(),
  scoring_why: z.string().nullable(),
  /** Set if it was scored already. */
  judged: Score.nullable(),
  live: z.string().nullable(),
  /** It ran out of time: the row has its state by then, after so many turns. */
  timed_out: z.boolean().optional(),
  heard_turns: z.int().min(0).optional(),
});
export type WirePlayedRow = z.infer<typeof WirePlayedRow>;

export interface WireScoreRequest {
  readonly env: string;
  /** Rollouts of one example: comparing functions see all of them. */
  readonly rollouts: readonly ({ readonly row: WireRow } | { readonly live: string | number })[];
  readonly columns?: readonly string[];
  readonly deadline_s?: number;
}

export const Scores = z.object({ scores: z.array(Score) });

/** A present or future error in an environment's code. */
export const CodeFinding = z.object({
  severity: z.enum(['error', 'warning']),
  /** file:line */
  place: z.string().nullable(),
  says: z.string(),
  fix: z.string(),
});
export type CodeFinding = z.infer<typeof CodeFinding>;

/** The code of a loaded environment, as inspected by `check.py`. */
export const Checked = z.object({
  /** Arguments of `load_environment`: defaults as JSON, null = required. */
  arguments: z.array(z.object({ name: z.string(), default: z.string().nullable(), annotation: z.string().nullable() })),
  doc: z.string().nullable(),
  /** Methods that do not fit the installed verifiers. */
  findings: z.array(CodeFinding),
  /** Tools of the servers that a rollout starts (v1); a v0 environment's tools are in {@link LoadedEnvironment}. */
  tools: z.array(z.object({ name: z.string(), description: z.string(), parameters: z.array(z.string()) })).optional(),
});
export type Checked = z.infer<typeof Checked>;
