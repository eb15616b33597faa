import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { gzipSync } from 'node:zlib';
import { openJudge } from '../../backends/environments/judge.ts';
import { HubClient } from '../../backends/hub/hub-client.ts';
import { openEndpoint } from '../../backends/inference/openai/endpoint.ts';
import { examineReflection } from '../../backends/inference/openai/examine-reflection.ts';
import { examineServer } from '../../backends/inference/openai/examine-server.ts';
import { ModelServer } from '../../backends/inference/model-server.ts';
import { turnIn } from '../../backends/inference/openai/chat-answer.ts';
import { promptLogprobsIn, samplesIn, withTokenIds } from '../../backends/inference/openai/openai-bodies.ts';
import { pricesAt } from '../../backends/inference/openai/prices.ts';
import { VllmRoutes } from '../../backends/inference/vllm/vllm-routes.ts';
import { askWeightsAgent } from '../../backends/inference/vllm/weights-agent-client.ts';
import { MlflowSink } from '../../backends/metrics/mlflow.ts';
import { OtlpSink } from '../../backends/metrics/otlp.ts';
import { TinkerClient } from '../../backends/tinker/client.ts';
import { postNotice } from '../../backends/webhook.ts';
import type { PromptBranchSpec } from '../../config/settings/prompt-branches.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';
import type { Random } from './damages.ts';
import { type BadCase, shuffled, some, WronglyTaken } from './part.ts';

/** Answers with one request; `good` is what a right server would say to it. */
type Answer = (asked: IncomingMessage, response: ServerResponse, good: Good) => void;

/** The right answer of a route: JSON, or headers alone. */
interface Good {
  readonly json: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

/** One way in which we ask servers. */
interface Client {
  readonly name: string;
  /** Good answers by the beginning of the path; the first match counts. */
  readonly good: readonly (readonly [path: string, good: Good])[];
  /** The route whose answer is spoiled; the others answer well. Missing = all. */
  readonly spoiled?: string;
  /** Resolves with what came of the answer. */
  ask(url: string): Promise<unknown>;
  /** Fault of a result that should have been refused; null = none. */
  isWrong?(result: unknown): string | null;
  /** Waits longer for an answer than a case may take. */
  readonly isPatient?: boolean;
  /** Whether it stays silent when it cannot use an answer. */
  readonly isSilent?: boolean;
}

const policy: ServedPolicy = {
  name: 'words:main:1',
  folder: '/nowhere',
  version: {
    step: 1,
    digest: 'ab',
    weights: 'weights/step_1/',
    file: { key: 'k', sha256: 'ab', bytes: 1 },
    sums: { key: 'k', sha256: 'ab', bytes: 1 },
  },
};

const timeoutMs = 1_500;

function modelServer(url: string): ModelServer {
  const address = { url: `${url}/v1`, apiKeyVar: null, headers: {}, headersFromEnv: {}, model: 'm' };
  return new ModelServer(address, { timeoutMs, provider: 'cpu' });
}

/** A signal like a cancelled activity's, whose reason is its own. */
function givingUpAfter(ms: number): AbortSignal {
  const controller = new AbortController();
  setTimeout(() => controller.abort(new Error('whoever asked has given up')), ms).unref();
  return controller.signal;
}

async function closing<T extends { close(): void }, R>(what: T, use: (what: T) => Promise<R>): Promise<R> {
  try {
    return await use(what);
  } finally {
    what.close();
  }
}

const isIds = (value: unknown): boolean =>
  Array.isArray(value) && value.every((id) => Number.isSafeInteger(id) && id >= 0);
const areFinite = (value: unknown, count: number): boolean =>
  Array.isArray(value) && value.length === count && value.every((one) => Number.isFinite(one) && (one as number) <= 0);

const completion = {
  choices: [{ index: 0, finish_reason: 'stop', token_ids: [1, 2], logprobs: { token_logprobs: [-0.5, -1] } }],
};
const chat = {
  id: 'x',
  choices: [
    {
      index: 0,
      finish_reason: 'stop',
      message: {
        role: 'assistant',
        content: 'one',
        reasoning_content: 'hm',
        tool_calls: [{ id: 'a', type: 'function', function: { name: 'add', arguments: '{}' } }],
      },
      token_ids: [1, 2],
      logprobs: { content: [{ logprob: -0.5 }, { logprob: -1 }] },
    },
  ],
  prompt_token_ids: [3],
  usage: { prompt_tokens: 1, completion_tokens: 2 },
};
const scored = { choices: [{ index: 0, prompt_logprobs: [null, { '4': { logprob: -0.5 } }] }] };
const models = { data: [{ id: 'm', parent: null, pricing: { input_usd_per_mtok: 1, output_usd_per_mtok: 2 } }] };
const modelInfo = {
  sha: 'a'.repeat(40),
  siblings: [
    { rfilename: 'config.json', size: 3, blobId: 'b'.repeat(40) },
    { rfilename: 'model.safetensors', size: 9, blobId: 'c'.repeat(40), lfs: { sha256: 'd'.repeat(64), size: 9 } },
  ],
};
const experiment = { experiment: { experiment_id: '1', lifecycle_stage: 'active' } };
const mlflowRuns = {
  runs: [
    {
      info: { run_id: 'r', status: 'RUNNING' },
      data: {
        tags: [
          { key: 'ratchet.lineage', value: 'main' },
          { key: 'ratchet.next', value: '0' },
        ],
      },
    },
  ],
};
const row = { lineage: 'main', step: 1, time: '2026-11-28T00:00:00Z', 'train/reward': 0.5 };

interface TurnLike {
  readonly text: unknown;
  readonly tokenIds: unknown;
  readonly logprobs: unknown;
  readonly usage: { readonly promptTokens: unknown; readonly completionTokens: unknown } | null;
}

function wrongTurn(result: unknown): string | null {
  const { text, usage, tokenIds, logprobs } = result as TurnLike;
  if (typeof text !== 'string') return 'its text is none';
  if (tokenIds !== null && logprobs !== null && !areFinite(logprobs, (tokenIds as unknown[]).length))
    return 'its log probabilities are not one for each token';
  const counts = usage === null ? [] : [usage.promptTokens, usage.completionTokens];
  return counts.every((count) => Number.isSafeInteger(count) && Number(count) >= 0) ? null : 'its usage is no count';
}

const clients: readonly Client[] = [
  {
    name: 'endpoint',
    good: [['/v1/chat/completions', { json: chat }]],
    ask: (url) =>
      closing(
        openEndpoint([{ model: 'm', baseUrl: `${url}/v1`, apiKeyVar: null, headers: {} }], {
          timeoutMs,
          maxConcurrent: 4,
          patienceMs: 300,
        }),
        // A busy server is awaited for as long as the caller waits.
        (endpoint) =>
          endpoint.chat({
            messages: [{ role: 'user', content: 'a' }],
            fields: {},
            signal: givingUpAfter(4 * timeoutMs),
          }),
      ),
    isWrong: (result) => wrongTurn({ ...(result as TurnLike), logprobs: null }),
  },
  {
    name: 'turn of training',
    good: [['/v1/chat/completions', { json: chat }]],
    ask: (url) =>
      closing(modelServer(url), async (server) =>
        turnIn(await server.post('/v1/chat/completions', {}), { tokens: 'required' }, server.root),
      ),
    isWrong: wrongTurn,
  },
  {
    name: 'completion',
    good: [['/v1/completions', { json: completion }]],
    ask: (url) =>
      closing(modelServer(url), async (server) =>
        samplesIn(await server.post('/v1/completions', withTokenIds), { count: 1, root: server.root }),
      ),
    isWrong: (result) => {
      const [sample] = result as { readonly tokenIds: unknown[]; readonly logprobs: unknown }[];
      if (!isIds(sample?.tokenIds)) return 'its ids are none';
      return areFinite(sample!.logprobs, sample!.tokenIds.length)
        ? null
        : 'its log probabilities are not one for each token';
    },
  },
  {
    name: 'teacher',
    good: [['/v1/completions', { json: scored }]],
    ask: (url) =>
      closing(modelServer(url), async (server) =>
        promptLogprobsIn(await server.post('/v1/completions', {}), [[3, 4]], server.root),
      ),
    isWrong: (result) => {
      const [given] = result as number[][];
      return areFinite(given, 2) ? null : 'its log probabilities are none';
    },
  },
  {
    name: 'judge',
    good: [['/v1/chat/completions', { json: chat }]],
    ask: (url) =>
      openJudge({ base_url: `${url}/v1`, model: 'm', max_retries: 0, timeout_s: timeoutMs / 1000 }).ask('a'),
    isWrong: (result) => (typeof result === 'string' ? null : 'it is no text'),
  },
  {
    name: 'prices',
    good: [['/v1/models', { json: models }]],
    ask: (url) => pricesAt({ model: 'm', baseUrl: `${url}/v1`, apiKeyVar: null, headers: {} }, 'm'),
    isWrong: (result) =>
      result === null || Object.values(result as object).every((one) => Number.isFinite(one) && Number(one) >= 0)
        ? null
        : 'it is no price',
    isSilent: true,
  },
  {
    name: 'server that is looked at',
    good: [
      ['/v1/models', { json: models }],
      ['/version', { json: { version: '0.32' } }],
      ['/v1/completions', { json: completion }],
      ['/', { json: {} }],
    ],
    ask: (url) =>
      examineServer(
        { url: `${url}/v1`, apiKeyVar: null, headers: {}, headersFromEnv: {}, model: 'm' },
        { isVllm: true },
      ),
    isSilent: true,
  },
  {
    name: 'reflection server that is looked at',
    good: [['/', { json: models }]],
    ask: (url) => examineReflection({ url: `${url}/v1`, apiKeyVar: null, reflectionModel: 'm' } as PromptBranchSpec),
    isSilent: true,
  },
  {
    name: 'vLLM',
    good: [['/v1/models', { json: models }]],
    ask: (url) => closing(modelServer(url), (server) => new VllmRoutes(server, 'auto').models()),
    isWrong: (result) => (typeof (result as { base: unknown }).base === 'string' ? null : 'it has no name'),
  },
  {
    name: 'weights agent',
    good: [['/locate', { json: { folder: '/weights/words/1' } }]],
    ask: (url) => askWeightsAgent(url)(policy),
    isWrong: (result) => (typeof result === 'string' ? null : 'it is no folder'),
    isPatient: true,
  },
  {
    name: 'Hub',
    good: [['/api/models/', { json: modelInfo }]],
    ask: (url) => hub(url).repository('a/b', 'main'),
    isWrong: (result) => {
      const { commit, names, files } = result as Awaited<ReturnType<HubClient['repository']>>;
      if (!/^[0-9a-f]{40}$/.test(commit)) return 'its commit is none';
      if (new Set(names).size !== names.length) return 'a file is named twice';
      return [...files.values()].every(({ sizeBytes }) => Number.isSafeInteger(sizeBytes) && sizeBytes >= 0)
        ? null
        : 'a size is none';
    },
  },
  {
    name: 'file of the Hub',
    good: [['/', { json: {}, headers: { 'x-linked-etag': `"${'d'.repeat(64)}"`, 'x-linked-size': '9' } }]],
    ask: (url) => hub(url).file('a/b', 'a'.repeat(40), 'config.json'),
    isWrong: (result) => {
      const { sizeBytes, digest } = result as { readonly sizeBytes: number; readonly digest: string };
      const isSize = Number.isSafeInteger(sizeBytes) && sizeBytes >= 0;
      return isSize && /^[0-9a-f]{40,64}$/.test(digest) ? null : 'its size or digest is none';
    },
  },
  ...(['create_session', 'create_model', 'retrieve_future', 'get_server_capabilities'] as const).map(
    (route): Client => ({
      name: `Tinker, ${route}`,
      good: [
        [
          '/api/v1/get_server_capabilities',
          { json: { supported_models: [{ model_name: 'm', max_context_length: 9 }] } },
        ],
        ['/api/v1/create_session', { json: { session_id: 's' } }],
        ['/api/v1/create_model', { json: { request_id: 'r' } }],
        ['/api/v1/retrieve_future', { json: { model_id: 'm1' } }],
      ],
      spoiled: `/api/v1/${route}`,
      ask: (url) =>
        closing(tinker(url), (client) =>
          route === 'get_server_capabilities'
            ? client.capabilities()
            : client.createModel({ baseModel: 'm', rank: 4, seed: 1 }).then(({ id }) => id),
        ),
      isWrong: (result) => (typeof result === 'string' || Array.isArray(result) ? null : 'it is no name'),
      isPatient: true,
    }),
  ),
  {
    name: 'Tinker, sample',
    good: [
      ['/api/v1/asample', { json: { request_id: 'r' } }],
      [
        '/',
        {
          json: {
            sequences: [{ stop_reason: 'stop', tokens: [1, 2], logprobs: [-0.5, -1] }],
            prompt_logprobs: [null, -1],
          },
        },
      ],
    ],
    spoiled: '/api/v1/retrieve_future',
    ask: (url) =>
      closing(tinker(url), (client) =>
        client.sample({
          path: 'tinker://x',
          prompt: [3, 4],
          params: { max_tokens: 2, temperature: 1, seed: 1 },
          promptLogprobs: true,
        }),
      ),
    isPatient: true,
  },
  ...(['experiments/get-by-name', 'runs/search', 'runs/log-batch', 'metrics/get-history'] as const).map(
    (route): Client => ({
      name: `MLflow, ${route}`,
      good: [
        ['/api/2.0/mlflow/experiments/get-by-name', { json: experiment }],
        ['/api/2.0/mlflow/runs/search', { json: mlflowRuns }],
        ['/api/2.0/mlflow/metrics/get-history', { json: { metrics: [{ step: 1 }], next_page_token: '' } }],
        ['/', { json: {} }],
      ],
      spoiled: `/api/2.0/mlflow/${route}`,
      ask: async (url) => {
        const sink = new MlflowSink({
          trackingUri: () => url,
          experiment: 'e',
          runName: 'words',
          id: 'abc',
          params: { a: 1 },
          environment: {},
        });
        const next = await sink.open();
        await sink.send([{ number: 0, row }]);
        await sink.close(true);
        return next;
      },
      isWrong: (next) => (Number.isSafeInteger(next) && Number(next) >= 0 ? null : 'it goes on from no row'),
      isPatient: true,
    }),
  ),
  {
    name: 'OpenTelemetry',
    good: [['/', { json: {} }]],
    ask: async (url) => {
      const sink = new OtlpSink({
        collector: () => ({ traces: `${url}/v1/traces`, metrics: `${url}/v1/metrics` }),
        headers: { traces: {}, metrics: {} },
        resource: { 'rl.run.id': 'words' },
        id: 'abc',
        episodes: { share: 0, of: () => Promise.resolve([]) },
      });
      await sink.open(0);
      await sink.send([{ number: 0, row }]);
    },
    isPatient: true,
    isSilent: true,
  },
  {
    name: 'webhook',
    good: [['/', { json: {} }]],
    ask: (url) =>
      postNotice(
        {
          url: new URL(`${url}/hook`),
          server: { what: 'The webhook', url: `${url}/hook`, keys: [] },
          format: 'json',
          secret: null,
          mayBePrivate: true,
        },
        'words',
        { id: '1', kind: 'note', step: 1, text: 'a', time: '2026-11-28T00:00:00Z' } as never,
      ),
    isSilent: true,
    isPatient: true,
  },
];

function hub(url: string): HubClient {
  return new HubClient({ endpoint: url, cache: '/nowhere', isOffline: false, token: null });
}

function tinker(url: string): TinkerClient {
  return new TinkerClient({ url, apiKeyVar: null, server: 'skyrl' }, { patienceMs: 300 });
}

const json = (value: unknown): string => JSON.stringify(value);
const said =
  (text: string | Buffer, status = 200, headers: Readonly<Record<string, string>> = {}): Answer =>
  (_, response, good) =>
    void response.writeHead(status, { 'content-type': 'application/json', ...good.headers, ...headers }).end(text);
const error = (message: string): string => json({ error: { message } });

/** Writes until the client is gone. */
function endless(response: ServerResponse, piece: Buffer, everyMs = 0): void {
  const write = (): void => {
    if (response.destroyed) return;
    if (everyMs > 0) return void (response.write(piece), setTimeout(write, everyMs));
    while (!response.destroyed && response.write(piece));
    response.once('drain', write);
  };
  write();
}

let bomb: Buffer | undefined;
const wordless = '<html><body><h1>502 Bad Gateway</h1>nginx</body></html>';

/** Wrong answers that any server may give. */
const answers: Readonly<Record<string, Answer>> = {
  'says nothing': said(''),
  'says blanks': said(' \n '),
  'says a page': said(wordless, 200, { 'content-type': 'text/html' }),
  'says null': said('null'),
  'says a list': said('[null, 7, {}]'),
  'says a text': said('"\\u001b[2J\\u202e"'),
  'says a number': said('7'),
  'says an empty object': said('{}'),
  'is cut in its JSON': (_, response, { json: good }) => void response.end(json(good).slice(0, -3)),
  'is cut in its body': (_, response, { json: good }) => {
    response.writeHead(200, { 'content-length': '100000' });
    response.write(json(good), () => response.destroy());
  },
  'is longer than it says': (_, response, { json: good }) => {
    response.socket?.end(`HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n${json(good)}`);
  },
  'has a byte order mark': (_, response, { json: good }) => void response.end(`\ufeff${json(good)}`),
  'is not UTF-8': said(Buffer.from([0xff, 0xfe, 0x1b, 0x5b, 0x32, 0x4a])),
  'has NaN in it': (_, response, { json: good }) => void response.end(json(good).replaceAll(/-?\d+\.?\d*/g, 'NaN')),
  'has numbers without end': (_, response, { json: good }) =>
    void response.end(json(good).replaceAll(/(?<=[:[,])-?\d+\.?\d*/g, '1e999')),
  'has numbers below 0': (_, response, { json: good }) =>
    void response.end(json(good).replaceAll(/(?<=[:[,])-?\d+\.?\d*/g, '-7')),
  'has fields twice': (_, response, { json: good }) => {
    const text = json(good);
    response.end(
      text.replace(/^\{/, `{"choices":null,"sha":null,"folder":null,"data":null,${text.slice(1, -1) || '"x":1'},`),
    );
  },
  'has fields of prototypes': (_, response, { json: good }) =>
    void response.end(
      json(good).replaceAll('{', '{"__proto__":{"x":1},"constructor":{"prototype":{}},').replaceAll(',}', '}'),
    ),
  'is nested deeply': said('['.repeat(100_000) + ']'.repeat(100_000)),
  'is an object nested deeply': said('{"error":'.repeat(50_000) + '1' + '}'.repeat(50_000)),
  'says an error with 200': said(error('the model is overloaded')),
  'says an error that is a text': said(json({ error: 'overloaded' })),
  'says an error that is null': said(json({ error: null, error_code: null, detail: null })),
  'says an error that steers': said(error('\u001b[2J\u202eevil'), 400),
  'says an error that is a page that steers': said('<html>\u001b]0;title\u0007\u202e', 502),
  'says an error of a megabyte': said(error('long '.repeat(200_000)), 400),
  'says an error without words': said('', 400),
  'says an error of other fields': said(json({ detail: [{ loc: ['body'], msg: 'no' }], message: 5, error: [] }), 422),
  'answers 204': said('', 204),
  'answers 206': said('{"choices":[', 206),
  'sends on': said('', 302, { location: 'http://127.0.0.1:9/elsewhere' }),
  'sends on for good': said('', 308, { location: 'http://127.0.0.1:9/elsewhere' }),
  'sends on to itself': (asked, response) => void response.writeHead(307, { location: asked.url! }).end(),
  'sends on to nowhere': said('', 307),
  'sends on to no address': said('', 301, { location: 'http://[' }),
  'sends on to a file': said('', 302, { location: 'file:///etc/passwd' }),
  'answers 300': said('', 300),
  'answers 400': said(error('no'), 400),
  'answers 401': said(error('the key sk-1234 is wrong'), 401),
  'answers 403': said('', 403),
  'answers 404': said(wordless, 404),
  'answers 408': said('', 408),
  'answers 409': said(error('no'), 409),
  'answers 418': said('teapot', 418),
  'answers 429': said(error('slow down'), 429, { 'retry-after': '0' }),
  'answers 429 until never': said(error('slow down'), 429, { 'retry-after': '-1e99' }),
  'answers 429 until a day that is none': said('', 429, { 'retry-after': 'Thu, 99 Foo 2026' }),
  'answers 500': said('', 500),
  'answers 500 without memory': said(error('CUDA out of memory'), 500),
  'answers 502': said(wordless, 502, { 'content-type': 'text/html' }),
  'answers 503': said('', 503, { 'retry-after': '0' }),
  'answers 507': said('', 507),
  'answers 529': said(error('overloaded'), 529),
  'answers 599': said('', 599),
  'answers 999': (_, response) => void response.socket?.end('HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n'),
  'hangs up': (_, response) => void response.socket?.destroy(),
  'speaks no HTTP': (_, response) => void response.socket?.end('220 mail.example.org ESMTP\r\n'),
  'speaks half of HTTP': (_, response) => void response.socket?.end('HTTP/1.1 200 OK\r\ncontent-le'),
  'has two lengths': (_, response) =>
    void response.socket?.end('HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 5\r\n\r\n{}'),
  'has chunks that are none': (_, response) =>
    void response.socket?.end('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n'),
  'has headers without end': (_, response) =>
    void response.socket?.end(`HTTP/1.1 200 OK\r\n${`x-long: ${'x'.repeat(8_000)}\r\n`.repeat(100)}\r\n{}`),
  'is packed unasked': (_, response, { json: good }) =>
    void response.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync(json(good))),
  'is packed in a way that is not known': said('{}', 200, { 'content-encoding': 'frobnicate' }),
  'says that it is packed': said('{}', 200, { 'content-encoding': 'gzip' }),
  'is a bomb': (_, response) =>
    void response
      .writeHead(200, { 'content-encoding': 'gzip' })
      .end((bomb ??= gzipSync(Buffer.alloc(300 * 2 ** 20, 32)))),
  'has no end': (_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    endless(response, Buffer.alloc(2 ** 20, 32));
  },
  'promises much': said('', 200, { 'content-length': String(2 ** 40) }),
};

/** They wait until the client has had enough. */
const slow: Readonly<Record<string, Answer>> = {
  'never answers': () => undefined,
  drips: (_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    endless(response, Buffer.from(' '), 300);
  },
};

const slowOrEndless = new Set([answers['has no end'], slow['drips']]);

const gone = Symbol('gone');

/** Each field of an answer changed in one way. */
function changedFields(value: unknown, at = ''): { readonly what: string; readonly json: unknown }[] {
  if (typeof value !== 'object' || value === null) return [];
  const found: { what: string; json: unknown }[] = [];
  for (const [key, one] of Object.entries(value as Record<string, unknown>)) {
    const copyWith = (to: unknown): unknown => {
      const copy = (Array.isArray(value) ? [...(value as unknown[])] : { ...value }) as Record<string, unknown>;
      if (to !== gone) copy[key] = to;
      else if (Array.isArray(copy)) copy.splice(Number(key), 1);
      else delete copy[key];
      return copy;
    };
    const path = at === '' ? key : `${at}.${key}`;
    const others: readonly unknown[] = [
      gone,
      null,
      'text',
      '',
      7,
      -1,
      0.5,
      2 ** 60,
      true,
      [],
      {},
      [null],
      [[]],
      { text: 'x' },
    ];
    for (const to of others) {
      if (to === one) continue;
      const shown = to === gone ? 'is missing' : `is ${json(to)}`;
      found.push({ what: `${path} ${shown}`, json: copyWith(to) });
    }
    if (typeof one === 'string') found.push({ what: `${path} steers`, json: copyWith('\u001b[2J\u202eevil') });
    if (typeof one === 'string') found.push({ what: `${path} is long`, json: copyWith('x'.repeat(100_000)) });
    for (const { what, json: inner } of changedFields(one, path)) found.push({ what, json: copyWith(inner) });
  }
  return found;
}

let answer: Answer = said('');
let current: Client = clients[0]!;
let listening: Promise<string> | null = null;
let server: Server;

function serverUrl(): Promise<string> {
  return (listening ??= (async () => {
    server = createServer((asked, response) => {
      asked.resume();
      asked.once('end', () => {
        const url = asked.url!;
        const good = current.good.find(([path]) => url.startsWith(path))?.[1] ?? { json: {} };
        const isSpoiled = current.spoiled === undefined || url.startsWith(current.spoiled);
        // Nothing that is written after the headers is sent.
        if (asked.method === 'HEAD' && slowOrEndless.has(answer)) return void response.writeHead(200).end();
        if (isSpoiled) return answer(asked, response, good);
        response.writeHead(200, { 'content-type': 'application/json', ...good.headers }).end(json(good.json));
      });
    }).listen(0, '127.0.0.1');
    server.unref();
    await once(server, 'listening');
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  })());
}

async function play(client: Client, spoiled: Answer): Promise<string> {
  const url = await serverUrl();
  [current, answer] = [client, spoiled];
  try {
    const result = await client.ask(url);
    const written = JSON.stringify(result, (_, one: unknown) => (one instanceof Map ? [...one] : one)) ?? 'nothing';
    const shown = written.slice(0, 300).replaceAll(/[^\x20-\x7e]/g, '?');
    const wrong = client.isWrong?.(result) ?? null;
    if (wrong !== null) throw new WronglyTaken(`${wrong}: ${shown}`);
    return `took ${shown}`;
  } finally {
    server.closeAllConnections();
  }
}

export function answerCases(random: Random): readonly BadCase[] {
  const ofAll = clients.flatMap((client) =>
    Object.entries({ ...answers, ...(client.isPatient ? {} : slow) })
      .filter(([what]) => !isTolerated(client, what) || what !== 'answers 408')
      .map(([what, spoiled]): BadCase => ({
        what: `${client.name}: it ${what}`,
        boundMs: 60_000,
        mustRefuse:
          client.isSilent !== true &&
          /^(says (?:nothing|blanks|a page|null|a list|a text|a number)|is cut|is nested|answers [3459])/.test(what) &&
          !isTolerated(client, what),
        run: () => play(client, spoiled),
      })),
  );
  const ofFields = clients.flatMap((client) =>
    client.good
      .filter(([path]) => client.spoiled === undefined || client.spoiled.startsWith(path))
      .flatMap(([path, { json: good }]) =>
        changedFields(good).map(({ what, json: spoiled }): BadCase => ({
          what: `${client.name}: ${path} ${what}`,
          run: () => play(client, said(json(spoiled))),
        })),
      ),
  );
  return [...ofAll, ...some(shuffled(ofFields, random), fieldCasesMax)];
}

function isTolerated({ name }: Client, what: string): boolean {
  return (
    // Its answer is in its headers.
    (name === 'file of the Hub' && /^(?:says|is |answers 300)/.test(what)) ||
    // Repeated without limit, until the caller gives up.
    (name.startsWith('Tinker') && what === 'answers 408')
  );
}

const fieldCasesMax = 1_000;
