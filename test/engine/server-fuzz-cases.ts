/** Requests of every kind a server may meet, by seed. */
import { randomStream } from '../../core/random.ts';

/** Which answers are right: 200, an error of the 4xx, or either; `none` = the client goes away or breaks HTTP. */
export type Expectation = 'ok' | 'refused' | 'answered' | 'none';

export interface FuzzCase {
  readonly kind: string;
  readonly method: string;
  readonly path: string;
  readonly body: Buffer;
  readonly expect: Expectation;
  /** Bytes of the answer after which the client goes away; null = it stays. */
  readonly leavesAfterBytes: number | null;
  /** The client goes away with this part of its body sent. */
  readonly sentShare: number;
  /** Written to the socket as it is, instead of a request. */
  readonly raw: string | null;
}

type Draw = () => number;

/** Sequence of requests by seed: the i-th is the same whatever came before. */
export function fuzzCase(seed: number, i: number): FuzzCase {
  const draw = randomStream('fuzz', seed, i);
  const total = kinds.reduce((sum, [, weight]) => sum + weight, 0);
  let left = draw() * total;
  const [kind, , make] = kinds.find(([, weight]) => (left -= weight) < 0) ?? kinds[0]!;
  return {
    kind,
    method: 'POST',
    path: '/v1/completions',
    body: Buffer.alloc(0),
    expect: 'answered',
    leavesAfterBytes: null,
    sentShare: 1,
    raw: null,
    ...make(draw),
  };
}

const pick = <T>(draw: Draw, from: readonly T[]): T => from[Math.floor(draw() * from.length)]!;
const upTo = (draw: Draw, max: number): number => Math.floor(draw() * max);
const maybe = (draw: Draw, value: Record<string, unknown>): Record<string, unknown> => (draw() < 0.3 ? value : {});
const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));
/** Few, so that caches of prompts are full before memory is looked at. */
const words = ['a', 'cat', 'horse', 'elephant', 'zzz', 'reverse', 'qwerty', 'no'];
const word = (draw: Draw): string => pick(draw, words);

export const model = 'policy';

function samplingParameters(draw: Draw): Record<string, unknown> {
  return {
    max_tokens: 1 + upTo(draw, 4),
    ...maybe(draw, { temperature: pick(draw, [0, 0.5, 1, 2]) }),
    ...maybe(draw, { top_p: 0.1 + 0.9 * draw() }),
    ...maybe(draw, { top_k: pick(draw, [-1, 0, 1, 5]) }),
    ...maybe(draw, { min_p: draw() }),
    ...maybe(draw, { repetition_penalty: 0.5 + draw() }),
    ...maybe(draw, { presence_penalty: 4 * draw() - 2 }),
    ...maybe(draw, { frequency_penalty: 4 * draw() - 2 }),
    ...maybe(draw, { seed: upTo(draw, 1e6) }),
    ...maybe(draw, { n: 1 + upTo(draw, 3) }),
    ...maybe(draw, { stop: pick(draw, ['a', ['b', 'cd'], []]) }),
    ...maybe(draw, { stop_token_ids: [4 + upTo(draw, 26)] }),
    ...maybe(draw, { logit_bias: { [4 + upTo(draw, 26)]: 10 * draw() - 5 } }),
    ...maybe(draw, { ignore_eos: true }),
    ...maybe(draw, { min_tokens: 1 }),
    ...maybe(draw, { include_stop_str_in_output: true }),
    ...maybe(draw, { skip_special_tokens: false }),
  };
}

function answerParameters(draw: Draw): Record<string, unknown> {
  return {
    ...maybe(draw, { return_token_ids: true }),
    ...maybe(draw, { return_tokens_as_token_ids: true }),
    ...(draw() < 0.3 ? { stream: true, ...maybe(draw, { stream_options: { include_usage: true } }) } : {}),
  };
}

const tools = [{ type: 'function', function: { name: 'look', description: 'Looks.', parameters: { type: 'object' } } }];

/** A request that is right, as an object. */
function validBody(draw: Draw): { path: string; body: Record<string, unknown> } {
  const messages = [{ role: 'user', content: word(draw) }];
  switch (upTo(draw, 7)) {
    case 0:
      return { path: '/tokenize', body: { model, ...(draw() < 0.5 ? { prompt: word(draw) } : { messages }) } };
    case 1:
      return { path: '/detokenize', body: { model, tokens: [3, 4 + upTo(draw, 26)] } };
    case 2: {
      const sampling_params = { ...samplingParameters(draw), ...maybe(draw, { logprobs: 1 }) };
      return {
        path: '/inference/v1/generate',
        body: { model, token_ids: [3, 4 + upTo(draw, 26), 2], sampling_params },
      };
    }
    case 3:
    case 4: {
      const parameters = { ...samplingParameters(draw), ...answerParameters(draw), ...maybe(draw, { logprobs: true }) };
      const path = draw() < 0.3 ? '/v1/chat/completions/tokens' : '/v1/chat/completions';
      return { path, body: { model, messages, ...parameters, ...maybe(draw, { tools }) } };
    }
    default: {
      const prompt = pick(draw, [
        `<bos>${word(draw)}<sep>`,
        [3, 4 + upTo(draw, 26), 2],
        ['<bos>a<sep>', '<bos>b<sep>'],
      ]);
      const parameters = { ...samplingParameters(draw), ...answerParameters(draw), ...maybe(draw, { logprobs: 1 }) };
      return { path: '/v1/completions', body: { model, prompt, ...parameters } };
    }
  }
}

/** Unexpected values. */
const oddValues: readonly unknown[] = [
  null,
  true,
  -1,
  0,
  0.5,
  1e308,
  2 ** 53,
  -(2 ** 53),
  '',
  'x',
  '\ud800',
  'y'.repeat(50_000),
  [],
  [[]],
  [[[]]],
  [null],
  [-1],
  [1e9],
  ['a', 1],
  {},
  { a: { b: {} } },
  { type: 'function' },
  Array.from({ length: 2000 }, (_, i) => i),
  Array.from({ length: 300 }, (_, i) => `s${i}`),
  Object.fromEntries(Array.from({ length: 3000 }, (_, i) => [i, 1])),
];

/** Puts an unexpected value somewhere into a valid body, at any depth. */
function mutated(draw: Draw, value: unknown): unknown {
  if (typeof value !== 'object' || value === null || draw() < 0.1) return pick(draw, oddValues);
  const entries = Object.entries(value);
  if (entries.length === 0) return pick(draw, oddValues);
  const [key, inner] = pick(draw, entries);
  const replaced = draw() < 0.7 ? pick(draw, oddValues) : mutated(draw, inner);
  return Array.isArray(value) ? value.with(Number(key), replaced) : { ...value, [key]: replaced };
}

const hugeBodies: readonly ((draw: Draw) => Record<string, unknown>)[] = [
  () => ({ n: 1e9 }),
  () => ({ n: 60_000, max_tokens: 1_000_000 }),
  () => ({ max_tokens: 2 ** 53 }),
  () => ({ prompt: 'a'.repeat(200_000) }),
  () => ({ prompt: Array.from({ length: 20_000 }, () => 4) }),
  () => ({ logit_bias: Object.fromEntries(Array.from({ length: 20_000 }, (_, i) => [i, 1])) }),
  () => ({ stop: Array.from({ length: 5000 }, (_, i) => `stop${i}`) }),
  () => ({ stop: 'a'.repeat(100_000) }),
  () => ({ seeds: Array.from({ length: 10_000 }, (_, i) => i) }),
  () => ({ stop_token_ids: Array.from({ length: 10_000 }, (_, i) => i) }),
  (draw) => ({ [pick(draw, ['__proto__', 'constructor', 'toString', 'k'.repeat(20_000)])]: 1 }),
  () => ({ model: 'm'.repeat(100_000) }),
  () => ({ user: 'u'.repeat(200_000), prompt: [] }),
];

/** JSON text of a body; spreading would lose an own key called __proto__. */
function bodyWith(extra: Record<string, unknown>): Buffer {
  const parts = Object.entries({ model, prompt: '<bos>a<sep>', max_tokens: 2 })
    .filter(([key]) => !Object.hasOwn(extra, key))
    .concat(Object.entries(extra) as [string, string][])
    .map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`);
  return Buffer.from(`{${parts.join()}}`);
}

const brokenTexts: readonly ((draw: Draw) => Buffer)[] = [
  () => Buffer.from('{'),
  () => Buffer.from('not json'),
  () => Buffer.from('[1,2'),
  () => Buffer.from('"text"'),
  () => Buffer.from('null'),
  () => Buffer.from('{"model":"policy","prompt":"a","temperature":1e999}'),
  () => Buffer.from('{"model":"policy","prompt":"a","seed":123456789012345678901234567890}'),
  () => Buffer.concat([Buffer.from('{"model":"'), Buffer.from([0xff, 0xfe, 0xc0]), Buffer.from('"}')]),
  () => Buffer.from('['.repeat(100_000)),
  () => Buffer.from(`${'{"a":'.repeat(50_000)}1${'}'.repeat(50_000)}`),
  (draw) => Buffer.from(Array.from({ length: 1 + upTo(draw, 300) }, () => upTo(draw, 256))),
  (draw) => json(validBody(draw).body).subarray(0, 5),
];

const rawTexts: readonly string[] = [
  'GARBAGE\r\n\r\n',
  '\0\0\0\0\r\n\r\n',
  'POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n',
  'POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde',
  'POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n',
  `GET /health HTTP/1.1\r\nhost: a\r\nx: ${'x'.repeat(40_000)}\r\n\r\n`,
  'CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n',
  'POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nexpect: a miracle\r\ncontent-length: 0\r\n\r\n',
  'GET /health HTTP/1.1\r\nhost: a\r\n\r\n'.repeat(20),
  'POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}'.repeat(20),
];

const streamBody = (draw: Draw): Buffer =>
  json({
    model,
    prompt: `<bos>${word(draw)}<sep>`,
    n: 1 + upTo(draw, 4),
    max_tokens: 20,
    ignore_eos: true,
    stream: true,
  });

type Maker = (draw: Draw) => Partial<FuzzCase>;

const kinds: readonly (readonly [kind: string, weight: number, make: Maker])[] = [
  [
    'valid',
    30,
    (draw) => {
      const { path, body } = validBody(draw);
      return { path, body: json(body), expect: 'ok' };
    },
  ],
  [
    'look',
    8,
    (draw) => ({
      method: 'GET',
      path: pick(draw, ['/health', '/ping', '/version', '/metrics', '/v1/models']),
      expect: 'ok',
    }),
  ],
  ['broken text', 15, (draw) => ({ body: pick(draw, brokenTexts)(draw), expect: 'refused' })],
  [
    'wrong value',
    25,
    (draw) => {
      const { path, body } = validBody(draw);
      return { path, body: json(mutated(draw, body)) };
    },
  ],
  ['huge value', 6, (draw) => ({ body: bodyWith(pick(draw, hugeBodies)(draw)), expect: 'refused' })],
  [
    'wrong route',
    4,
    (draw) => ({
      method: pick(draw, ['GET', 'PUT', 'DELETE', 'POST']),
      path: `/${word(draw)}?${word(draw)}`,
      expect: 'refused',
    }),
  ],
  ['left stream', 6, (draw) => ({ body: streamBody(draw), leavesAfterBytes: upTo(draw, 2000), expect: 'none' })],
  ['torn upload', 3, (draw) => ({ body: streamBody(draw), sentShare: draw(), expect: 'none' })],
  ['broken HTTP', 3, (draw) => ({ raw: pick(draw, rawTexts), expect: 'none' })],
];
