import type { JsonValue } from '../../config/run-spec.ts';
import { partText } from '../rl/message-parts.ts';
import type { RowExample } from './tell-examples.ts';

/**
 * Rows of `results.jsonl` as readers need them. Whoever wrote a row (verifiers of any version, Ratchet, a program that somebody
 * wrote by hand), what is missing in it or of another type reads as not there; nothing is made up.
 */

/** A message of a prompt or of a completion. */
export interface ResultMessage {
  readonly role: string;
  /** What was said; a picture stands as `[image image/png, 70 bytes, 1a2b3c4d]`. */
  readonly text: string;
  /** What the model thought before it, where the server told it apart. */
  readonly reasoning: string;
  readonly calls: readonly { readonly name: string; readonly arguments: string }[];
}

/** Why a rollout failed. */
interface RowError {
  /** Its class: `ModelError`, `timeout`; failures are counted by it. */
  readonly cause: string;
  readonly message: string;
}

/** Something that befell a rollout; counted by `what`. */
interface RowNote {
  readonly what: string;
  readonly message: string;
}

/** What is kept of every row of a file, however large its texts are. */
export interface RowFacts {
  /** verifiers' number as text, or the key of a v1 task; of files whose rows have no sound id, as `tellExamples` names it. */
  readonly exampleId: string;
  /** Null: none in the row, or the rollout failed and what stands there is no reward. */
  readonly reward: number | null;
  /** As the row has it, of failed rollouts too: verifiers gives those 0, and counts it. */
  readonly givenReward: number | null;
  readonly error: RowError | null;
  /** What happened to it beside, reward or not: reward functions that threw, that it was played anew. */
  readonly notes: readonly RowNote[];
  readonly metrics: Readonly<Record<string, number>>;
  readonly inputTokens: number | null;
  readonly outputTokens: number | null;
  readonly isTruncated: boolean;
  /** The prompt's last user message, its beginning. */
  readonly promptStart: string;
  /** What the model said last, its beginning. */
  readonly answerStart: string;
}

/** A whole row. */
export interface ResultRow extends RowFacts {
  readonly prompt: readonly ResultMessage[];
  readonly completion: readonly ResultMessage[];
  /** What was right; null where the row has none. */
  readonly answer: string | null;
  readonly info: JsonValue | null;
  readonly stopCondition: string | null;
  /** Of all of the rollout. */
  readonly seconds: number | null;
  readonly tools: readonly string[];
  /** Columns that have no other place here. */
  readonly columns: Readonly<Record<string, JsonValue>>;
}

type Json = { readonly [key: string]: unknown };

/** Characters kept of a prompt and of an answer for lists. */
const startChars = 100;

export function isRow(value: unknown): value is Json {
  return isObject(value) && ['example_id', 'completion', 'prompt', 'reward'].some((name) => name in value);
}

/** The facts of a parsed line that `isRow`. */
export function factsOf(row: Json): RowFacts {
  const error = errorOf(row);
  const givenReward = numberIn(row, 'reward');
  const usage = isObject(row['token_usage']) ? row['token_usage'] : {};
  return {
    exampleId: exampleIdOf(row),
    reward: error === null || isPolicyFailure(row) ? givenReward : null,
    givenReward,
    error,
    notes: notesOf(row['ratchet']),
    metrics: isObject(row['metrics']) ? numbersIn(row['metrics']) : metricColumns(row),
    inputTokens: numberIn(usage, 'input_tokens'),
    outputTokens: numberIn(usage, 'output_tokens'),
    isTruncated: row['is_truncated'] === true,
    promptStart: startOf(lastText(row['prompt'], 'user')),
    answerStart: startOf(lastText(row['completion'], 'assistant')),
  };
}

/** The text whose sha256 tells prompts apart: roles and words alone, so that two writers of one prompt agree. */
export function promptIdentity(row: Json): string {
  return messagesOf(row['prompt'])
    .map(({ role, text }) => `${role}\u0000${text}`)
    .join('\u0001');
}

/** What a row says of the example that it is of; `digest` makes a short name of a text. */
export function exampleOf(row: Json, digest: (text: string) => string): RowExample {
  const [says, id] = isId(row['example_id'])
    ? (['example_id', String(row['example_id'])] as const)
    : isId(row['id'])
      ? (['id', String(row['id'])] as const)
      : (['nothing', ''] as const);
  const prompt = promptIdentity(row);
  return {
    says,
    id,
    task: typeof row['task'] === 'string' ? row['task'] : '',
    prompt: prompt === '' ? null : digest(prompt),
    answer: row['answer'] == null ? '' : digest(textOf(row['answer'])),
  };
}

function isId(value: unknown): value is string | number {
  return typeof value === 'string' || typeof value === 'number';
}

const known = new Set(
  `example_id id task prompt completion reward error error_chain long_error_chain metrics token_usage is_truncated is_completed
  answer info stop_condition timing generation_ms scoring_ms total_ms tool_defs trajectory`.split(/\s+/),
);

/** verifiers before 0.1.10 wrote metrics as columns and nowhere else. */
function metricColumns(row: Json): Record<string, number> {
  const rest = Object.entries(row).filter(([name]) => !known.has(name));
  return 'reward' in row ? numbersIn(Object.fromEntries(rest)) : {};
}

/** A parsed line that `isRow`, whole. */
export function readRow(row: Json): ResultRow {
  const facts = factsOf(row);
  const rest = Object.entries(row).filter(([name]) => !known.has(name) && !(name in facts.metrics));
  const { answer, timing, tool_defs: tools } = row;
  return {
    ...facts,
    prompt: messagesOf(row['prompt']),
    completion: messagesOf(row['completion']),
    answer: answer == null || answer === '' ? null : textOf(answer),
    info: (row['info'] ?? null) as JsonValue,
    stopCondition: typeof row['stop_condition'] === 'string' ? row['stop_condition'] : null,
    seconds: secondsOf(isObject(timing) ? timing : row),
    tools: Array.isArray(tools) ? tools.flatMap((tool) => toolName(tool)) : [],
    columns: Object.fromEntries(rest) as Record<string, JsonValue>,
  };
}

/** verifiers before 0.2 counts milliseconds. Where nothing was measured its columns hold 0. */
function secondsOf(timing: Json): number | null {
  const milliseconds = numberIn(timing, 'total_ms');
  return (milliseconds === null ? numberIn(timing, 'total') : milliseconds / 1000) || null;
}

function toolName(tool: unknown): string[] {
  if (!isObject(tool)) return [];
  const of = isObject(tool['function']) ? tool['function'] : tool;
  return typeof of['name'] === 'string' ? [of['name']] : [];
}

/** A list of messages, or one text as completion APIs have it. */
export function messagesOf(value: unknown): ResultMessage[] {
  if (typeof value === 'string') return [{ role: 'text', text: value, reasoning: '', calls: [] }];
  if (!Array.isArray(value)) return [];
  return value.filter(isObject).map((message) => {
    const { role, content, tool_calls: calls } = message;
    const reasoning = message['reasoning_content'] ?? message['reasoning'];
    const { thought, said } = apart(contentOf(content), role === 'assistant');
    return {
      role: typeof role === 'string' ? role : '?',
      text: said,
      reasoning: typeof reasoning === 'string' && reasoning !== '' ? reasoning : thought,
      calls: Array.isArray(calls) ? calls.map(callOf) : [],
    };
  });
}

/** Thoughts that stand within the text, before what is said, as most chat templates have the model write them. */
function apart(text: string, mayThink: boolean): { thought: string; said: string } {
  const end = mayThink ? text.indexOf('</think>') : -1;
  if (end < 0) return { thought: '', said: text };
  const thought = text.slice(0, end).trimStart();
  return {
    thought: (thought.startsWith('<think>') ? thought.slice('<think>'.length) : thought).trim(),
    said: text.slice(end + '</think>'.length).trimStart(),
  };
}

function contentOf(content: unknown): string {
  if (content == null) return '';
  if (!Array.isArray(content)) return textOf(content);
  return content
    .map((part: unknown) => {
      return isObject(part) ? partText(part) : textOf(part);
    })
    .join('');
}

/** verifiers writes the calls of a completion as texts of JSON, those of a prompt as objects, OpenAI's API with `function`. */
function callOf(call: unknown): { name: string; arguments: string } {
  let value: unknown = call;
  if (typeof call === 'string') {
    try {
      value = JSON.parse(call);
    } catch {
      return { name: '?', arguments: call };
    }
  }
  if (!isObject(value)) return { name: '?', arguments: textOf(call) };
  const of = isObject(value['function']) ? value['function'] : value;
  return { name: typeof of['name'] === 'string' ? of['name'] : '?', arguments: textOf(of['arguments'] ?? '') };
}

function errorOf(row: Json): RowError | null {
  const { error, error_chain: chain } = row;
  if (error == null) return null;
  const told = typeof chain === 'string' ? chain : '';
  if (!isObject(error))
    return {
      cause: textOf(error)
        .split(/[(:\n]/)[0]!
        .slice(0, 60),
      message: textOf(error),
    };
  const cause = typeof error['error'] === 'string' ? error['error'] : 'error';
  const message = [error['error_chain_repr'], told, error['message']].find(
    (text) => typeof text === 'string' && text !== '',
  );
  return { cause, message: typeof message === 'string' ? message : cause };
}

/** Ratchet's rows say where the reward beside an error is one all the same. */
function isPolicyFailure({ ratchet }: Json): boolean {
  return isObject(ratchet) && ratchet['outcome'] === 'policy_failure';
}

const noNotes: readonly RowNote[] = [];

function notesOf(ratchet: unknown): readonly RowNote[] {
  if (!isObject(ratchet)) return noNotes;
  const { raised, played_again: again } = ratchet;
  const threw = Object.entries(isObject(raised) ? raised : {}).map(([name, said]) => ({
    what: `the reward function ${name} threw, which counts as 0`,
    message: textOf(said),
  }));
  if (!isObject(again)) return threw.length === 0 ? noNotes : threw;
  return [...threw, { what: 'played anew', message: textOf(again['first'] ?? '') }];
}

function exampleIdOf({ example_id: exampleId, id }: Json): string {
  return String([exampleId, id].find(isId) ?? '?');
}

/** Without making messages of all: lists of 100,000 rows need one text of each. */
function lastText(value: unknown, role: string): string {
  if (typeof value === 'string') return value;
  if (!Array.isArray(value)) return '';
  for (let i = value.length - 1; i >= 0; i--) {
    const message: unknown = value[i];
    if (!isObject(message) || message['role'] !== role) continue;
    return apart(contentOf(message['content']), role === 'assistant').said;
  }
  return '';
}

/** One line. Put together anew: a slice would keep all of the text it is of. */
function startOf(text: string): string {
  return text
    .slice(0, 2 * startChars)
    .split(/\s+/)
    .filter((word) => word !== '')
    .join(' ')
    .slice(0, startChars);
}

function numbersIn(value: unknown): Record<string, number> {
  const numbers: Record<string, number> = {};
  if (isObject(value)) {
    for (const [name, number] of Object.entries(value)) if (typeof number === 'number') numbers[name] = number;
  }
  return numbers;
}

function numberIn(value: Json, name: string): number | null {
  const found = value[name];
  return typeof found === 'number' && Number.isFinite(found) ? found : null;
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
