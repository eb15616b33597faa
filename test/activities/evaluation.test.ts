import assert from 'node:assert/strict';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import type { ChunkProgress } from '../../play/evaluated-chunk.ts';
import { createEnvironments } from '../../backends/environments/index.ts';
import { loadEnvironment } from '../../backends/environments/load.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { pricesAt } from '../../backends/inference/openai/prices.ts';
import { pricesOf } from '../../activities/evaluation/open-evaluation.ts';
import type { EvaluationHandle, EvaluationInput } from '../../core/eval/evaluation.ts';
import {
  dependencies,
  evaluateAll,
  evaluationFolder,
  evaluationId,
  inputFor,
  metadataIn,
  openEvaluation,
  playChunk,
  rowsIn,
  serve,
} from './evaluation-runs.ts';

test('an evaluation leaves one row for each rollout, in order, and metadata over them', async (t) => {
  const [folder, server] = [await evaluationFolder(t), await serve(t, { varies: 'session' })];
  const { result, handle } = await evaluateAll(inputFor(folder, server));
  assert.equal(handle.chunks, 3);
  const own = path.join(folder, evaluationId);
  const rows = await rowsIn(own);
  const ids = rows.map((row) => row['example_id']);
  assert.deepEqual(ids, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]);
  const mean = rows.reduce((sum, row) => sum + (row['reward'] as number), 0) / 18;
  const metadata = await metadataIn(own);
  assert.equal(metadata['avg_reward'], mean);
  assert.equal(result.avgReward, mean);
  assert.equal(metadata['num_examples'], 6);
  assert.deepEqual(metadata['sampling_args'], { n: 1, extra_body: {}, max_tokens: 32, temperature: 0 });
  assert.equal(result.rollouts, 18);
  assert.equal(server.answered.length, 18);
  const [asked] = server.answered;
  assert.equal(asked!.body['max_completion_tokens'], 32); // as verifiers sends it
  assert.ok(!('max_tokens' in asked!.body) && !('seed' in asked!.body));
});

test('opened once more it adopts what is there, and samples only further examples', async (t) => {
  const [folder, server] = [await evaluationFolder(t), await serve(t)];
  await evaluateAll(inputFor(folder, server));
  const { result } = await evaluateAll(inputFor(folder, server, { numExamples: 8 }), 'w/2');
  assert.equal(server.answered.length, 24);
  assert.deepEqual([result.rollouts, result.adopted, result.sampled, result.attempt], [24, 18, 6, 2]);
  assert.equal((await rowsIn(path.join(folder, evaluationId))).length, 24);
});

test('an activity that is retried opens nothing anew', async (t) => {
  const [folder, server] = [await evaluationFolder(t), await serve(t)];
  const [once, twice] = [
    await openEvaluation(inputFor(folder, server)),
    await openEvaluation(inputFor(folder, server)),
  ];
  assert.deepEqual(twice, once);
});

test('an evaluation continues only with the settings it was begun with, and says which differ', async (t) => {
  const [folder, server] = [await evaluationFolder(t), await serve(t)];
  const input = inputFor(folder, server);
  await evaluateAll(input);
  const { model } = input;
  assert.equal(model.kind, 'endpoint');
  const hotter = { ...model, sampling: { ...model.sampling, temperature: 1 } };
  const environment = { ...input.environment, args: { min_length: 5 } };
  for (const [over, says] of [
    [{ model: hotter }, /sampling_args was .*"temperature":0.* is .*"temperature":1/],
    [{ environment }, /env_args was \{\}, is \{"min_length":5\}/],
    [{ rolloutsPerExample: 2 }, /rollouts_per_example was 3, is 2/],
    [{ shuffleSeed: 1 }, /shuffle_seed was null, is 1/],
    [{ numExamples: 3 }, /num_examples was 6, is 3 \(it may only grow\)/],
    [{ model: { ...model, model: 'other' } }, /model was "mock", is "other"/],
  ] as const) {
    await assert.rejects(openEvaluation({ ...input, ...over }, 'w/2'), says);
  }
  const elsewhere = { ...model, servers: [{ ...model.servers[0]!, baseUrl: 'http://127.0.0.1:9/v1' }] };
  assert.equal((await openEvaluation({ ...input, model: elsewhere }, 'w/2')).attempt, 2);
});

test('what infrastructure took has no reward, is counted, and is played again the next time', async (t) => {
  const folder = await evaluationFolder(t);
  let isBroken = true;
  const server = await serve(t, { refuse: ({ content }) => (isBroken && content.startsWith('b') ? 400 : undefined) });
  const input = inputFor(folder, server, { numExamples: 12 });
  const before = await evaluateAll(input);
  const failed = (await rowsIn(path.join(folder, evaluationId))).filter(({ reward }) => reward === null);
  assert.ok(failed.length > 0 && failed.length < 36);
  assert.equal(before.result.failed, failed.length);
  assert.ok(failed.every(({ error, metrics }) => error !== null && Object.keys(metrics as object).length === 0));
  assert.equal((await metadataIn(path.join(folder, evaluationId)))['avg_error'], failed.length / 36);
  const paid = server.answered.length;
  isBroken = false;
  const { result } = await evaluateAll(input, 'w/2');
  assert.equal(server.answered.length - paid, failed.length);
  assert.deepEqual([result.failed, result.rollouts, result.sampled], [0, 36, failed.length]);
  assert.deepEqual(
    (await rowsIn(path.join(folder, evaluationId))).filter(({ reward }) => reward === null),
    [],
  );
});

test('a server that refuses everything ends the evaluation with what it says, not with a hundred failures', async (t) => {
  const [folder, server] = [await evaluationFolder(t), await serve(t, { key: 'k' })];
  await assert.rejects(evaluateAll(inputFor(folder, server)), /refuses every request: .*401: Incorrect API key/);
});

test('the key is read from its variable where it is asked, and stands in nothing that is stored', async (t) => {
  const [folder, secret] = [await evaluationFolder(t), 'sk-3f6c0b1d9e8a7d5c4b3a2f1e'];
  process.env['TEST_EVAL_KEY'] = secret;
  t.after(() => delete process.env['TEST_EVAL_KEY']);
  const server = await serve(t, { key: secret });
  const input = inputFor(folder, server);
  const { model } = input;
  assert.equal(model.kind, 'endpoint');
  const servers = model.servers.map((one) => ({ ...one, apiKeyVar: 'TEST_EVAL_KEY' }));
  const { result } = await evaluateAll({ ...input, model: { ...model, servers } });
  assert.equal(result.failed, 0);
  const files = (await readdir(folder, { recursive: true, withFileTypes: true })).filter((entry) => entry.isFile());
  for (const { parentPath, name } of files) {
    assert.ok(!(await readFile(path.join(parentPath, name), 'utf8')).includes(secret), name);
  }
});

test('with prices in its server’s list, an evaluation says what it cost: all tokens of all rollouts, as verifiers counts them', async (t) => {
  const folder = await evaluationFolder(t);
  const server = await serve(t, { pricing: { input_usd_per_mtok: 2.5, output_usd_per_mtok: '10' } });
  const prices = async ({ kind, ...model }: EvaluationInput['model']) => {
    assert.ok(kind === 'endpoint' && 'servers' in model);
    return { prices: await pricesAt(model.servers[0]!, 'mock'), warning: null };
  };
  const { result } = await evaluateAll(inputFor(folder, server), 'w/1', { ...dependencies, prices });
  const own = path.join(folder, evaluationId);
  const used = (await rowsIn(own)).map((row) => row['token_usage'] as Record<string, number>);
  const sum = (name: string): number => used.reduce((total, one) => total + one[name]!, 0);
  const [input, output] = [(sum('input_tokens') * 2.5) / 1e6, (sum('output_tokens') * 10) / 1e6];
  assert.ok(input > 0 && output > 0);
  assert.deepEqual((await metadataIn(own))['cost'], {
    input_usd: input,
    output_usd: output,
    total_usd: input + output,
  });
  assert.equal(result.cost, input + output);
  const unlisted = { model: 'other', baseUrl: `${server.url}/v1`, apiKeyVar: null, headers: {} };
  assert.equal(await pricesAt(unlisted, 'other'), null);
});

test('prices that cannot be learned are warned of, and keep nobody from an evaluation', async () => {
  const nobody = { model: 'm', baseUrl: 'http://127.0.0.1:9/pinference.ai/v1', apiKeyVar: null, headers: {} };
  const told = await pricesOf({ kind: 'endpoint', model: 'm', servers: [nobody], sampling: {} });
  assert.equal(told.prices, null);
  assert.match(told.warning!, /^what m costs is not known: .*does not answer \/v1\/models/);
  const elsewhere = { ...nobody, baseUrl: 'http://127.0.0.1:9/v1' };
  const unpriced = await pricesOf({ kind: 'endpoint', model: 'm', servers: [nobody, elsewhere], sampling: {} });
  assert.deepEqual(unpriced, { prices: null, warning: null });
});

test('a chunk that is cut off has every finished rollout, and its retry asks for the others alone', async (t) => {
  const [folder, server] = [await evaluationFolder(t), await serve(t, { delayMs: 600, varies: 'session' })];
  const input = inputFor(folder, server, { numExamples: 20, maxConcurrent: 60 });
  const handle = await openEvaluation(input);
  const activity = new MockActivityEnvironment();
  let finished = 0;
  activity.on('heartbeat', (said: ChunkProgress | undefined) => (finished = said?.done ?? 0));
  const cut = playChunk(handle, 0, { activity });
  while (server.answered.length < 20) await new Promise((resolve) => setTimeout(resolve, 2));
  activity.cancel();
  await assert.rejects(cut);
  const atCut = server.answered.length;
  const { adopted, tally } = await playChunk(handle, 0);
  assert.equal(tally.rollouts, 60);
  assert.ok(adopted > 0 && adopted < 60, `${adopted}`);
  assert.equal(adopted, finished, 'what its last word said is finished');
  assert.equal(server.answered.length, atCut + 60 - adopted);
});

test('lines that were torn, and rows that stand twice, are put right at the end', async (t) => {
  const [folder, server] = [await evaluationFolder(t), await serve(t)];
  const input = inputFor(folder, server);
  const handle = await openEvaluation(input);
  await playChunk(handle, 0);
  const file = path.join(folder, evaluationId, 'results.jsonl');
  const text = await readFile(file, 'utf8');
  await writeFile(file, `${text}${text.slice(0, 200)}`);
  await evaluateAll(input);
  assert.equal((await rowsIn(path.join(folder, evaluationId))).length, 18);
});

/** Scores the rollouts of an example together: the shortest answer wins. */
function comparing(environment: Environment, asked: number[]): Environment {
  return {
    ...environment,
    scoring: 'stored',
    judge: async (_, rollouts) => {
      asked.push(rollouts.length);
      const lengths = rollouts.map(({ turns }) => turns.at(-1)!.text.length);
      return lengths.map((length) => ({ reward: Number(length === Math.min(...lengths)), metrics: {} }));
    },
  };
}

test('a reward that compares the rollouts of an example sees all of them, also after a failure', async (t) => {
  const folder = await evaluationFolder(t);
  let isBroken = true;
  const server = await serve(t, {
    varies: 'session',
    refuse: ({ content, session }) => (isBroken && /^[a-m]/.test(content) && session.endsWith('/1') ? 400 : undefined),
  });
  const asked: number[] = [];
  const environments = createEnvironments(async ({ id, args }) => comparing(await loadEnvironment(id, args), asked));
  const input = inputFor(folder, server, { numExamples: 12 });
  const { result } = await evaluateAll(input, 'w/1', { ...dependencies, environments });
  assert.ok(result.failed > 0);
  assert.ok(asked.includes(2), 'two were judged without the third');
  isBroken = false;
  asked.length = 0;
  const paid = server.answered.length;
  const again = await evaluateAll(input, 'w/2', { ...dependencies, environments });
  assert.equal(again.result.failed, 0);
  assert.deepEqual(new Set(asked), new Set([3]), 'whole examples are scored again');
  assert.equal(server.answered.length - paid, result.failed);
});

test('an evaluation in the making has results and metadata that can be read', async (t) => {
  const [folder, server] = [await evaluationFolder(t), await serve(t)];
  const handle: EvaluationHandle = await openEvaluation(inputFor(folder, server));
  const own = path.join(folder, evaluationId);
  assert.deepEqual(await rowsIn(own), []);
  assert.equal((await metadataIn(own))['num_examples'], 6);
  await playChunk(handle, 0);
  assert.equal((await rowsIn(own)).length, 6);
});
