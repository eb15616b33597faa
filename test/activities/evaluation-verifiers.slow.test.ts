import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { copyFile, mkdir, readdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { closeProcesses } from '../../host/processes-open.ts';
import type { ContentServer } from '../../bench/content-server.ts';
import type { EvaluationInput } from '../../core/eval/evaluation.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { modulePaths } from '../backends/python-bridge.ts';
import { installPython } from '../python-here.ts';
import { evaluateAll, evaluationFolder, evaluationId, inputFor, metadataIn, rowsIn, serve } from './evaluation-runs.ts';

/** The real package: its own vf-eval and ours, on the same environment, against servers that answer the same. */
const installed = await installPython('verifiers-v0-requirements.txt');
const { why: skip } = installed;
const run = promisify(execFile);
process.env['PYTHONPATH'] = modulePaths.join(path.delimiter);
after(() => closeProcesses());

interface Asked {
  readonly env: string;
  readonly args?: Record<string, JsonValue>;
  readonly examples: number;
  readonly rollouts: number;
  readonly flags?: readonly string[];
  readonly over?: Partial<EvaluationInput>;
  readonly columns?: readonly string[];
}

/** One that is often right, and calls nothing. */
const answer = ({ content, times }: { content: string; times: number }): string => {
  const word = /Spell (\S+) backwards/.exec(content)?.[1];
  if (word === undefined) return `my guess is ${content.length}`;
  const right = word.split('').reverse().join('');
  return (word.length + word.charCodeAt(word.length - 1) + times) % 3 === 0 ? 'no idea' : `<answer>${right}</answer>`;
};

async function ofVerifiers(
  folder: string,
  { url }: ContentServer,
  { env, args = {}, examples, rollouts, flags = [], columns = [] }: Asked,
): Promise<string> {
  const line = [env, '-m', 'mock', '-b', `${url}/v1`, '-k', 'MOCK_KEY', '-a', JSON.stringify(args)];
  const counts = ['-n', String(examples), '-r', String(rollouts), '-T', '0', '-t', '32', '-s', '-d', '-c', '1'];
  const options = { cwd: folder, env: { ...process.env, MOCK_KEY: 'none', HF_HUB_OFFLINE: '1' } };
  const fromState = columns.length === 0 ? [] : ['-C', columns.join(',')];
  const { python } = installed;
  const main = 'from verifiers.legacy.scripts.eval import main; main()';
  await run(python, ['-c', main, ...line, ...counts, '--disable-env-server', ...flags, ...fromState], options);
  const runs = path.join(folder, 'outputs', 'evals', `${env}--mock`);
  return path.join(runs, (await readdir(runs))[0]!);
}

const venv = path.dirname(path.dirname(installed.python));

function ours(
  folder: string,
  server: ContentServer,
  { env, args = {}, examples, rollouts, over, columns }: Asked,
): EvaluationInput {
  const python = {
    module: env.replaceAll('-', '_'),
    api: 'v0' as const,
    folder: venv,
    verifiers: '0.3.1',
    version: '',
  };
  return inputFor(folder, server, {
    environment: { id: env, name: env, args, python, stateColumns: columns },
    numExamples: examples,
    rolloutsPerExample: rollouts,
    maxConcurrent: 1,
    ...over,
  });
}

/** Sums in another order differ in their last bit. */
function rounded(value: unknown): unknown {
  return JSON.parse(
    JSON.stringify(value, (_, inner: unknown) => (typeof inner === 'number' ? Number(inner.toPrecision(13)) : inner)),
  );
}

/** Fields that always differ: time, place and code version. */
const notCompared = ['time', 'base_url', 'version_info'];

for (const asked of [
  { env: 'toy_single', examples: 5, rollouts: 4 },
  { env: 'toy_single', args: { group: true }, examples: 4, rollouts: 3 },
  { env: 'toy_single', examples: 3, rollouts: 2, flags: ['-i'], over: { independentScoring: true } },
  { env: 'toy_single', examples: 2, rollouts: 1 },
  { env: 'toy_multi', examples: 4, rollouts: 2 },
] satisfies Asked[]) {
  const named = `${asked.env}${'args' in asked ? ' with a reward over the group' : ''}${'flags' in asked ? ', scored one by one' : ''}`;
  test(
    `metadata and rewards are those of vf-eval 0.3.1, field by field: ${named}, ${asked.examples} × ${asked.rollouts}`,
    { skip },
    async (t) => {
      const [theirsAt, oursAt] = [await evaluationFolder(t), await evaluationFolder(t)];
      const theirs = await ofVerifiers(theirsAt, await serve(t, { answer, varies: 'count' }), asked);
      await evaluateAll(ours(oursAt, await serve(t, { answer, varies: 'count' }), asked));
      const own = path.join(oursAt, evaluationId);
      const [expected, received] = [await metadataIn(theirs), await metadataIn(own)];
      for (const key of notCompared) {
        assert.ok(key in received, key);
        delete expected[key];
        delete received[key];
      }
      assert.deepEqual(rounded(received), rounded(expected));
      const facts = (row: Record<string, unknown>) => [
        row['example_id'],
        row['reward'],
        row['metrics'],
        row['token_usage'],
        row['completion'],
      ];
      const byExample = (rows: Record<string, unknown>[]) =>
        rows.map(facts).sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1));
      assert.deepEqual(rounded(byExample(await rowsIn(own))), rounded(byExample(await rowsIn(theirs))));
      const columns = (rows: Record<string, unknown>[]) => new Set(rows.flatMap((row) => Object.keys(row)));
      const known = columns(await rowsIn(own));
      const missing = [...columns(await rowsIn(theirs))].filter((name) => !known.has(name));
      assert.deepEqual(missing, []);
    },
  );
}

/** Normalizes steps: times and ids are each writer's own, as are a client's notes on its answer. */
function comparable(value: unknown): unknown {
  if (!Array.isArray(value)) return value;
  return value.map((step: unknown) => {
    if (typeof step !== 'object' || step === null || !('trajectory_id' in step)) return step;
    const { trajectory_id: _, response, ...rest } = step as Record<string, unknown>;
    const { message, usage } = response as Record<string, Record<string, unknown>>;
    return { ...rest, said: message!['content'], finish: message!['finish_reason'], usage };
  });
}

for (const asked of [
  { env: 'toy_multi', examples: 3, rollouts: 2, columns: ['tries', 'solved', 'limits', 'trajectory', 'absent'] },
  { env: 'toy_single', args: { group: true }, examples: 2, rollouts: 2, columns: ['input', 'reward', 'sampling_args'] },
] satisfies Asked[]) {
  test(
    `-C writes the columns that vf-eval 0.3.1 writes, as scoring has left them: ${asked.columns.join(', ')}`,
    { skip },
    async (t) => {
      const [theirsAt, oursAt] = [await evaluationFolder(t), await evaluationFolder(t)];
      const theirs = await ofVerifiers(theirsAt, await serve(t, { answer, varies: 'count' }), asked);
      await evaluateAll(ours(oursAt, await serve(t, { answer, varies: 'count' }), asked));
      const own = path.join(oursAt, evaluationId);
      const read = async (folder: string) =>
        (await rowsIn(folder))
          .map((row) => [row['example_id'], ...asked.columns.map((name) => comparable(row[name]))])
          .sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1));
      assert.deepEqual(rounded(await read(own)), rounded(await read(theirs)));
      assert.ok((await rowsIn(own)).every((row) => !('state_columns' in row)));
      assert.deepEqual((await metadataIn(own))['state_columns'], (await metadataIn(theirs))['state_columns']);
    },
  );
}

test('a column that JSON has no words for costs no rollout: its type stands there', { skip }, async (t) => {
  const folder = await evaluationFolder(t);
  const asked = { env: 'toy_multi', args: { unkept: true }, examples: 1, rollouts: 1, columns: ['seen', 'tries'] };
  const { result } = await evaluateAll(ours(folder, await serve(t, { answer }), asked));
  assert.equal(result.failed, 0);
  const [row] = await rowsIn(path.join(folder, evaluationId));
  assert.deepEqual([row!['seen'], row!['tries']], [{ not_json: 'set' }, 1]);
});

test(
  'an evaluation that vf-eval began continues: what is missing, torn or failed is sampled, and nothing else',
  { skip },
  async (t) => {
    const [folder, elsewhere] = [await evaluationFolder(t), await evaluationFolder(t)];
    const asked: Asked = { env: 'toy_single', examples: 4, rollouts: 3 };
    const theirs = await ofVerifiers(folder, await serve(t, { answer }), asked);
    const before = await rowsIn(theirs);
    const lines = before.map((row, i) =>
      JSON.stringify(i === 4 ? { ...row, error: { error: 'X', message: 'gone' }, reward: 0 } : row),
    );
    const text = lines.slice(0, 10).join('\n');
    await mkdir(path.join(elsewhere, evaluationId));
    await writeFile(path.join(elsewhere, evaluationId, 'results.jsonl'), text.slice(0, -20)); // the tenth is torn
    await copyFile(path.join(theirs, 'metadata.json'), path.join(elsewhere, evaluationId, 'metadata.json'));
    const server = await serve(t, { answer });
    const input = ours(elsewhere, server, asked);
    const { model } = input;
    assert.equal(model.kind, 'endpoint');
    const hot = { ...input, model: { ...model, sampling: { temperature: 1 } } };
    await assert.rejects(evaluateAll(hot), /sampling_args was .* is .*"temperature":1/);
    const { result } = await evaluateAll(input);
    assert.equal(server.answered.length, 4); // the failed one, the torn one, and two that were not there
    assert.deepEqual([result.rollouts, result.failed, result.adopted], [12, 0, 8]);
    const facts = (rows: Record<string, unknown>[]) => rows.map(({ example_id: id, reward }) => [id, reward]);
    assert.deepEqual(facts(await rowsIn(path.join(elsewhere, evaluationId))), facts(before));
  },
);
