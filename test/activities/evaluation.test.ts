import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { createEvaluateChunk } from '../../activities/evaluation/evaluate-chunk.ts';
import type { EvaluateDependencies } from '../../activities/evaluation/evaluated-policy.ts';
import { createOpenEvaluation } from '../../activities/evaluation/open-evaluation.ts';
import { createCloseEvaluation } from '../../activities/evaluation/write-results.ts';
import { placeIn } from '../../backends/configs/evaluation-folders.ts';
import { type ContentServer, type ContentServerOptions, startContentServer } from '../../bench/content-server.ts';
import type { ChunkResult, EvaluationHandle, EvaluationInput, EvaluationResult } from '../../core/eval/evaluation.ts';
import { openTokenizer } from './runs.ts';

interface Evaluated {
  readonly result: EvaluationResult;
  readonly handle: EvaluationHandle;
}

const dependencies: EvaluateDependencies = {
  inference: () => assert.fail('no version is evaluated'),
  tokenizer: openTokenizer,
};

async function serve(t: TestContext, options: ContentServerOptions = {}): Promise<ContentServer> {
  const server = await startContentServer(options);
  t.after(() => server.close());
  return server;
}

async function folderOf(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-eval-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

function inputFor(
  folder: string,
  { url }: Pick<ContentServer, 'url'>,
  over: Partial<EvaluationInput> = {},
): EvaluationInput {
  return {
    environment: { id: 'reverse-text', name: 'reverse-text', args: {} },
    model: {
      kind: 'endpoint',
      model: 'mock',
      servers: [{ model: 'mock', baseUrl: `${url}/v1`, apiKeyVar: null, headers: {} }],
      sampling: { max_tokens: 32, temperature: 0 },
    },
    numExamples: 6,
    rolloutsPerExample: 3,
    seed: 0,
    shuffleSeed: null,
    maxConcurrent: 6,
    independentScoring: false,
    maxRetries: 3,
    standstillS: 60,
    results: placeIn(folder, 'abcd1234'),
    ...over,
  };
}

async function evaluate(input: EvaluationInput, request = 'w/1', given = dependencies): Promise<Evaluated> {
  const activities = new MockActivityEnvironment();
  const open = createOpenEvaluation({ codeVersion: 'test' });
  const handle = (await activities.run(open, { input, request })) as EvaluationHandle;
  let adopted = 0;
  for (let chunk = 0; chunk < handle.chunks; chunk++) {
    const input = { handle, chunk };
    const done = (await new MockActivityEnvironment().run(createEvaluateChunk(given), input)) as ChunkResult;
    adopted += done.adopted;
  }
  const closing = { handle, adopted, seconds: 1 };
  const result = (await new MockActivityEnvironment().run(createCloseEvaluation({}), closing)) as EvaluationResult;
  return { result, handle };
}

async function rowsIn(folder: string): Promise<Record<string, unknown>[]> {
  const text = await readFile(path.join(folder, 'abcd1234', 'results.jsonl'), 'utf8');
  return text.trimEnd().split('\n').map((line) => JSON.parse(line) as Record<string, unknown>); // prettier-ignore
}

test('an evaluation leaves one row for each rollout, in order, and metadata over them', async (t) => {
  const [folder, server] = [await folderOf(t), await serve(t, { varies: 'session' })];
  const { result, handle } = await evaluate(inputFor(folder, server));
  assert.equal(handle.chunks, 3);
  const rows = await rowsIn(folder);
  assert.deepEqual(
    rows.map((row) => row['example_id']),
    [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5],
  );
  const rewards = rows.map((row) => row['reward'] as number);
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / 18;
  const metadata = JSON.parse(await readFile(path.join(folder, 'abcd1234', 'metadata.json'), 'utf8')) as Record<string, unknown>; // prettier-ignore
  assert.equal(metadata['avg_reward'], mean);
  assert.equal(result.avgReward, mean);
  assert.equal(metadata['num_examples'], 6);
  assert.deepEqual(metadata['sampling_args'], { n: 1, extra_body: {}, max_tokens: 32, temperature: 0 });
  assert.equal(result.rollouts, 18);
  assert.equal(server.answered.length, 18);
});

test('what was asked for once more is adopted, and only more examples are sampled', async (t) => {
  const [folder, server] = [await folderOf(t), await serve(t)];
  await evaluate(inputFor(folder, server));
  const { result } = await evaluate(inputFor(folder, server, { numExamples: 8 }), 'w/2');
  assert.equal(server.answered.length, 24);
  assert.deepEqual([result.rollouts, result.adopted, result.sampled], [24, 18, 6]);
  assert.equal((await rowsIn(folder)).length, 24);
});
