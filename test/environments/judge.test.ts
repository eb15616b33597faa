import assert from 'node:assert/strict';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import {
  combineRubrics,
  type JudgeArgs,
  judgeReward,
  listDataset,
  openJudge,
  rubric,
} from '../../backends/environments/kit.ts';
import { scoreRollout } from '../../backends/environments/score.ts';
import type { RatchetError } from '../../core/errors.ts';

interface Asked {
  readonly at: number;
  readonly key: string | undefined;
  readonly body: { readonly model: string; readonly messages: readonly { readonly content: string }[] };
}

type Answer = (
  call: number,
  asked: Asked,
) => { status?: number; text?: string } | Promise<{ status?: number; text?: string }>;

/** A server that speaks OpenAI's chat completions. */
async function stubServer(t: TestContext, answer: Answer) {
  const asked: Asked[] = [];
  let inFlight = 0;
  const seen = { asked, inFlightMax: 0 };
  const server = createServer((request, response) => {
    void (async () => {
      inFlight += 1;
      seen.inFlightMax = Math.max(seen.inFlightMax, inFlight);
      const body = JSON.parse(await textOf(request)) as Asked['body'];
      const one = { at: performance.now(), key: request.headers.authorization, body };
      asked.push(one);
      const { status = 200, text = '' } = await answer(asked.length, one);
      inFlight -= 1;
      const message = { role: 'assistant', content: text };
      const whole = { id: 'x', object: 'chat.completion', choices: [{ index: 0, message, finish_reason: 'stop' }] };
      response.writeHead(status, { 'content-type': 'application/json', 'retry-after-ms': '20' });
      response.end(JSON.stringify(status === 200 ? whole : { error: { message: `status ${status}` } }));
    })();
  });
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.closeAllConnections());
  t.after(() => server.close());
  const args: JudgeArgs = {
    base_url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
    model: 'judge-1',
    requests_per_minute: 60_000,
  };
  return { args, seen };
}

async function textOf(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}

const example = listDataset([{ prompt: 'Say hello.', answer: 'hello' }]).at(0);
const turn = {
  promptTokenIds: [1],
  tokenIds: [2],
  logprobs: [-1],
  text: 'hi',
  finishReason: 'stop',
  policyStep: 0,
} as const;
const rollout = { group: 1, index: 0, exampleId: 0, turns: [turn], outcome: 'ok' } as const;
const scoreWith = (args: JudgeArgs) =>
  scoreRollout(
    {
      rubric: combineRubrics([
        rubric([{ name: 'exact_match', weight: 1, score: () => 0 }]),
        {
          name: 'judged',
          weight: 0.5,
          rubric: rubric([
            judgeReward({
              name: 'friendly',
              weight: 2,
              judge: openJudge(args),
              prompt: ({ completion }) => `How friendly is "${completion}", from 0 to 1?`,
            }),
          ]),
        },
      ]),
    },
    example,
    rollout,
  );

describe('a judge', () => {
  test('its score is part of the reward, under the name and weight of its part of the rubric', async (t) => {
    const { args, seen } = await stubServer(t, () => ({ text: 'I would say 0.75' }));
    const { reward, metrics } = await scoreWith(args);
    assert.equal(reward, 0.75);
    assert.deepEqual(metrics, { exact_match: 0, 'judged/friendly': 0.75 });
    assert.equal(seen.asked[0]!.body.model, 'judge-1');
    assert.equal(seen.asked[0]!.body.messages[0]!.content, 'How friendly is "hi", from 0 to 1?');
  });

  test('it is asked again while it is overloaded, and the rollout never learns of it', async (t) => {
    const { args, seen } = await stubServer(t, (call) =>
      call < 3 ? { status: call === 1 ? 429 : 503 } : { text: '1' },
    );
    assert.equal((await scoreWith(args)).reward, 1);
    assert.equal(seen.asked.length, 3);
  });

  test('a judge that stays away, or says nothing of use, is a judge failure without a reward', async (t) => {
    const away = await stubServer(t, () => ({ status: 500 }));
    const failed = await scoreWith({ ...away.args, max_retries: 1 });
    assert.deepEqual([failed.outcome, failed.reward], ['judge_failure', null]);
    assert.match(failed.error ?? '', /"judged\/friendly"[\s\S]*status 500/);
    const vague = await stubServer(t, () => ({ text: 'very!' }));
    const { outcome, error } = await scoreWith(vague.args);
    assert.equal(outcome, 'judge_failure');
    assert.match(error ?? '', /no score in it: "very!"/);
  });

  test('a request that takes too long is given up and asked again', async (t) => {
    const { args } = await stubServer(t, async (call) => {
      if (call === 1) await delay(3_000);
      return { text: '1' };
    });
    assert.equal(await openJudge({ ...args, timeout_s: 0.3 }).ask('?'), '1');
  });

  test('the same question is asked once, and again after a failure', async (t) => {
    const { args, seen } = await stubServer(t, (call) => (call === 1 ? { status: 400 } : { text: String(call) }));
    const judge = openJudge({ ...args, max_retries: 0 });
    await assert.rejects(judge.ask('same'), /400/);
    assert.deepEqual(await Promise.all([judge.ask('same'), judge.ask('same')]), ['2', '2']);
    assert.equal(await judge.ask('same'), '2');
    assert.equal(await judge.ask('other'), '3');
    assert.equal(seen.asked.length, 3);
  });

  test('requests keep to the limits in flight and per minute, retries included', async (t) => {
    const { args, seen } = await stubServer(t, async (call) => {
      await delay(30);
      return call === 2 ? { status: 429 } : { text: '1' };
    });
    const judge = openJudge({ ...args, max_in_flight: 2, requests_per_minute: 1_200 });
    await Promise.all(['a', 'b', 'c', 'd', 'e'].map((question) => judge.ask(question)));
    assert.equal(seen.asked.length, 6);
    assert.ok(seen.inFlightMax <= 2, `${seen.inFlightMax} in flight`);
    const tookMs = seen.asked.at(-1)!.at - seen.asked[0]!.at;
    assert.ok(tookMs >= 5 * 50 * 0.8, `six requests within ${tookMs} ms, at 50 ms each`);
  });

  test('the key comes from a variable named in the arguments; one that is not set is refused with what to do', async (t) => {
    const { args, seen } = await stubServer(t, () => ({ text: '1' }));
    process.env['RATCHET_TEST_JUDGE'] = 'sesame';
    t.after(() => delete process.env['RATCHET_TEST_JUDGE']);
    await openJudge({ ...args, api_key_var: 'RATCHET_TEST_JUDGE' }).ask('?');
    assert.equal(seen.asked[0]!.key, 'Bearer sesame');
    assert.throws(
      () => openJudge({ ...args, api_key_var: 'RATCHET_NO_SUCH_KEY' }),
      (error: RatchetError) => error.code === 'ConfigInvalid' && /RATCHET_NO_SUCH_KEY is not set/.test(error.message),
    );
    assert.throws(() => openJudge({ ...args, api_key_var: 'sk-123' }), /NAME of an environment variable/);
  });
});
