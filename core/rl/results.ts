import { present } from '../present.ts';
import { passAllK, passAtK, passCounts, passThreshold } from '../eval/pass-at-k.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { boundedMessages, partsOf } from './message-parts.ts';
import type { ChatMessage, Example, RolloutRow, ScoredGroup, ScoredRollout, ToolSchema, Turn } from './rollout.ts';

/**
 * Rollouts as verifiers writes them, `results.jsonl` and `metadata.json` of one evaluation, for its viewers and for whoever reads such
 * files already. The shapes are those of verifiers 0.3.1 (`state_to_output`, `build_metadata`).
 */

interface ResultContext {
  readonly example: Example;
  /** As the environment wrote it, where it writes rows. */
  readonly record?: RolloutRow | undefined;
  readonly tools?: readonly ToolSchema[] | undefined;
  /** What verifiers has no name for goes under one key, `ratchet`. */
  readonly place: Readonly<Record<string, JsonValue>>;
}

/**
 * One row: what was said as text, what it was given for it, and no tokens. A rollout that failed has no reward: null. Where the policy
 * itself failed there is a reward and an error, as in verifiers.
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
    ...metrics, // flattened as well, as verifiers does
    ...usageColumn(turns),
    ...columnsOfState(record),
    ratchet: {
      ...place,
      index: rollout.index,
      outcome,
      ...(raised === undefined ? {} : { raised }),
      ...(rollout.isTimedOut === true ? { timed_out: true } : {}),
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
  { step, records, tools }: { readonly step: number; readonly records: readonly RecordRow[]; readonly tools: unknown },
): RolloutRow[] {
  const recordOf = new Map(records.map(({ group, index, record }) => [`${group}/${index}`, record]));
  const schemas = Array.isArray(tools) ? tools.filter(isTable).map(toolOfRow) : [];
  return groups.flatMap(({ ordinal, exampleId, policyStep, prompt, example, rollouts }) => {
    const place = { step, group: ordinal, policy_version: policyStep, ...(prompt === undefined ? {} : { prompt }) };
    const asked = example ?? { id: exampleId, prompt: [], answer: '' };
    return rollouts.map((rollout) => {
      const record = recordOf.get(`${ordinal}/${rollout.index}`);
      return resultRow(rollout, { example: asked, record, tools: schemas, place });
    });
  });
}

function toolOfRow({ name, description, parameters }: RolloutRow): ToolSchema {
  return { type: 'function', function: { name, description, parameters } as unknown as ToolSchema['function'] };
}

/** Columns that are there for scoring alone. */
function withoutState(record: RolloutRow): RolloutRow {
  const { scoring_state: _, trajectory: __, state_columns: ___, ...row } = record;
  const { prompt, completion } = row;
  return { ...row, ...present({ prompt: boundedMessages(prompt), completion: boundedMessages(completion) }) };
}

/** Those that were asked for; they replace what a row has under their names, as in verifiers. */
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

/** With its pictures. What is heard later is told in words: it may come from the store, which has those alone. */
function promptRow(message: ChatMessage): { [key: string]: JsonValue } {
  const parts = partsOf(message);
  return { ...messageRow(message), ...(parts === undefined ? {} : { content: parts as unknown as JsonValue }) };
}

function messageRow(message: ChatMessage): { [key: string]: JsonValue } {
  const { tool_calls: calls, ...rest } = message;
  return {
    ...rest,
    ...(calls ? { tool_calls: calls.map((call) => callText({ id: call.id, ...call.function })) } : {}),
  };
}

/** The text as the model wrote it, calls of tools included; they stand apart as well, as texts of JSON. */
function saidBy({ text, toolCalls = [], said }: Turn): { [key: string]: JsonValue } {
  const calls = toolCalls.map((call, i) => callText({ id: `call_${i}`, ...call }));
  const reasoning = said?.reasoning === undefined ? {} : { reasoning_content: said.reasoning };
  return { role: 'assistant', content: text, ...reasoning, ...(calls.length === 0 ? {} : { tool_calls: calls }) };
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

/** Left out where the server that was asked does not count. */
function usageColumn(turns: readonly Turn[]): RolloutRow {
  return turns.some(({ said }) => said?.usage === null) ? {} : { token_usage: tokenUsage(turns) };
}

/** As `compute_context_token_metrics`: all that was sampled, and what else stood in the last turn's context. */
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

/** As a server bills them; 0 where it does not say. */
export function tokensOf({ said, promptTokenIds, tokenIds }: Turn): { prompt: number; completion: number } {
  if (said === undefined) return { prompt: promptTokenIds.length, completion: tokenIds.length };
  return { prompt: said.usage?.promptTokens ?? 0, completion: said.usage?.completionTokens ?? 0 };
}

/**
 * verifiers counts from the first turn to the end of scoring. A row that is scored later says nothing of scoring yet, and a total of 0: there the
 * time between, when nobody worked on it, is left out.
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
/** What verifiers writes where nothing was measured: a rollout is played beside thousands, in parts, also after a crash. */
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
  /** Which policy: the run's name, as in the folder's. */
  readonly model: string;
  readonly baseUrl: string;
  readonly rolloutsPerExample: number;
  readonly sampling: Readonly<Record<string, JsonValue>>;
  /** Of verifiers and of the environment's package; empty where it is written in TypeScript. */
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

/** As verifiers dumps its `Tool`: nobody says anything of `strict` but an environment in Python. */
export function toolOfMetadata({ function: of }: ToolSchema): RolloutRow {
  const { name, description, parameters, strict } = of;
  return { name, description, parameters: parameters as RolloutRow, strict: strict ?? null };
}

/** For k = 1, 2, 4, … up to n, the mean over examples; none for a single rollout of each. */
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
