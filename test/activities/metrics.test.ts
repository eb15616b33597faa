/** Metrics of a commit, and their projection in `metrics.jsonl`. */
import assert from 'node:assert/strict';
import { appendFile, cp, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { recordCommit, recordMissing } from '../../runs/metrics/record-metrics.ts';
import { appendMetrics, readMetrics } from '../../runs/metrics/metrics.ts';
import type { MetricsRow } from '../../core/rl/metric-rows.ts';
import { costOfRun } from '../../runs/metrics/cost.ts';
import { partName } from '../../core/rl/cost.ts';
import { decodeRows, encodeJson } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { advance, commitFirst, evaluateVersion, makeRun, openRoles, type TestRun, WordsInference } from './runs.ts';

async function started(t: TestContext) {
  const test = await makeRun(t);
  const roles = openRoles();
  return { test, roles, first: await commitFirst(test, roles) };
}

const commitOf = async ({ folder }: TestRun, step: number) =>
  JSON.parse(await readFile(path.join(folder, layout.commit('main', step)), 'utf8')) as StepCommit;

test('a commit says that its orchestrator was started after the one before', async (t) => {
  const { test, roles, first } = await started(t);
  const one = await advance(test, roles, first);
  const long = { ...(await commitOf(test, 1)), committedAt: '2020-01-01T00:00:00.000Z' };
  await writeFile(path.join(test.folder, layout.commit('main', 1)), `${JSON.stringify(long)}\n`);
  const other = openRoles(); // a process that was not there then
  await advance(test, other, await advance(test, other, one));
  const restarts = [1, 2, 3].map(async (step) => (await commitOf(test, step)).metrics['recovery/restarts']);
  assert.deepEqual(await Promise.all(restarts), [undefined, 1, undefined]);
});

describe('what a run costs', () => {
  const prices = { 'cost.prompt': '1', 'cost.completion': '2', 'cost.trained': '4', 'cost.currency': 'EUR' };
  const settings = {
    ...prices,
    eval: '{ interval = 1, env = [{ id = "reverse-text", name = "words", num_examples = 3 }] }',
  };

  test('is the tokens of every rollout that was sampled, in training and evaluations, and of the rows that were trained', async (t) => {
    const run = await makeRun(t, settings);
    await run.store.put(layout.run(), encodeJson({ schemaVersion: 1, name: 'words', spec: run.spec }));
    const inference = new WordsInference();
    const roles = openRoles(inference);
    const first = await commitFirst(run, roles);
    await evaluateVersion(roles, run, 0);
    const asked = (from: number) => {
      const requests = inference.asked.slice(from);
      return requests.reduce((sum, { promptTokenIds }) => sum + promptTokenIds.length, 0);
    };
    const [rowOfEval] = await readMetrics(run.store);
    const ofEval = asked(0);
    assert.equal(rowOfEval!['eval/words/cost/prompt_tokens'], ofEval);
    const before = inference.asked.length;
    const one = await advance(run, roles, first);
    const { metrics } = await commitOf(run, 1);
    assert.equal(metrics['cost/prompt_tokens'], asked(before));
    const trained = metrics['cost/prompt_tokens'] + metrics['cost/completion_tokens']!;
    assert.equal(metrics['cost/trained_tokens'], trained, 'each rollout is one row');
    const money = (metrics['cost/prompt_tokens'] + 2 * metrics['cost/completion_tokens']! + 4 * trained) / 1e6;
    assert(Math.abs(metrics['cost/money']! - money) < 1e-12);

    await roles.beginLineage({ run: run.run, step: 0, request: 'a rewind' });
    const cost = (await costOfRun(run.run))!;
    assert.deepEqual(
      cost.parts.map((part) => [partName(part), part.used.prompt]),
      [
        ['evals of words', ofEval],
        ['training', asked(before)],
      ],
      'what was left behind stays paid',
    );
    assert.equal(cost.currency, 'EUR');
    assert(Math.abs(cost.money! - money - Number(rowOfEval!['eval/words/cost/money'])) < 1e-12);
    assert.equal(one.state.step, 1);
  });

  test('of a step that is committed again after a kill is counted once', async (t) => {
    const run = await makeRun(t, prices);
    await run.store.put(layout.run(), encodeJson({ schemaVersion: 1, name: 'words', spec: run.spec }));
    const roles = openRoles();
    await advance(run, roles, await commitFirst(run, roles));
    const once = await costOfRun(run.run);
    for (let again = 0; again < 2; again++) await recordMissing(run.run);
    await recordCommit(run.run, await commitOf(run, 1));
    const row = (await run.store.read(layout.metrics()))!;
    await run.store.append(layout.metrics(), row); // by a process that did not know of it
    assert.deepEqual(await costOfRun(run.run), once);
  });
});

describe('the metrics file', () => {
  const rows = async ({ folder }: TestRun) =>
    (await readFile(path.join(folder, 'metrics.jsonl'), 'utf8')).split('\n').filter((line) => line !== '');

  test('a committed step is one row, however often it is recorded', async (t) => {
    const { test, roles, first } = await started(t);
    await advance(test, roles, await advance(test, roles, first));
    for (const step of [1, 2]) await recordCommit(test.run, await commitOf(test, step));
    assert.deepEqual(
      decodeRows<StepCommit>(Buffer.from((await rows(test)).join('\n')), 'metrics.jsonl').map(({ step }) => step),
      [1, 2],
    );
  });

  test('rows that are missing, as of a step whose process died after its commit, are written when the run is opened', async (t) => {
    const { test: before, roles, first } = await started(t);
    await advance(before, roles, await advance(before, roles, await advance(before, roles, first)));
    await roles.beginLineage({ run: before.run, step: 2, request: 'x' });
    const test = await makeRun(t); // elsewhere, since this process knows what it has written
    await cp(before.folder, test.folder, { recursive: true });
    const second = (await rows(before)).filter((line) => (JSON.parse(line) as MetricsRow).step === 2);
    await writeFile(path.join(test.folder, 'metrics.jsonl'), second.map((line) => `${line}\n`).join(''));
    const whole = async () => {
      const lines = decodeRows<MetricsRow>(Buffer.from((await rows(test)).join('\n')), 'metrics.jsonl');
      return lines.map(({ lineage, step }) => `${lineage} ${step}`).sort();
    };
    assert.deepEqual(await whole(), ['main 2']);
    await recordMissing(test.run);
    assert.deepEqual(await whole(), ['main 1', 'main 2', 'main 3'], 'v0 has no metrics, and l2 no step of its own');
    await recordMissing(test.run);
    assert.equal((await rows(test)).length, 3, 'once');
    const committed = await commitOf(test, 3);
    const row = (await rows(test)).map((line) => JSON.parse(line) as MetricsRow).find(({ step }) => step === 3);
    assert.deepEqual(row, { step: 3, lineage: 'main', time: committed.committedAt, ...committed.metrics });
  });

  test('rows are written again when the run is opened after another process removed the file', async (t) => {
    const { test, roles, first } = await started(t);
    await advance(test, roles, first);
    await rm(path.join(test.folder, 'metrics.jsonl'));
    await recordMissing(test.run);
    assert.equal((await rows(test)).length, 1);
  });

  test('half a line, left by a killed writer or a full disk, spoils no other and its step is written again', async (t) => {
    const { test } = await started(t);
    await mkdir(test.folder, { recursive: true });
    await appendFile(path.join(test.folder, 'metrics.jsonl'), '{"step":1,"lineage":"main"}\n{"step":2,"lin');
    for (const step of [1, 2, 3]) await appendMetrics(test.store, { step, lineage: 'main', 'train/reward': 0.5 });
    const lines = await rows(test);
    assert.equal(lines.length, 4);
    assert.deepEqual(
      lines.flatMap((line) => {
        try {
          return [(JSON.parse(line) as { step: number }).step];
        } catch {
          return [];
        }
      }),
      [1, 2, 3],
    );
  });
});
