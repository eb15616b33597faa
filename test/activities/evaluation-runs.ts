/** Evaluations driven through the real activities, against a server that answers by content. */
import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { createEvaluateChunk } from '../../activities/evaluation/evaluate-chunk.ts';
import type { AskDependencies } from '../../play/policy/asked-model.ts';
import { createOpenEvaluation } from '../../activities/evaluation/open-evaluation.ts';
import { createCloseEvaluation } from '../../activities/evaluation/write-results.ts';
import { placeIn } from '../../load/evaluations/evaluation-folders.ts';
import { type ContentServer, type ContentServerOptions, startContentServer } from '../../bench/content-server.ts';
import type { ChunkResult, EvaluationHandle, EvaluationInput, EvaluationResult } from '../../core/eval/evaluation.ts';
import { openTokenizer } from './runs.ts';

export const evaluationId = 'abcd1234';

export const dependencies: AskDependencies = {
  inference: () => assert.fail('no version is evaluated'),
  tokenizer: openTokenizer,
};

export async function serve(t: TestContext, options: ContentServerOptions = {}): Promise<ContentServer> {
  const server = await startContentServer(options);
  t.after(() => server.close());
  return server;
}

export async function evaluationFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-eval-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

export function inputFor(
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
    maxRetries: 0,
    standstillS: 60,
    results: placeIn(folder, evaluationId),
    ...over,
  };
}

export async function openEvaluation(
  input: EvaluationInput,
  request = 'w/1',
  given: Pick<Parameters<typeof createOpenEvaluation>[0], 'prices'> = {},
): Promise<EvaluationHandle> {
  const open = createOpenEvaluation({ codeVersion: 'test', countRolloutWorkers: () => Promise.resolve(1), ...given });
  return (await new MockActivityEnvironment().run(open, { input, request })) as EvaluationHandle;
}

export async function playChunk(
  handle: EvaluationHandle,
  chunk: number,
  {
    given = dependencies,
    activity = new MockActivityEnvironment(),
  }: { readonly given?: AskDependencies; readonly activity?: MockActivityEnvironment } = {},
): Promise<ChunkResult> {
  return (await activity.run(createEvaluateChunk(given), { handle, chunk })) as ChunkResult;
}

/** All of it, as the workflow does. */
export async function evaluateAll(
  input: EvaluationInput,
  request = 'w/1',
  given: AskDependencies & Pick<Parameters<typeof createOpenEvaluation>[0], 'prices'> = dependencies,
): Promise<{ readonly result: EvaluationResult; readonly handle: EvaluationHandle }> {
  const handle = await openEvaluation(input, request, given.prices ? { prices: given.prices } : {});
  let adopted = 0;
  for (let chunk = 0; chunk < handle.chunks; chunk++) adopted += (await playChunk(handle, chunk, { given })).adopted;
  const closing = { handle, adopted, seconds: 1 };
  const result = (await new MockActivityEnvironment().run(createCloseEvaluation({}), closing)) as EvaluationResult;
  return { result, handle };
}

export async function rowsIn(folder: string): Promise<Record<string, unknown>[]> {
  const text = await readFile(path.join(folder, 'results.jsonl'), 'utf8');
  const lines = text.split('\n').filter((line) => line !== '');
  return lines.map((line) => JSON.parse(line) as Record<string, unknown>);
}

export async function metadataIn(folder: string): Promise<Record<string, unknown>> {
  return JSON.parse(await readFile(path.join(folder, 'metadata.json'), 'utf8')) as Record<string, unknown>;
}
