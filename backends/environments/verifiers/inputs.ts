import { closeSync, openSync, readSync } from 'node:fs';
import { open, rm } from 'node:fs/promises';
import type { Example } from '../../../core/rl/rollout.ts';
import type { Dataset } from '../types.ts';
import type { UnlikeText } from '../unlike-text.ts';
import { chatMessage } from './conversation.ts';
import type { WireInputs, WireMessage, WireRow } from './protocol.ts';
import { RatchetError } from '../../../core/errors.ts';
import type { Bridge } from './bridge.ts';

/** A dataset of a Python environment: rows in a file, read by position, so that one of any size costs 8 bytes an example. */
export interface Inputs extends Dataset {
  /** What a rollout begins with, as verifiers wrote it: JSON, with what JavaScript's numbers do not keep. */
  lineAt(index: number): string;
  /** True where there is none, and whoever looks into it is told why. */
  readonly isMissing: boolean;
  close(): void;
}

/** How the examples that were written differ from those that the environment has; for people. */
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

/** Opens a file of JSON lines that nobody changes any more; it stays readable when it is removed. */
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
    at: (index) => exampleOf(index, JSON.parse(lineAt(index)) as WireRow),
    close: () => closeSync(descriptor),
  };
}

/** Where each line ends; a last line without an end was torn, and is none. */
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

function exampleOf(id: number, { prompt, answer, info }: WireRow): Example {
  const messages = Array.isArray(prompt) ? (prompt as unknown as WireMessage[]).map(chatMessage) : [];
  const details = isRecord(info) ? { info } : {};
  return {
    id,
    prompt: typeof prompt === 'string' ? [{ role: 'user', content: prompt }] : messages,
    answer: typeof answer === 'string' ? answer : answer == null ? '' : JSON.stringify(answer),
    ...details,
  };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A dataset that is not there; whoever looks into it is told why. */
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

/** One that it does not have is missed by whoever needs it: environments for evaluations alone have nothing to train on. */
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
    await rm(file); // what is open stays readable
    return inputs;
  } catch (cause) {
    if (!(cause instanceof RatchetError && cause.code === 'EnvironmentBroken')) throw cause;
    const what = split === 'train' ? 'dataset to train on' : 'dataset to evaluate on';
    return unreadable(new RatchetError('ConfigInvalid', `${id} has no ${what}: ${cause.message}`, { cause }));
  }
}
