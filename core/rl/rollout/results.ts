import { present } from '../../present.ts';
import { passAllK, passAtK, passCounts, passThreshold } from '../../eval/pass-at-k.ts';
import type { JsonValue } from '../../json-value.ts';
import { boundedMessages, partsOf } from './message-parts.ts';
import type { ChatMessage, Example, RolloutRow, ScoredGroup, ScoredRollout, ToolSchema, Turn } from './rollout.ts';

/**
 * Rollouts in verifiers' format, `results.jsonl` and `metadata.json` of one evaluation, for its viewers and other
 * readers. The shapes are those of verifiers 0.3.1 (`state_to_output`, `build_metadata`).
 */

interface ResultContext {
  readonly example: Example;
  /** The environment's own row, if it writes rows. */
  readonly record?: RolloutRow | undefined;
  readonly tools?: readonly ToolSchema[] | undefined;
  /** Fields that verifiers lacks, under one key, `ratchet`. */
  readonly place: Readonly<Record<string, JsonValue>>;
}

/**
 * One row: text, rewards and metrics, without tokens. A failed rollout has the reward null. If the policy itself
 * failed, the row has a reward and an error, as in verifiers.
 */
export function resultRow(rollout: ScoredRollout, { example, record, tools, place }: ResultContext): RolloutRow {
  const { reward, metrics, outcome, turns, raised, playedAgain, scoredS } = rollout;
  const isFailed = reward === null;
  const hasError = isFailed || outcome === 'policy_failure';
  return {
    ...(record ? withoutState(record) : rowOf(example, rollout, tools)),
    ...(record ? timingColumn(record, scoredS) : {}),
    reward,
    ...(hasError ? errorColumns(rollout, record) : { error: null }),
    is_completed: !isFailed,
    is_truncated: outcome === 'truncated' || record?.['is_truncated'] === true,
    metrics,
    ...metrics, // also flat, as in verifiers
    ...usageColumn(turns),
    ...columnsOfState(record),
    ratchet: {
      ...place,
      index: rollout.index,
      outcome,
      ...(raised === undefined ? {} : { raised }),
      ...(rollout.isTimedOut === true ? { timed_out: true } : {}),
      ...(rollout.overBudget === undefined ? {} : { over_budget: rollout.overBudget }),
      ...(rollout.effects === undefined ? {} : { effects: { ...rollout.effects } }),
      ...(playedAgain === undefined ? {} : { played_again: { ...playedAgain } }),
    },
  };
}

/** A row that the environment wrote itself, by its rollout. */
export interface RecordRow {
  readonly group: number;
  readonly index: number;
  readonly record: RolloutRow;
}

/** The rows of a round in one environment. `tools` as its metadata.json has them. */
export function rowsOfRound(
  groups: readonly ScoredGroup[],
  {
    step,
    records,
    tools,
    like,
  }: {
    readonly step: number;
    readonly records: readonly RecordRow[];
    readonly tools: unknown;
    /** Makes a row keep the written form of its record's numbers. */
    readonly like: (row: RolloutRow, record: RolloutRow | undefined) => RolloutRow;
  },
): RolloutRow[] {
  const recordOf = new Map(records.map(({ group, index, record }) => [`${group}/${index}`, record]));
  const schemas = Array.isArray(tools) ? tools.filter(isTable).map(toolOfRow) : [];
  return groups.flatMap(({ ordinal, exampleId, policyStep, prompt, example, rollouts }) => {
    const place = { step, group: ordinal, policy_version: policyStep, ...present({ prompt }) };
    const asked = example ?? { id: exampleId, prompt: [], answer: '' };
    return rollouts.map((rollout) => {
      const record = recordOf.get(`${ordinal}/${rollout.index}`);
      return like(resultRow(rollout, { example: asked, record, tools: schemas, place }), record);
    });
  });
}

function toolOfRow({ name, description, parameters }: RolloutRow): ToolSchema {
  return { type: 'function', function: { name, description, parameters } as unknown as ToolSchema['function'] };
}

/** Drops columns that are only for scoring. */
function withoutState(record: RolloutRow): RolloutRow {
  const { scoring_state: _, trajectory: __, state_columns: ___, ...row } = record;
  const { prompt, completion } = row;
  return {
    ...row,
    ...present({ prompt: boundedMessages(prompt) ?? undefined, completion: boundedMessages(completion) ?? undefined }),
  };
}

/** The requested columns; they replace a row's fields of the same names, as in verifiers. */
function columnsOfState(record: RolloutRow | undefined): RolloutRow {
  return (record?.['state_columns'] ?? {}) as RolloutRow;
}

function rowOf(
  example: Example,
  { turns, outcome, reward }: ScoredRollout,
  tools: readonly ToolSchema[] = [],
): RolloutRow {
  return {
    example_id: example.id,
    prompt: boundedMessages(example.prompt.map(promptRow)),
    completion: turns.flatMap((turn) => [...(turn.heard ?? []).map(messageRow), saidBy(turn)]),
    ...(example.answer === '' ? {} : { answer: example.answer }),
    ...(example.info === undefined ? {} : { info: example.info as RolloutRow }),
    reward,
    error: null,
    timing: unmeasured,
    is_completed: true,
    is_truncated: false,
    stop_condition: reward === null ? 'has_error' : outcome === 'ok' ? 'completed' : outcome,
    metrics: {},
    tool_defs: tools.map(({ function: { name, description, parameters } }) => ({
      name,
      description,
      parameters: parameters as RolloutRow,
    })),
  };
}

/** Keeps pictures. Later messages have text in their place: they may come from the store, which keeps only that. */
function promptRow(message: ChatMessage): { [key: string]: JsonValue } {
  const parts = partsOf(message);
  return { ...messageRow(message), ...(parts === undefined ? {} : { content: parts as unknown as JsonValue }) };
}

function messageRow(message: ChatMessage): { [key: string]: JsonValue } {
  const { tool_calls: calls, ...rest } = message;
  return {
    ...rest,
    ...present({ tool_calls: calls?.map((call) => callText({ id: call.id, ...call.function })) }),
  };
}

/** The model's text, including tool calls; these are also separate, as JSON texts. */
function saidBy({ text, toolCalls = [], said }: Turn): { [key: string]: JsonValue } {
  const calls = toolCalls.map((call, i) => callText({ id: `call_${i}`, ...call }));
  const reasoning = said?.reasoning === undefined ? {} : { reasoning_content: said.reasoning };
  const refusal = said?.isRefusal === true ? { refusal: text } : {};
  return {
    role: 'assistant',
    content: text,
    ...reasoning,
    ...refusal,
    ...present({ tool_calls: calls.length === 0 ? undefined : calls }),
  };
}

function callText(call: { readonly id: string; readonly name: string; readonly arguments: string }): string {
  return JSON.stringify(call);
}

function errorColumns({ outcome, error = outcome }: ScoredRollout, record: RolloutRow | undefined): RolloutRow {
  if (record?.['error'] != null) return {};
  const message = error.split('\n')[0]!;
  return {
    error: {
      error: outcome,
      message,
      error_chain_repr: `${outcome}(${JSON.stringify(message)})`,
      error_chain_str: error,
    },
    error_chain: `${outcome}(${JSON.stringify(message)})`,
    long_error_chain: error,
  };
}

/** Left out if the server reports no counts. */
function usageColumn(turns: readonly Turn[]): RolloutRow {
  return turns.some(({ said }) => said?.usage === null) ? {} : { token_usage: tokenUsage(turns) };
}

/** Like `compute_context_token_metrics`: all sampled tokens, and the rest of the last turn's context. */
function tokenUsage(turns: readonly Turn[]): { [key: string]: JsonValue } {
  const counts = turns.map(tokensOf);
  const output = sum(counts.map(({ completion }) => completion));
  const last = counts.at(-1);
  const context = last ? last.prompt + last.completion : 0;
  return {
    input_tokens: sum(counts.map(({ prompt }) => prompt)),
    output_tokens: output,
    final_input_tokens: Math.max(0, context - output),
    final_output_tokens: output,
  };
}

/** Tokens as billed by the server; 0 if it does not report them. */
export function tokensOf({ said, promptTokenIds, tokenIds }: Turn): { prompt: number; completion: number } {
  if (said === undefined) return { prompt: promptTokenIds.length, completion: tokenIds.length };
  return { prompt: said.usage?.promptTokens ?? 0, completion: said.usage?.completionTokens ?? 0 };
}

/**
 * verifiers counts from the first turn to the end of scoring. A row that is scored later has no scoring times yet and a
 * total of 0; its total leaves out the idle time between.
 */
function timingColumn({ timing }: RolloutRow, scoredS: readonly [number, number] | undefined): RolloutRow {
  if (!isTable(timing) || !isTable(timing['scoring']) || Number(timing['scoring']['end']) > 0) return {};
  const seconds = (name: string): number => {
    const part = timing[name];
    return isTable(part) && typeof part['duration'] === 'number' ? part['duration'] : 0;
  };
  const [start, end] = scoredS ?? [0, 0];
  const total = seconds('generation') + end - start;
  const overhead = total - seconds('setup') - seconds('model') - seconds('env') - (end - start);
  return { timing: { ...timing, scoring: { start, end, duration: end - start }, total, overhead } };
}

function isTable(value: JsonValue | undefined): value is { [key: string]: JsonValue } {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

const span = { start: 0, end: 0, duration: 0 };
/**
 * verifiers' form of a missing measurement: a rollout runs beside thousands, in parts, and may resume after a crash.
 */
const unmeasured: { [key: string]: JsonValue } = {
  start_time: 0,
  setup: span,
  generation: span,
  scoring: span,
  model: { spans: [], duration: 0 },
  env: { spans: [], duration: 0 },
  total: 0,
  overhead: 0,
};

export interface ResultsOf {
  readonly environment: string;
  readonly args: Readonly<Record<string, JsonValue>>;
  /** Name of the policy: the run's, as in the folder's. */
  readonly model: string;
  readonly baseUrl: string;
  readonly rolloutsPerExample: number;
  readonly sampling: Readonly<Record<string, JsonValue>>;
  /** Versions of verifiers and of the environment's package; empty for environments in TypeScript. */
  readonly versions?: { readonly verifiers: string; readonly environment: string | null };
  readonly tools?: readonly ToolSchema[] | undefined;
  readonly seconds?: number;
}

/** `metadata.json` over groups of rollouts of one example each. */
export function resultsMetadata(groups: readonly (readonly ScoredRollout[])[], of: ResultsOf): RolloutRow {
  const rollouts = groups.flat();
  const rewarded = rollouts.flatMap(({ reward }) => (reward === null ? [] : [reward]));
  const passed = groups
    .filter((group) => group.length === of.rolloutsPerExample)
    .map((group) => group.filter(({ reward }) => reward !== null && reward >= passThreshold).length);
  const usage = rollouts.map(({ turns }) => tokenUsage(turns));
  const names = [...new Set(rollouts.flatMap(({ metrics }) => Object.keys(metrics)))].sort();
  return {
    env_id: of.environment,
    env_args: of.args,
    model: of.model,
    base_url: of.baseUrl,
    num_examples: groups.length,
    rollouts_per_example: of.rolloutsPerExample,
    sampling_args: of.sampling,
    time: of.seconds ?? 0,
    avg_reward: mean(rewarded),
    avg_metrics: Object.fromEntries(
      names.map((name) => [name, mean(rollouts.flatMap(({ metrics }) => metrics[name] ?? []))]),
    ),
    avg_error: mean(rollouts.map(({ reward, outcome }) => Number(reward === null || outcome === 'policy_failure'))),
    pass_at_k: passes(passed, of.rolloutsPerExample, passAtK),
    pass_all_k: passes(passed, of.rolloutsPerExample, passAllK),
    pass_threshold: passThreshold,
    usage: Object.fromEntries(
      Object.keys(tokenUsage([])).map((key) => [key, mean(usage.map((one) => one[key] as number))]),
    ),
    version_info: {
      vf_version: of.versions?.verifiers ?? '',
      vf_commit: null,
      env_version: of.versions?.environment ?? null,
      env_commit: null,
    },
    state_columns: [],
    tools: (of.tools ?? []).map(toolOfMetadata),
  };
}

/** The dump of verifiers' `Tool`; only environments in Python set `strict`. */
export function toolOfMetadata({ function: of }: ToolSchema): RolloutRow {
  const { name, description, parameters, strict } = of;
  return { name, description, parameters: parameters as RolloutRow, strict: strict ?? null };
}

/** pass@k for k = 1, 2, 4, … up to n, the mean over examples; none for a single rollout of each. */
function passes(
  right: readonly number[],
  n: number,
  estimate: (n: number, right: number, k: number) => number,
): { [k: string]: number } {
  if (right.length === 0) return {};
  return Object.fromEntries(passCounts(n).map((k) => [String(k), mean(right.map((count) => estimate(n, count, k)))]));
}

function mean(values: readonly number[]): number {
  return values.length === 0 ? 0 : sum(values) / values.length;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
