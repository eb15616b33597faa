import type { JsonValue } from '../json-value.ts';
import { partText } from '../rl/rollout/message-parts.ts';
import type { RowExample } from './tell-examples.ts';

/**
 * Rows of `results.jsonl` for readers. Rows may come from any version of verifiers, from Ratchet or from other
 * programs. A field that is missing or has another type reads as absent; none is invented.
 */

/** A message of a prompt or of a completion. */
export interface ResultMessage {
  readonly role: string;
  /** Text of the message; a picture appears as `[image image/png, 70 bytes, 1a2b3c4d]`. */
  readonly text: string;
  /** Thoughts before the text, if the server separated them. */
  readonly reasoning: string;
  readonly calls: readonly { readonly name: string; readonly arguments: string }[];
}

/** Reason of a failed rollout. */
interface RowError {
  /** Its class: `ModelError`, `timeout`; failures are counted by it. */
  readonly cause: string;
  readonly message: string;
}

/** An event of a rollout; counted by `what`. */
interface RowNote {
  readonly what: string;
  readonly message: string;
}

/** The part of each row that is kept in memory, however large its texts are. */
export interface RowFacts {
  /** verifiers' number as text, or the key of a v1 task; without a sound id, the name from `tellExamples`. */
  readonly exampleId: string;
  /** Null: absent, or the rollout failed and the row's value is no reward. */
  readonly reward: number | null;
  /** The row's reward, for failed rollouts too: verifiers gives those 0, and counts it. */
  readonly givenReward: number | null;
  readonly error: RowError | null;
  /** Other events of the rollout, rewarded or not: reward functions that threw, repetitions. */
  readonly notes: readonly RowNote[];
  readonly metrics: Readonly<Record<string, number>>;
  readonly inputTokens: number | null;
  readonly outputTokens: number | null;
  readonly isTruncated: boolean;
  /** The prompt's last user message, its beginning. */
  readonly promptStart: string;
  /** Beginning of the last answer. */
  readonly answerStart: string;
}

export interface ResultRow extends RowFacts {
  readonly prompt: readonly ResultMessage[];
  readonly completion: readonly ResultMessage[];
  /** The right answer; null if the row has none. */
  readonly answer: string | null;
  readonly info: JsonValue | null;
  readonly stopCondition: string | null;
  /** Duration of the whole rollout. */
  readonly seconds: number | null;
  readonly tools: readonly string[];
  /** Columns without another place here. */
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

/** The text whose sha256 identifies a prompt: roles and words alone, so that two writers of one prompt agree. */
export function promptIdentity(row: Json): string {
  return messagesOf(row['prompt'])
    .map(({ role, text }) => `${role}\u0000${text}`)
    .join('\u0001');
}

/** A row's statements about its example; `digest` makes a short name of a text. */
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

/** Reads a whole row from a parsed line that satisfies `isRow`. */
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

/** verifiers before 0.2 counts milliseconds. Its columns hold 0 without a measurement. */
function secondsOf(timing: Json): number | null {
  const milliseconds = numberIn(timing, 'total_ms');
  return (milliseconds === null ? numberIn(timing, 'total') : milliseconds / 1000) || null;
}

function toolName(tool: unknown): string[] {
  if (!isObject(tool)) return [];
  const of = isObject(tool['function']) ? tool['function'] : tool;
  return typeof of['name'] === 'string' ? [of['name']] : [];
}

/** A list of messages, or one text from a completion API. */
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

/** Separates thoughts at the beginning of the text, where most chat templates have the model write them. */
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

/**
 * verifiers writes the calls of a completion as JSON texts, those of a prompt as objects; OpenAI's API nests them in
 * `function`.
 */
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

/** Ratchet's rows mark rewards beside an error that count. */
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

/** Avoids converting all messages: lists of 100,000 rows need only one text each. */
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

/** One line, as a new string: a slice would keep its whole text in memory. */
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
