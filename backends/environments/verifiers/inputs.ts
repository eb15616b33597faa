import { memberAsWritten, parseExact } from '../../../core/exact-json.ts';
import { closeSync, openSync, readSync } from 'node:fs';
import { open, rm } from 'node:fs/promises';
import type { Example } from '../../../core/rl/rollout/rollout.ts';
import type { Dataset } from '../types.ts';
import type { UnlikeText } from '../unlike-text.ts';
import { chatMessage } from './conversation.ts';
import type { WireInputs, WireMessage, WireRow } from './protocol.ts';
import { RatchetError } from '../../../core/errors.ts';
import type { Bridge } from './bridge.ts';

/** A dataset of a Python environment: rows in a file, read by index, so that any size costs 8 bytes an example. */
export interface Inputs extends Dataset {
  /** A rollout's input, as JSON by verifiers, with the numbers that JavaScript would round. */
  lineAt(index: number): string;
  /** True if there is no dataset; reading it throws the reason. */
  readonly isMissing: boolean;
  close(): void;
}

/** Differences between the written examples and the environment's own; for people. */
export function whatIsOtherwise(
  name: string,
  {
    changed_columns: columns,
    cut_off: isCutOff = false,
    total,
  }: Pick<WireInputs, 'changed_columns' | 'cut_off' | 'total'>,
): string[] {
  return [
    ...(columns.length === 0
      ? []
      : [
          `${name}: ${columns.join(', ')} of its dataset ${columns.length === 1 ? 'has' : 'have'} values that JSON has not (bytes, dates, NaN, tuples): its rollouts and reward functions get what stands there in JSON in their place.`,
        ]),
    ...(isCutOff
      ? [`${name} has tasks without end: the first ${total} are taken; args = { select = { limit = N } } takes others.`]
      : []),
  ];
}

const newline = 0x0a;

/** Opens a file of JSON lines that no longer changes; it stays readable after its removal. */
export async function openInputs(file: string, unlike: UnlikeText | null = null): Promise<Inputs> {
  const ends = await lineEnds(file);
  const descriptor = openSync(file, 'r');
  const lineAt = (index: number): string => {
    if (!(index in ends)) throw new RangeError(`Example ${index} of a dataset of ${ends.length}.`);
    const start = index === 0 ? 0 : ends[index - 1]! + 1;
    const bytes = Buffer.alloc(ends[index]! - start);
    readSync(descriptor, bytes, 0, bytes.length, start);
    return bytes.toString('utf8');
  };
  return {
    length: ends.length,
    isMissing: false,
    unlikeText: () => unlike,
    lineAt,
    at: (index) => exampleOf(index, parseExact(lineAt(index)) as WireRow),
    close: () => closeSync(descriptor),
  };
}

/** Line ends; a last line without an end was torn, and does not count. */
async function lineEnds(file: string): Promise<Float64Array> {
  const ends: number[] = [];
  const handle = await open(file, 'r');
  try {
    const chunk = Buffer.alloc(1 << 20);
    for (let at = 0; ;) {
      const { bytesRead } = await handle.read(chunk, 0, chunk.length, at);
      if (bytesRead === 0) return Float64Array.from(ends);
      const read = chunk.subarray(0, bytesRead);
      for (let i = read.indexOf(newline); i >= 0; i = read.indexOf(newline, i + 1)) ends.push(at + i);
      at += bytesRead;
    }
  } finally {
    await handle.close();
  }
}

function exampleOf(id: number, row: WireRow): Example {
  const { prompt, answer, info } = row;
  const messages = Array.isArray(prompt) ? (prompt as unknown as WireMessage[]).map(chatMessage) : [];
  const details = isRecord(info) ? { info } : {};
  return {
    id,
    prompt: typeof prompt === 'string' ? [{ role: 'user', content: prompt }] : messages,
    answer: typeof answer === 'string' ? answer : answer == null ? '' : memberAsWritten(row, 'answer'),
    ...details,
  };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A missing dataset; reading it throws the reason. */
function unreadable(reason: Error): Inputs {
  const refuse = (): never => {
    throw reason;
  };
  return {
    get length() {
      return refuse();
    },
    isMissing: true,
    unlikeText: () => null,
    at: refuse,
    lineAt: refuse,
    close: () => undefined,
  };
}

/** A missing dataset only fails when it is read: environments for evaluations alone have no training examples. */
export async function inputsOf(
  bridge: Bridge,
  {
    id,
    env,
    split,
    note,
  }: {
    readonly id: string;
    readonly env: string;
    readonly split: 'train' | 'eval';
    readonly note: (said: string) => void;
  },
): Promise<Inputs> {
  try {
    const written = await bridge.inputs({ env, split });
    const { file } = written;
    for (const said of whatIsOtherwise(id, written)) note(said);
    const inputs = await openInputs(file, written.unlike_text ?? null);
    await rm(file); // the open file stays readable
    return inputs;
  } catch (cause) {
    if (!(cause instanceof RatchetError && cause.code === 'EnvironmentBroken')) throw cause;
    const what = split === 'train' ? 'dataset to train on' : 'dataset to evaluate on';
    return unreadable(new RatchetError('ConfigInvalid', `${id} has no ${what}: ${cause.message}`, { cause }));
  }
}
