import { parseExact, stringifyExact } from '../../core/exact-json.ts';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { sftDataBytesMax } from '../../core/limits.ts';
import { present } from '../../core/present.ts';
import { encodeRows } from '../../store/objects.ts';
import { readRowLines, type RowLines, UnreadableRows } from '../../backends/rows/read-row-lines.ts';
import { Refused } from '../refused.ts';
import { howToBeTold, tellsContent } from '../../backends/untold.ts';

/** A conversation to learn from, as a run stores it. */
export interface SftRow {
  readonly messages: readonly SftMessage[];
  /** Assistant messages from this index on are trained; earlier ones are context. */
  readonly from: number;
  /** Tools that the model may call, in OpenAI's format; absent without tools. */
  readonly tools?: readonly object[];
}

/** Two answers to one prompt, the first of which is preferred. */
export interface SftPair {
  readonly chosen: SftRow;
  readonly rejected: SftRow;
}

/**
 * Arguments of a call as an object: JSON text is parsed (prime-rl's `deserialize_tool_calls`, utils/chat_template.py).
 */
const CallArguments = z
  .string()
  .transform((text, context): unknown => {
    try {
      return parseExact(text);
    } catch {
      context.addIssue({ code: 'custom', message: 'arguments that are no JSON' });
      return z.NEVER;
    }
  })
  .or(z.unknown())
  // Not copied: a copy would lose the spelling of its numbers.
  .pipe(z.custom<Record<string, unknown>>(isTable, 'Invalid input: expected an object'));
function isTable(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

const Call = z.preprocess(
  withoutNulls,
  z.strictObject({
    id: z.string().optional(),
    type: z.literal('function').default('function'),
    function: z.strictObject({ name: z.string().min(1), arguments: CallArguments.default({}) }),
  }),
);
const roles = ['system', 'user', 'assistant', 'tool'] as const;
/** A key that is null counts as missing: tables of rows have all keys of all rows (prime-rl's `_drop_null_fields`, trainer/sft/data.py). */
const Message = z.preprocess(
  withoutNulls,
  z.strictObject({
    role: z.enum(roles),
    content: z.string().default(''),
    /** Reasoning before the answer, under the name that OpenAI-compatible servers use. */
    reasoning_content: z.string().optional(),
    tool_calls: z.array(Call).optional(),
    tool_call_id: z.string().optional(),
    name: z.string().optional(),
  }),
);
type SftMessage = z.output<typeof Message>;

/**
 * OpenAI's format, or that of verifiers' rollouts (`tool_defs`), which is converted to it; a list, or the text of one.
 */
const Tool = z.looseObject({ type: z.literal('function'), function: z.looseObject({ name: z.string().min(1) }) }).or(
  z
    .looseObject({ name: z.string().min(1), description: z.unknown().optional(), parameters: z.unknown().optional() })
    .transform(({ name, description = null, parameters = null, strict }) => ({
      type: 'function',
      function: { name, description, parameters, ...present({ strict: strict ?? undefined }) },
    })),
);
const Tools = z.array(Tool);

const Messages = z.array(Message).min(1);
const Row = z.union([
  z.looseObject({ messages: Messages }),
  z.looseObject({ prompt: z.union([z.string(), Messages]), completion: z.union([z.string(), Messages]) }),
]);

function withoutNulls(message: unknown): unknown {
  if (typeof message !== 'object' || message === null || Array.isArray(message)) return message;
  return Object.fromEntries(Object.entries(message).filter(([, value]) => value !== null));
}

/** Most problems reported for one file. */
const problemsMax = 10;
const rowShape =
  '{"messages": [{"role": …, "content": …}, …]} with an assistant message, or {"prompt": …, "completion": …}, each a text or messages; with "tools" where messages have "tool_calls"';

const pairShape =
  '{"prompt": …, "chosen": …, "rejected": …}, each a text or messages, or "chosen" and "rejected" as messages that begin alike';

/**
 * Reads supervised rows of a file, or of several as one: of `.parquet`, else one JSON object a line; further keys of a row are left out. Throws
 * `ConfigInvalid` with the numbers of the lines, or rows, that are wrong. The bytes are the rows as a run stores them.
 */
export async function readSftData(
  files: string | readonly string[],
  { pairs: arePairs = false }: { readonly pairs?: boolean } = {},
): Promise<{ readonly rows: number; readonly bytes: Uint8Array }> {
  const shape = arePairs ? pairShape : rowShape;
  const rows: (SftRow | SftPair)[] = [];
  const problems: string[] = [];
  let bytesLeft = sftDataBytesMax;
  for (const file of [files].flat()) {
    const { lines, sizeBytes } = await readLines(file, bytesLeft);
    bytesLeft -= sizeBytes;
    for (const [index, line] of lines.entries()) {
      if (line.trim() === '') continue;
      const row = arePairs ? pairOf(line) : rowOf(line);
      if (typeof row === 'string') problems.push(`  ${file}:${index + 1}: ${tellsContent() ? row : 'another'}`);
      else rows.push(row);
    }
  }
  if (problems.length > 0) {
    const more = problems.length > problemsMax ? [`  … and ${problems.length - problemsMax} more lines`] : [];
    const received = ['', ...problems.slice(0, problemsMax), ...more].join('\n');
    const suggestion = tellsContent() ? {} : { suggestion: howToBeTold };
    throw new Refused({ expected: `in each line ${shape}`, received, ...suggestion });
  }
  if (rows.length === 0) {
    throw new Refused({
      expected: `at least one line with ${shape}`,
      received: `${[files].flat().join(', ')}, which is empty`,
    });
  }
  return { rows: rows.length, bytes: encodeRows(rows) };
}

async function readLines(file: string, bytesMax: number): Promise<RowLines> {
  try {
    return await readRowLines(file, bytesMax);
  } catch (cause) {
    if (!(cause instanceof UnreadableRows)) throw cause;
    throw new Refused({ expected: 'a file with rows of JSON, or of Parquet', received: cause.message }, cause);
  }
}

const Pair = z.looseObject({
  prompt: z.union([z.string(), Messages]).optional(),
  chosen: z.union([z.string(), Messages]),
  rejected: z.union([z.string(), Messages]),
});

/**
 * Format of TRL's preference rows; without a prompt, the common beginning of both conversations is the prompt
 * (`extract_prompt`, data_utils.py).
 */
function pairOf(line: string): SftPair | string {
  const raw = jsonOf(line);
  if (raw === undefined) return 'no JSON';
  const parsed = Pair.safeParse(raw);
  if (!parsed.success) {
    const keys = typeof raw === 'object' && raw !== null ? Object.keys(raw) : [];
    const missing = ['chosen', 'rejected'].filter((key) => !keys.includes(key));
    return missing.length > 0
      ? `no "${missing.join('", "')}"`
      : 'a prompt, chosen or rejected that is no text and no messages';
  }
  const { prompt, chosen, rejected } = parsed.data;
  const tools = parsed.data['tools'] ?? parsed.data['tool_defs'];
  const sides = { chosen, rejected };
  if (prompt === undefined) {
    if (typeof chosen === 'string' || typeof rejected === 'string') return 'no "prompt" before answers that are texts';
    const differ = chosen.findIndex((message, i) => JSON.stringify(message) !== JSON.stringify(rejected[i]));
    const from = differ < 0 ? chosen.length : differ;
    const rows = Object.values(sides).map((messages) => ({
      prompt: (messages as SftMessage[]).slice(0, from),
      completion: (messages as SftMessage[]).slice(from),
    }));
    if (from === 0 || rows.some(({ completion }) => completion.length === 0))
      return 'chosen and rejected that do not begin alike and then differ';
    return pairFrom(rows.map((row) => rowOf(stringifyExact({ ...row, tools }))));
  }
  return pairFrom(Object.values(sides).map((completion) => rowOf(stringifyExact({ prompt, completion, tools }))));
}

function pairFrom([chosen, rejected]: readonly (SftRow | string)[]): SftPair | string {
  if (typeof chosen !== 'object') return `chosen: ${chosen}`;
  if (typeof rejected !== 'object') return `rejected: ${rejected}`;
  if (isDeepStrictEqual(chosen, rejected)) return 'chosen and rejected that are the same: nothing is preferred';
  return { chosen, rejected };
}

/** undefined for invalid JSON. */
function jsonOf(line: string): unknown {
  try {
    return parseExact(line);
  } catch {
    return undefined;
  }
}

/** The row, or the problem with its line. */
function rowOf(line: string): SftRow | string {
  const raw = jsonOf(line);
  if (raw === undefined) return 'no JSON';
  const parsed = Row.safeParse(raw);
  if (!parsed.success) return whatIsWrong(raw);
  const tools = toolsOf(parsed.data);
  if (typeof tools === 'string') return tools;
  const row = { ...rowFrom(parsed.data), ...(tools.length === 0 ? {} : { tools }) };
  const learned = row.messages.slice(row.from).filter(({ role }) => role === 'assistant');
  if (learned.length === 0) return 'no assistant message to learn';
  const isEmpty = ({ content, reasoning_content: thought = '', tool_calls: calls = [] }: SftMessage): boolean =>
    content === '' && thought === '' && calls.length === 0;
  if (learned.some(isEmpty)) return 'an assistant message without text';
  if (row.messages.some(({ role, tool_calls: calls }) => calls && role !== 'assistant'))
    return 'tool_calls of another than the assistant';
  if (row.messages[0]!.role === 'assistant') return 'a conversation that the assistant begins';
  return row;
}

function toolsOf(row: Record<string, unknown>): readonly object[] | string {
  const given = row['tools'] ?? row['tool_defs'] ?? [];
  let tools: unknown = given;
  try {
    if (typeof given === 'string') tools = parseExact(given);
  } catch {
    return 'tools that are a text and no JSON';
  }
  const parsed = Tools.safeParse(tools ?? []);
  return parsed.success ? parsed.data : 'tools that are no list of functions with names';
}

function rowFrom(row: z.infer<typeof Row>): SftRow {
  const { messages } = row as { messages?: SftMessage[] };
  if (messages !== undefined) return { messages, from: 0 };
  const { prompt, completion } = row as Record<'prompt' | 'completion', string | SftMessage[]>;
  const before = typeof prompt === 'string' ? [{ role: 'user' as const, content: prompt }] : prompt;
  const after = typeof completion === 'string' ? [{ role: 'assistant' as const, content: completion }] : completion;
  return { messages: [...before, ...after], from: before.length };
}

function whatIsWrong(raw: unknown): string {
  if (typeof raw !== 'object' || raw === null || Array.isArray(raw)) return 'no object';
  const keys = Object.keys(raw);
  if ('messages' in raw) {
    const found = Messages.safeParse(raw.messages);
    const [issue] = found.success ? [] : found.error.issues;
    return issue ? `${z.core.toDotPath(['messages', ...issue.path])}: ${issue.message}` : 'other keys';
  }
  if ('prompt' in raw || 'completion' in raw) {
    const missing = ['prompt', 'completion'].filter((key) => !keys.includes(key));
    return missing.length > 0
      ? `no "${missing.join('", "')}"`
      : 'a prompt or completion that is no text and no messages';
  }
  return `only the keys ${keys.slice(0, 5).join(', ') || '(none)'}`;
}
