/** The report of a run that is damaged says what is missing, and has the rest. */
import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import type { ReportData } from '../../ui/answers.ts';
import { makeReport } from '../../ui/report.ts';
import { layout } from '../../runs/layout.ts';
import type { TestRun } from '../activities/runs.ts';
import { recordedRun } from './recorded-run.ts';

const nobody = () => Promise.resolve(null);

async function reported({ run }: TestRun): Promise<{ readonly data: ReportData; readonly missing: readonly string[] }> {
  const { html, missing } = await makeReport(run, nobody);
  const data = /<script type="application\/json" id="data">(.*?)<\/script>/s.exec(html)![1]!;
  return { data: JSON.parse(data) as ReportData, missing };
}

const cutOff = async ({ store }: TestRun, key: string): Promise<void> => {
  const bytes = (await store.read(key))!;
  await store.put(key, bytes.subarray(0, Math.floor(bytes.length / 2)));
};

async function spoiled(t: TestContext, spoil: (run: TestRun) => Promise<void>) {
  const run = await recordedRun(t);
  await spoil(run);
  return reported(run);
}

test('a report of a damaged run says what is missing of it and has the rest', async (t) => {
  await t.test('whole: nothing is missing', async () => {
    const { data, missing } = await spoiled(t, () => Promise.resolve());
    assert.deepEqual([missing, data.missing], [[], []]);
    assert.equal(data.overview.damage, null);
  });

  await t.test('the newest commit is cut off: the metrics say where it stood', async () => {
    const { data, missing } = await spoiled(t, (run) => cutOff(run, layout.commit('main', 6)));
    assert.match(missing[0]!, /^its newest commit: .*step_6\.json/);
    assert.deepEqual(data.missing, missing);
    assert.deepEqual([data.overview.state, data.overview.step, data.overview.maxSteps], ['damaged', 6, 12]);
    assert(data.series.path.step.length >= 6);
    assert(data.rollouts.length > 0);
  });

  await t.test('a commit in the middle is gone: the ledger is missing', async () => {
    const { data, missing } = await spoiled(t, ({ store }) => store.removeAll(layout.commit('main', 3)));
    assert(data.overview.damage === null && data.rollouts.length > 0);
    assert.equal(missing.length, data.missing.length);
  });

  await t.test('rollouts of a step are gone: those of others are there', async () => {
    const { data, missing } = await spoiled(t, ({ store }) => store.removeAll(layout.rounds('main', 4)));
    assert(missing.length > 0 && missing.every((what) => /^group \d+ of step 4: .*rollouts\/step_4/.test(what)));
    assert(data.rollouts.length > 0 && data.rollouts.every(({ step }) => step !== 4));
  });

  await t.test('the index is cut off: curves and ledger are there', async () => {
    const { data, missing } = await spoiled(t, async (run) => {
      for (const key of await run.store.list(layout.rolloutIndex('main'))) await cutOff(run, key);
    });
    assert(
      missing.some((what) => /index\/rollouts/.test(what)),
      missing.join('\n'),
    );
    assert(data.series.path.step.length >= 6);
    assert.equal(data.history.issued, 12);
  });
});

test('a report has the rows of the first evaluation, however many came since', async (t) => {
  const run = await recordedRun(t);
  for (let step = 0; step <= 9; step++) {
    const place = layout.evaluation('main', 'reverse-text', run.run.name, step);
    const row = { example_id: 0, prompt: [{ role: 'user', content: 'abc' }], completion: [], reward: step / 9 };
    await run.store.put(`${place}results.jsonl`, Buffer.from(`${JSON.stringify(row)}\n`));
    await run.store.put(`${place}metadata.json`, Buffer.from(JSON.stringify({ env_id: 'reverse-text', model: 'm' })));
  }
  const { data } = await reported(run);
  assert.equal(data.evals.evaluations.length, 10);
  const steps = Object.keys(data.evalRows).map((id) => Number(/step_(\d+)/.exec(id)![1]));
  assert.deepEqual(
    steps.toSorted((a, b) => a - b),
    [0, 1, 6, 7, 8, 9],
  );
});
