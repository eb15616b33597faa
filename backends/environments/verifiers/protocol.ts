import { z } from 'zod';
import { parseExact } from '../../../engine/speech/exact-json.ts';
import type { JsonValue } from '../../../config/run-spec.ts';

/**
 * What goes over the pipe to a Python child (`python/ratchet_bridge`): JSON, one object per line. Requests carry an id and
 * are answered once, in any order; a rollout that wants a turn of the model asks for it by an event in between.
 */
export const protocolVersion = 1;

/** JSON as `JSON.parse` gave it: nothing more is known of it. */
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
  /** Asking again may help: the outside world failed, not the environment's code. */
  retryable: z.boolean().default(false),
  traceback: z.string().default(''),
  /** What to do about it, where that is known. */
  fix: z.string().optional(),
});
export type WireError = z.infer<typeof WireError>;

const Api = z.enum(['v0', 'v1']);
type Api = z.infer<typeof Api>;

export const Ready = z.object({
  event: z.literal('ready'),
  protocol: z.number(),
  /** Null where the package is not installed. */
  verifiers: z.string().nullable(),
  python: z.string(),
  apis: z.array(Api),
  pid: z.int(),
});
export type Ready = z.infer<typeof Ready>;

const SampleWanted = z.object({
  event: z.literal('sample'),
  sample: z.int(),
  /** The rollout that wants the turn. */
  request: z.int(),
  messages: z.custom<readonly WireMessage[]>(Array.isArray, 'expected a list'),
  tools: z.custom<readonly WireTool[]>(Array.isArray).nullable(),
  sampling: jsonObject,
  /** Of an episode that may have several agents: which of them wants it. */
  trace: z.string().optional(),
});

const Event = z.discriminatedUnion('event', [
  Ready,
  SampleWanted,
  z.object({ event: z.literal('heartbeat'), busy: z.int() }),
  /** The environment no longer waits for this turn. */
  z.object({ event: z.literal('unwanted'), sample: z.int(), request: z.int() }),
]);
export type Event = z.infer<typeof Event>;

const ChildReply = z.object({
  id: z.int().nullable(),
  ok: z.boolean(),
  result: json.optional(),
  /** The result lies in this file, which the reader removes. */
  spilled: z.string().optional(),
  error: WireError.optional(),
});
export type ChildReply = z.infer<typeof ChildReply>;

/** A line of a child's. Throws where it is none of the protocol's; rows and messages are looked at by those who use them. */
export function readLine(line: string): Event | ChildReply {
  // Tools and messages go on to prompts and servers, with their numbers as Python wrote them.
  const said: unknown = parseExact(line);
  const isEvent = typeof said === 'object' && said !== null && 'event' in said;
  return isEvent ? Event.parse(said) : ChildReply.parse(said);
}

/** A message of OpenAI's API, as environments say it. */
export interface WireMessage {
  readonly role: string;
  readonly content?: string | null | readonly Readonly<Record<string, unknown>>[] | undefined;
  readonly tool_calls?: readonly Readonly<Record<string, unknown>>[] | null | undefined;
  readonly tool_call_id?: string | null | undefined;
  readonly name?: string | null | undefined;
}

/** A tool of OpenAI's API: `{ type: 'function', function: { name, description, parameters } }`. */
export type WireTool = Readonly<Record<string, unknown>>;

/** A turn that the environment wants of the model. */
export interface TurnRequest {
  readonly messages: readonly WireMessage[];
  readonly tools: readonly WireTool[] | null;
  /** What the environment asks for, over what it was given. */
  readonly sampling: WireRow;
  /** Names the agent that wants it among those of its rollout; absent where there is one. */
  readonly trace?: string;
  /** Aborted when nobody waits for the turn any more. */
  readonly signal: AbortSignal;
}

export interface SampledTurn {
  /** `turn_N`, N = its position in the rollout. */
  readonly id?: string;
  readonly content: string | null;
  readonly reasoning_content?: string;
  readonly tool_calls: readonly { readonly id: string; readonly name: string; readonly arguments: string }[];
  readonly finish_reason: 'stop' | 'length' | 'tool_calls';
  readonly usage: { readonly prompt_tokens: number; readonly completion_tokens: number };
  /** For environments that look at tokens (`with_tokens`). */
  readonly tokens: null | {
    readonly prompt_ids: readonly number[];
    readonly completion_ids: readonly number[];
    readonly logprobs: readonly number[];
  };
}

export interface LoadRequest {
  /** The handle it is called by from then on. */
  readonly env: string;
  /** The environment's id; its last part, with `_` for `-`, is the module that is imported. */
  readonly env_id: string;
  readonly api?: Api;
  /** Of `load_environment` (v0). */
  readonly args?: WireRow;
  /** Turns of a rollout of it, whatever its code says (v0). One of a single turn stays that. */
  readonly max_turns?: number;
  /** Given to `set_kwargs` (v0): `max_seq_len`, `timeout_seconds` … */
  readonly extra?: WireRow;
  /** The environment's config table (v1). */
  readonly config?: WireRow;
  /** Where it is known better than can be seen from the environment's classes. */
  readonly scoring?: 'stored' | 'in_place';
}

export const LoadedEnvironment = z.object({
  env: z.string(),
  api: Api,
  /** Of the environment's class. */
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
  /** What it sets for sampling by itself. */
  sampling: jsonObject,
  /** `stored` = a row is enough to score a rollout; `in_place` = it is scored in the process that played it. */
  scoring: z.enum(['stored', 'in_place']),
  scoring_why: z.string().nullable(),
  is_single_turn: z.boolean(),
  /** Roles that the policy plays (v1). */
  agents: z.array(z.string()).optional(),
  /** Hex, of the files of its module; null or missing where that has none. */
  code: z.string().nullish(),
});
export type LoadedEnvironment = z.infer<typeof LoadedEnvironment>;

export const WireInputs = z.object({
  total: z.int(),
  /** JSON lines in the spill folder; belongs to who asked. */
  file: z.string(),
  /** Columns whose values JSON has not as they are (dates, images); environments get what JSON has in their place. */
  changed_columns: z.array(z.string()),
  /** The first row whose prompt has a part that is no text, and that part's type; missing where none has. */
  unlike_text: z.object({ index: z.int().min(0), type: z.string() }).nullish(),
  /** Its tasks have no end: these are the first of them (v1). */
  cut_off: z.boolean().optional(),
});
export type WireInputs = z.infer<typeof WireInputs>;

export interface RolloutRequest {
  readonly env: string;
  /** A line of the inputs, or what it says. The line as it is keeps what JavaScript's numbers do not: 1.0, large integers. */
  readonly input: WireRow | string;
  readonly model: string;
  /** Merged over the environment's own, as verifiers' `generate` does. */
  readonly sampling: WireRow;
  /** Columns of its state for the row's `state_columns`, as verifiers writes them. */
  readonly columns?: readonly string[];
  /** Scores it at its end, in the child. */
  readonly score: boolean;
  /** Keeps its state alive, for a later `score` or `release`. */
  readonly keep: boolean;
  readonly with_tokens: boolean;
  readonly deadline_s?: number;
  /** Then it ends with what it has, which is scored. */
  readonly truncate_s?: number;
  /** Rollouts of one are played by one child. */
  readonly group?: string;
  /** In place of the one that the input begins with; '' = none. */
  readonly system_prompt?: string;
  /** A child died under it before: it is played apart from those of which none did. */
  readonly isSuspect?: boolean;
}

/** Where columns of the state were asked for: as scoring has left them. */
const columns = { columns: jsonObject.optional() };

export const Score = z.union([
  z.object({ error: WireError, ...columns }),
  z.object({
    ...columns,
    reward: z.number(),
    metrics: z.record(z.string(), z.number()),
    /** Reward functions that threw, and count as 0 as verifiers has it: what they threw, by name. */
    raised: z.record(z.string(), z.string()).optional(),
    /** Of each turn what its environment gave it by itself, as far as the last that has something; missing where none has. */
    turn_rewards: z.array(z.number()).optional(),
    /** Of `score`: when it was scored, from and to. */
    scored_s: z.tuple([z.number(), z.number()]).optional(),
    /** Where the policy played several agents of an episode (v1): each of them, by the name that it asked for turns with. */
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
  /** As verifiers' results.jsonl has it. `scoring_state`, a text, is what `score` needs beside verifiers' own keys. */
  row: jsonObject,
  outcome: z.enum(['ok', 'truncated', 'policy_failure', 'infra_failure', 'overlong_prompt']),
  error: WireError.nullable(),
  /** True where `score` takes the row. */
  scorable: z.boolean(),
  scoring_why: z.string().nullable(),
  /** Where it was scored already. */
  judged: Score.nullable(),
  live: z.string().nullable(),
  /** Its time was over: the row is what it had by then, and it had heard so many turns. */
  timed_out: z.boolean().optional(),
  heard_turns: z.int().min(0).optional(),
});
export type WirePlayedRow = z.infer<typeof WirePlayedRow>;

export interface WireScoreRequest {
  readonly env: string;
  /** Of one example: functions that compare see all of them. */
  readonly rollouts: readonly ({ readonly row: WireRow } | { readonly live: string | number })[];
  readonly columns?: readonly string[];
  readonly deadline_s?: number;
}

export const Scores = z.object({ scores: z.array(Score) });

/** Something about an environment's code that is wrong, or will be. */
export const CodeFinding = z.object({
  severity: z.enum(['error', 'warning']),
  /** file:line */
  place: z.string().nullable(),
  says: z.string(),
  fix: z.string(),
});
export type CodeFinding = z.infer<typeof CodeFinding>;

/** What the code of a loaded environment says of itself (`check.py`). */
export const Checked = z.object({
  /** Of `load_environment`: defaults as JSON, null where one has to be given. */
  arguments: z.array(z.object({ name: z.string(), default: z.string().nullable(), annotation: z.string().nullable() })),
  doc: z.string().nullable(),
  /** Methods that do not fit the installed verifiers. */
  findings: z.array(CodeFinding),
  /** Of tool servers that a rollout starts (v1); what a v0 environment offers is in {@link LoadedEnvironment}. */
  tools: z.array(z.object({ name: z.string(), description: z.string(), parameters: z.array(z.string()) })).optional(),
});
export type Checked = z.infer<typeof Checked>;
