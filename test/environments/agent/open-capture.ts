/** The address in front of a scripted policy, and what a program does with it. */
import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import OpenAI from 'openai';
import type { JsonValue } from '../../../core/json-value.ts';
import { trajectoryRows } from '../../../core/rl/rollout/trajectories.ts';
import { openCapture } from '../../../backends/environments/agent/capture/capture.ts';
import type { RolloutNotes } from '../../../backends/environments/types.ts';
import type { Capture, CaptureOptions } from '../../../backends/environments/agent/capture/types.ts';
import { type Answers, callOf, type Script, scriptedPolicy } from './scripted-policy.ts';

export const lookUp: OpenAI.ChatCompletionFunctionTool & { function: { description: string; parameters: object } } = {
  type: 'function',
  function: {
    name: 'look_up',
    description: 'Looks a word up.',
    parameters: { type: 'object', properties: { word: { type: 'string' } }, required: ['word'] },
  },
};

/** Calls its tool once, then answers. */
export const twoTurns = (prompt: string): string =>
  prompt.includes('<tool_response>') ? 'It means an owl.' : `Let me see.\n${callOf('look_up', { word: 'owl' })}`;

export async function open(
  t: TestContext,
  script: Script | Answers = twoTurns,
  more: Partial<CaptureOptions> = {},
): Promise<{ readonly capture: Capture; readonly policy: ReturnType<typeof scriptedPolicy>; readonly url: string }> {
  const policy = scriptedPolicy(typeof script === 'function' ? { says: script } : script);
  const capture = await openCapture({ policy, model: 'policy', signal: new AbortController().signal, ...more });
  t.after(() => capture.close());
  const url = `http://127.0.0.1:${await capture.listenOnLoopback()}`;
  return { capture, policy, url };
}

export const clientOf = (url: string, { key }: Capture): OpenAI =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });

export async function post(
  url: string,
  { key }: { readonly key: string },
  body: object,
  headers: Record<string, string> = { 'x-api-key': key },
): Promise<{ readonly status: number; readonly body: Json; readonly text: string }> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  });
  const text = await response.text();
  return { status: response.status, text, body: text.startsWith('{') ? (JSON.parse(text) as Json) : {} };
}

/** Fields of an answer. */
export type Json = Readonly<Record<string, unknown>>;

export const user = (content: string): OpenAI.ChatCompletionUserMessageParam => ({ role: 'user', content });

/** Events of a stream, in order. */
export function eventsOf(text: string): { readonly event: string | undefined; readonly data: Json }[] {
  return text
    .split('\n\n')
    .filter((one) => one.includes('data: {'))
    .map((one) => ({
      event: /^event: (.*)$/m.exec(one)?.[1],
      data: JSON.parse(/^data: (.*)$/m.exec(one)![1]!) as Json,
    }));
}

/** All tokens that count in the loss are those that were sampled, in one row. */
export function assertOneRow({ turns }: Capture): void {
  const [row, ...others] = trajectoryRows(turns, 'interleaved');
  assert.deepEqual(others, []);
  assert.deepEqual(
    row!.tokenIds.filter((_, t) => row!.lossMask[t] === 1),
    turns.flatMap(({ tokenIds }) => tokenIds),
  );
}

/** Notes of a rollout, for all its attempts. */
export function keptNotes(): RolloutNotes {
  const noted = new Map<string, Map<string, JsonValue>>();
  const of = (kind: string) => noted.get(kind) ?? new Map<string, JsonValue>();
  return {
    get: (kind, key) => Promise.resolve(of(kind).get(key)),
    put(kind, key, value) {
      noted.set(kind, new Map([[key, value], ...of(kind)]));
      return Promise.resolve(of(kind).get(key)!);
    },
    all: (kind) => Promise.resolve(of(kind)),
    uniqueKey: (key) => Promise.resolve(`unique ${key}`),
  };
}
