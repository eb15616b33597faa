import { stat } from 'node:fs/promises';
import { z } from 'zod';
import { sftDataBytesMax } from '../../core/limits.ts';
import type { ChatMessage } from '../../core/rl/rollout.ts';
import { encodeRows } from '../store/objects.ts';
import { Refused } from './refused.ts';
import { readRegular, whyUnreadable } from '../../engine/regular-file.ts';

/** A conversation to learn from, as a run stores it. */
export interface SftRow {
  readonly messages: readonly ChatMessage[];
  /** Assistant messages from this position on are learned; those before it are context. */
  readonly from: number;
}

const Message = z.strictObject({
  role: z.enum(['system', 'user', 'assistant', 'tool']),
  content: z.string(),
});
const Messages = z.array(Message).min(1);
const Row = z.union([
  z.looseObject({ messages: Messages }),
  z.looseObject({ prompt: z.union([z.string(), Messages]), completion: z.union([z.string(), Messages]) }),
]);

/** Problems of a file that are told at once. */
const problemsMax = 10;
const shape =
  '{"messages": [{"role": …, "content": …}, …]} with an assistant message, or {"prompt": …, "completion": …}, each a text or messages';

/**
 * Reads a file of supervised rows, one JSON object a line; further keys of a row are left out. Throws `ConfigInvalid`
 * with the numbers of the lines that are wrong. The bytes are the rows as a run stores them.
 */
export async function readSftData(file: string): Promise<{ readonly rows: number; readonly bytes: Uint8Array }> {
  const text = await readText(file);
  const rows: SftRow[] = [];
  const problems: string[] = [];
  for (const [index, line] of text.split('\n').entries()) {
    if (line.trim() === '') continue;
    const row = rowOf(line);
    if (typeof row === 'string') problems.push(`  ${file}:${index + 1}: ${row}`);
    else rows.push(row);
  }
  if (problems.length > 0) {
    const more = problems.length > problemsMax ? [`  … and ${problems.length - problemsMax} more lines`] : [];
    const received = ['', ...problems.slice(0, problemsMax), ...more].join('\n');
    throw new Refused({ expected: `in each line ${shape}`, received });
  }
  if (rows.length === 0) {
    throw new Refused({ expected: `at least one line with ${shape}`, received: `${file}, which is empty` });
  }
  return { rows: rows.length, bytes: encodeRows(rows) };
}

async function readText(file: string): Promise<string> {
  const refuse = (what: string, cause?: unknown): Refused =>
    new Refused({ expected: 'a file with rows of JSON', received: `${what}: ${file}` }, cause);
  try {
    const { size } = await stat(file);
    if (size > sftDataBytesMax) throw refuse(`it has ${size} bytes, more than ${sftDataBytesMax}`);
    return new TextDecoder('utf8', { fatal: true }).decode(await readRegular(file));
  } catch (cause) {
    if (cause instanceof Refused) throw cause;
    if (cause instanceof TypeError) throw refuse('it is not UTF-8', cause);
    throw refuse(whyUnreadable(cause), cause);
  }
}

/** The row, or what is wrong with its line. */
function rowOf(line: string): SftRow | string {
  let raw: unknown;
  try {
    raw = JSON.parse(line);
  } catch {
    return 'no JSON';
  }
  const parsed = Row.safeParse(raw);
  if (!parsed.success) return whatIsWrong(raw);
  const row = rowFrom(parsed.data);
  const learned = row.messages.slice(row.from).filter(({ role }) => role === 'assistant');
  if (learned.length === 0) return 'no assistant message to learn';
  if (learned.some(({ content }) => content === '')) return 'an assistant message without text';
  if (row.messages[0]!.role === 'assistant') return 'a conversation that the assistant begins';
  return row;
}

function rowFrom(row: z.infer<typeof Row>): SftRow {
  const { messages } = row as { messages?: ChatMessage[] };
  if (messages !== undefined) return { messages, from: 0 };
  const { prompt, completion } = row as Record<'prompt' | 'completion', string | ChatMessage[]>;
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
    return issue ? `messages${issue.path.map((part) => `.${String(part)}`).join('')}: ${issue.message}` : 'other keys';
  }
  if ('prompt' in raw || 'completion' in raw) {
    const missing = ['prompt', 'completion'].filter((key) => !keys.includes(key));
    return missing.length > 0
      ? `no "${missing.join('", "')}"`
      : 'a prompt or completion that is no text and no messages';
  }
  return `only the keys ${keys.slice(0, 5).join(', ') || '(none)'}`;
}
