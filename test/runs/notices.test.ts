/** Notices in a run's folder: what people wrote, and what the run noticed, each once. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { layout } from '../../runs/layout.ts';
import { appendMetrics } from '../../runs/metrics/metrics.ts';
import { NoticeWatch } from '../../runs/metrics/notice-watch.ts';
import { Notices, markSent, unsentNotices, writeNote, writePause } from '../../runs/metrics/notices.ts';
import { RunSinks } from '../../runs/metrics/run-sinks.ts';
import { beginLineage } from '../../runs/lineages/lineages.ts';
import { advance, commitFirst, makeRun, openRoles, type TestRun } from '../activities/runs.ts';

const limits = { entropyShare: 0.1, lengthFactor: 2, mismatchKl: 0.1, evalFall: 0.05 };

async function watch({ run, store }: TestRun): Promise<void> {
  const sinks = new RunSinks(store, [new NoticeWatch(run, limits)], () => undefined);
  await sinks.restore();
  while (!sinks.isUpToDate) await sinks.advance();
}

async function collapse({ store }: TestRun, lineage: string, from: number, upTo: number): Promise<void> {
  for (let step = from; step <= upTo; step++)
    await appendMetrics(store, {
      step,
      lineage,
      time: new Date(Date.UTC(2026, 0, 1, 0, step)).toISOString(),
      entropy: step <= 10 ? 1 : 0.01,
    });
}

describe('notices of a run', () => {
  test('that its metrics show are there once, whoever looks, and however often', async (t) => {
    const test = await makeRun(t);
    await collapse(test, 'main', 1, 17);
    await watch(test);
    const first = await new Notices(test.store).all();
    assert.deepEqual(
      first.map(({ id, text }) => [id, text.slice(0, 21)]),
      [['main.step_15.entropy', 'entropy fell to 0.010']],
    );
    await watch(test); // another process, which begins anew
    await test.store.removeAll(layout.metrics());
    await collapse(test, 'main', 1, 20);
    await watch(test);
    assert.deepEqual(await new Notices(test.store).all(), first);
  });

  test("that were deleted with their run's folder are not sent", async (t) => {
    const test = await makeRun(t);
    const notices = new Notices(test.store);
    await writeNote(test.run, 'of the run before');
    assert.equal((await unsentNotices(test.store, notices)).length, 1);
    await test.store.removeAll(layout.notices());
    assert.deepEqual(await unsentNotices(test.store, notices), []);
    await writeNote(test.run, 'of the run begun anew');
    const texts = (await unsentNotices(test.store, notices)).map(({ text }) => text);
    assert.deepEqual(texts, ['of the run begun anew']);
  });

  test('of a lineage go on from what it took over, and do not tell it again', async (t) => {
    const test = await makeRun(t);
    await commitFirst(test, openRoles());
    await collapse(test, 'main', 1, 16);
    await beginLineage({ run: test.run, step: 0, request: 'a test' });
    await collapse(test, 'l2', 1, 12);
    await watch(test);
    // l2 begins at step 0: its own 10 first steps are its beginning, and 12 steps are too few.
    const all = await new Notices(test.store).all();
    assert.deepEqual(
      all.map(({ id }) => id),
      ['main.step_15.entropy'],
    );
  });

  test('are what people write, at the step that the run stands at; nothing and too much are refused', async (t) => {
    const test = await makeRun(t);
    const roles = openRoles();
    const at = await commitFirst(test, roles);
    assert.equal((await writeNote(test.run, 'begun on the new cluster')).step, 0);
    await advance(test, roles, at);
    const note = await writeNote(test.run, '  <b>the judge was updated</b>\n ');
    assert.deepEqual([note.kind, note.step, note.text], ['note', 1, '<b>the judge was updated</b>']);
    assert.equal((await new Notices(test.store).all()).length, 2);
    await assert.rejects(writeNote(test.run, ' \n'), /expected 1 to 2000 characters, got nothing/);
    await assert.rejects(writeNote(test.run, 'x'.repeat(2_001)), /got 2001 characters/);
  });

  test('of a pause are one for each reason and step; one that was sent is not sent again', async (t) => {
    const test = await makeRun(t);
    await commitFirst(test, openRoles());
    const reason = 'breaker: 10 groups in a row failed for step 1: infra_failure. Remove the cause, then resume.';
    const written = await writePause(test.run, reason);
    assert.deepEqual([written.kind, written.step], ['breaker', 1]);
    assert.deepEqual(await writePause(test.run, reason), written);
    await writePause(test.run, 'no-signal: 8 sampling rounds');
    const notices = new Notices(test.store);
    const unsent = await unsentNotices(test.store, notices);
    assert.deepEqual(
      unsent.map(({ kind }) => kind),
      ['breaker', 'paused'],
    );
    await markSent(test.store, unsent[0]!, 'sent');
    assert.deepEqual(
      (await unsentNotices(test.store, notices)).map(({ kind }) => kind),
      ['paused'],
    );
  });
});
