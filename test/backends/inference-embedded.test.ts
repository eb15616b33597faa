import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { type Inference, openInference, type SampleRequest } from '../../backends/inference/index.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';
import { RatchetError } from '../../core/errors.ts';
import { InferenceSpec } from '../../config/run-spec.ts';
import { startPolicyServer } from '../../engine/index.ts';
import { until } from '../eventually.ts';

const openEmbedded = (url: string, provider: 'cpu' | 'cuda' = 'cpu'): Inference =>
  openInference(InferenceSpec.parse({ kind: 'embedded', url, provider }), '');

interface Call {
  readonly route: string;
  readonly body: {
    readonly model?: string;
    readonly name?: string;
    readonly digest?: string;
    readonly weight_dir?: string;
    readonly prompt?: readonly (readonly number[])[];
    readonly seeds?: readonly number[];
    readonly max_tokens?: number;
    readonly temperature?: number;
  };
}
type Answer = (call: Call, response: ServerResponse) => void;

/** A policy server of a few lines: it holds versions by name, and its "sample" is the prompt backwards. */
async function fakeServer(t: TestContext, answers: Partial<Record<string, Answer>> = {}, port = 0) {
  const calls: Call[] = [];
  const held = new Set<string>();
  const server: Server = createServer((request, response) => void answer(request, response));
  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.url === '/health') return reply(response, 200, {});
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const call = { route: request.url ?? '', body: JSON.parse(Buffer.concat(chunks).toString()) as Call['body'] };
    calls.push(call);
    const special = answers[call.route];
    if (special) return special(call, response);
    if (call.route === '/update_weights') {
      held.add(call.body.name!);
      return reply(response, 200, {});
    }
    if (!held.has(call.body.model!)) return reply(response, 409, { error: { message: 'not held' } });
    return completions(call, response);
  }
  server.listen(port, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { server, calls, held, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}

function reply(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(typeof body === 'string' ? body : JSON.stringify(body));
}

/** Choices in reverse order: it is `index` that counts. */
function completions({ body }: Call, response: ServerResponse): void {
  const choices = body.prompt!.map((prompt, index) => ({
    index,
    finish_reason: 'stop',
    token_ids: prompt.toReversed(),
    logprobs: { token_logprobs: prompt.map((token) => -token) },
  }));
  reply(response, 200, { choices: choices.toReversed() });
}

const policyOf = (name: string): ServedPolicy => ({
  name,
  folder: `/weights/${name}`,
  version: {
    step: 1,
    digest: `digest of ${name}`,
    weights: 'weights/step_1/',
    file: { key: 'weights/step_1/model.safetensors', sha256: '', bytes: 0 },
    sums: { key: 'weights/step_1/SHA256SUMS', sha256: '', bytes: 0 },
  },
});
const ask = (promptTokenIds: readonly number[], more: Partial<SampleRequest> = {}): SampleRequest => ({
  policy: policyOf('v1'),
  promptTokenIds,
  maxTokens: 4,
  temperature: 1,
  seed: 7,
  ...more,
});
const coded =
  (code: RatchetError['code'], ...words: string[]) =>
  (error: unknown) => {
    assert(error instanceof RatchetError, String(error));
    assert.equal(error.code, code, error.message);
    for (const word of words) assert(error.message.includes(word), `"${error.message}" does not say ${word}`);
    return true;
  };
const routes = (calls: readonly Call[]) => calls.map(({ route }) => route);

describe('sampling from the policy server', () => {
  test('calls made in one turn of the event loop travel as one request, and each gets its own answer', async (t) => {
    const { url, calls, held } = await fakeServer(t);
    held.add('v1');
    const inference = openEmbedded(`${url}/`);
    const samples = await Promise.all(
      Array.from({ length: 12 }, (_, i) => inference.sample(ask([i + 1, i + 100], { seed: i }))),
    );
    assert.deepEqual(routes(calls), ['/v1/completions']);
    assert.deepEqual(
      calls[0]!.body.seeds,
      Array.from({ length: 12 }, (_, i) => i),
    );
    for (const [i, sample] of samples.entries()) {
      assert.deepEqual(sample, { tokenIds: [i + 100, i + 1], logprobs: [-i - 1, -i - 100], finishReason: 'stop' });
    }
  });

  test('sampling parameters travel as the fields of vLLM, and the distribution drawn from comes back', async (t) => {
    const { url, calls, held } = await fakeServer(t, {
      '/v1/completions': ({ body }, response) =>
        reply(response, 200, {
          choices: body.prompt!.map((_, index) => ({
            index,
            finish_reason: 'stop',
            token_ids: [5],
            logprobs: { token_logprobs: [-2] },
            sampling_logprobs: [-1],
          })),
        }),
    });
    held.add('v1');
    const more = { topP: 0.9, topK: 5, minP: 0.1, repetitionPenalty: 1.2, presencePenalty: 1, frequencyPenalty: -1 };
    const inference = openEmbedded(url);
    const sample = await inference.sample(ask([1], { ...more, minTokens: 2, stop: ['x'] }));
    assert.deepEqual([sample.logprobs, sample.samplingLogprobs], [[-2], [-1]]);
    const sent = {
      top_p: 0.9,
      top_k: 5,
      min_p: 0.1,
      repetition_penalty: 1.2,
      presence_penalty: 1,
      frequency_penalty: -1,
      min_tokens: 2,
      stop: ['x'],
    };
    assert.deepEqual({ ...calls.at(-1)!.body, ...sent }, calls.at(-1)!.body);
    await inference.sample(ask([1], { topP: 1, stop: [], minTokens: 0 }));
    assert.ok(!('top_p' in calls.at(-1)!.body) && !('stop' in calls.at(-1)!.body));
  });

  test('calls that differ in version or sampling travel apart', async (t) => {
    const { url, calls, held } = await fakeServer(t);
    for (const name of ['v1', 'v2']) held.add(name);
    const inference = openEmbedded(url);
    await Promise.all([
      inference.sample(ask([1])),
      inference.sample(ask([2], { policy: policyOf('v2') })),
      inference.sample(ask([3], { temperature: 0 })),
      inference.sample(ask([4], { maxTokens: 1 })),
      inference.sample(ask([5])),
    ]);
    assert.deepEqual(calls.map(({ body }) => JSON.stringify(body.prompt)).sort(), [
      '[[1],[5]]',
      '[[2]]',
      '[[3]]',
      '[[4]]',
    ]);
  });

  test('a server that does not hold the version is brought to it and asked again', async (t) => {
    for (const status of [409, 404]) {
      let asked = 0;
      const { url, calls } = await fakeServer(t, {
        '/v1/completions': (call, response) =>
          asked++ === 0
            ? reply(response, status, { error: { message: 'no such model' } })
            : completions(call, response),
      });
      const sample = await openEmbedded(url).sample(ask([1, 2]));
      assert.deepEqual(sample.tokenIds, [2, 1]);
      assert.deepEqual(routes(calls), ['/v1/completions', '/update_weights', '/v1/completions']);
      assert.deepEqual(calls[1]!.body, { name: 'v1', weight_dir: '/weights/v1', digest: 'digest of v1' });
    }
  });

  test('a version that the server cannot load is refused in the server’s words', async (t) => {
    const { url } = await fakeServer(t, {
      '/update_weights': (_, response) => reply(response, 400, { error: { message: 'digest is another one' } }),
    });
    await assert.rejects(openEmbedded(url).sample(ask([1])), coded('InferenceRejected', 'digest is another one'));
  });

  test('while no server answers it waits, and continues when one comes up', async (t) => {
    const gone = await fakeServer(t);
    const { port } = gone.server.address() as AddressInfo;
    gone.server.close();
    await once(gone.server, 'close');
    const sampling = openEmbedded(gone.url).sample(ask([1, 2]));
    await delay(250);
    const { calls } = await fakeServer(t, {}, port);
    assert.deepEqual((await sampling).tokenIds, [2, 1]);
    // It has missed what was broadcast: it is brought to the version before it is asked for it.
    assert.deepEqual(routes(calls), ['/update_weights', '/v1/completions']);
  });

  for (const status of [500, 503, 429]) {
    test(`an answer of ${status} is weather: it is asked again`, async (t) => {
      let asked = 0;
      const { url } = await fakeServer(t, {
        '/v1/completions': (call, response) =>
          asked++ < 2 ? reply(response, status, 'busy') : completions(call, response),
      });
      assert.deepEqual((await openEmbedded(url).sample(ask([1]))).tokenIds, [1]);
      assert.equal(asked, 3);
    });
  }

  test('an answer that breaks off is asked for again', async (t) => {
    let asked = 0;
    const { url } = await fakeServer(t, {
      '/v1/completions': (call, response) => {
        if (asked++ > 0) return completions(call, response);
        response.writeHead(200, { 'content-length': 1000 });
        response.write('{"choices": [');
        setTimeout(() => response.destroy(), 20);
      },
    });
    assert.deepEqual((await openEmbedded(url).sample(ask([1]))).tokenIds, [1]);
  });

  test('a refusal is not asked again and carries the server’s own words', async (t) => {
    const { url, calls } = await fakeServer(t, {
      '/v1/completions': (_, response) =>
        reply(response, 400, { error: { message: 'prompt 0 has 900 tokens, the limit is 512' } }),
    });
    await assert.rejects(
      openEmbedded(url).sample(ask([1])),
      coded('InferenceRejected', '400', 'prompt 0 has 900 tokens, the limit is 512'),
    );
    assert.equal(calls.length, 1);
  });

  const strange: Readonly<Record<string, unknown>> = {
    'another JSON': { hello: 'world' },
    'choices without token ids': { choices: [{ index: 0, finish_reason: 'stop', text: 'hi' }] },
  };
  for (const [name, body] of Object.entries(strange)) {
    test(`an answer that is ${name} is refused, naming the server`, async (t) => {
      const { url } = await fakeServer(t, { '/v1/completions': (_, response) => reply(response, 200, body) });
      await assert.rejects(openEmbedded(url).sample(ask([1])), coded('InferenceRejected', url, 'expected 1 choices'));
    });
  }

  test('an answer without any choice is one of a server that has none for now', async (t) => {
    const body = { choices: [] };
    const { url } = await fakeServer(t, { '/v1/completions': (_, response) => reply(response, 200, body) });
    const sampled = openEmbedded(url).sample(ask([1]));
    await assert.rejects(sampled, coded('InferenceUnavailable', url, 'got an empty list of them'));
  });
});

describe('stopping', () => {
  test('an aborted call ends at once, also in the middle of an answer', async (t) => {
    const { url } = await fakeServer(t, { '/v1/completions': () => undefined });
    const controller = new AbortController();
    const sampling = openEmbedded(url).sample(ask([1], { signal: controller.signal }));
    setTimeout(() => controller.abort(new Error('enough')), 30);
    await assert.rejects(sampling, /enough/);
  });

  test('an aborted call does not wait for a server that is gone, and says that it is', async (t) => {
    const { url, server } = await fakeServer(t);
    server.close();
    await once(server, 'close');
    const controller = new AbortController();
    const inference = openEmbedded(url);
    const sampling = inference.sample(ask([1], { signal: controller.signal }));
    await until('the server counts as gone', () => inference.silence?.() != null);
    controller.abort();
    await assert.rejects(sampling, { code: 'InferenceUnavailable' });
  });

  test('aborting one caller leaves another one’s call of the same moment alone', async (t) => {
    const { url } = await fakeServer(t, {
      '/v1/completions': (call, response) => void setTimeout(() => completions(call, response), 100),
    });
    const inference = openEmbedded(url);
    const controller = new AbortController();
    const stopped = inference.sample(ask([1], { signal: controller.signal }));
    const goesOn = inference.sample(ask([2, 3], { signal: new AbortController().signal }));
    setTimeout(() => controller.abort(new Error('enough')), 30);
    await assert.rejects(stopped, /enough/);
    assert.deepEqual((await goesOn).tokenIds, [3, 2]);
  });
});

test('rollouts of a group travel together, each with a signal of its own, and the request ends once all of them are given up', async (t) => {
  const open = new Set<ServerResponse>();
  const { url, calls } = await fakeServer(t, {
    '/v1/completions': (_, response) => {
      open.add(response);
      response.on('close', () => open.delete(response));
    },
  });
  const inference = openEmbedded(url);
  const controllers = Array.from({ length: 4 }, () => new AbortController());
  const samples = controllers.map(({ signal }, i) => inference.sample(ask([i], { signal, group: `run/${i >> 1}` })));
  await until('both groups are asked for', () => open.size === 2);
  const asked = calls.flatMap(({ body }) => (body.prompt ? [body.prompt] : []));
  assert.deepEqual(asked, [
    [[0], [1]],
    [[2], [3]],
  ]);
  controllers[0]!.abort(new Error('too old'));
  await assert.rejects(samples[0]!, /too old/);
  assert.equal(open.size, 2, 'the other one is still wanted');
  controllers[1]!.abort(new Error('too old as well'));
  await assert.rejects(samples[1]!);
  await until('the server is told', () => open.size === 1);
  for (const controller of controllers.slice(2)) controller.abort();
  await Promise.all(samples.slice(2).map((one) => assert.rejects(one)));
  const over = [AbortSignal.abort(new Error('over')), AbortSignal.abort(new Error('over'))];
  const asking = over.map((signal) => inference.sample(ask([9], { signal, group: 'run/9' })));
  await Promise.all(asking.map((one) => assert.rejects(one)));
});

test('bringing a server to a version names its folder and digest, and waits out weather', async (t) => {
  let asked = 0;
  const { url, calls } = await fakeServer(t, {
    '/update_weights': (_, response) => reply(response, asked++ === 0 ? 503 : 200, {}),
  });
  await openEmbedded(url, 'cuda').bringTo(policyOf('v3'));
  assert.equal(calls.length, 2);
  const body = { name: 'v3', weight_dir: '/weights/v3', digest: 'digest of v3', provider: 'cuda' };
  assert.deepEqual(calls[1]!.body, body);
});

test('a server that cannot do what the version needs is not asked again', async (t) => {
  const { url, calls } = await fakeServer(t, {
    '/update_weights': (_, response) => reply(response, 501, { error: { message: 'no GPU' } }),
  });
  await assert.rejects(openEmbedded(url, 'cuda').bringTo(policyOf('v3')), coded('InferenceRejected', 'no GPU'));
  assert.equal(calls.length, 1);
});

test('weights outside of the folders that a policy server was started with: what to type is said', async (t) => {
  const [inside, outside] = await Promise.all(
    ['inside', 'outside'].map((name) => mkdtemp(path.join(tmpdir(), `ratchet-${name}-`))),
  );
  t.after(() => Promise.all([inside!, outside!].map((folder) => rm(folder, { recursive: true, force: true }))));
  const server = await startPolicyServer({ key: null, host: '127.0.0.1', port: 0, allowRoots: [inside!], threads: 1 });
  t.after(() => server.close());
  const inference = openEmbedded(server.url);
  t.after(() => inference.close?.());
  const version = {
    step: 0,
    digest: 'a'.repeat(64),
    weights: '',
    file: { key: '', sha256: '', bytes: 0 },
    sums: { key: '', sha256: '', bytes: 0 },
  };
  await assert.rejects(inference.bringTo({ name: 'teacher:weights:0', folder: outside!, version }), (error) => {
    assert.ok(error instanceof RatchetError && error.code === 'ConfigInvalid' && !error.isRetryable);
    assert.ok(error.message.includes(`was not started with the folder ${outside}`), error.message);
    assert.ok(error.message.endsWith(`npx ratchet-rl dev --weights outputs ${outside}`), error.message);
    return true;
  });
});
