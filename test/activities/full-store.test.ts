/** Work whose store is full at the moment. */
import assert from 'node:assert/strict';
import { appendFile, readFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import type { LeasedGroups } from '../../core/rl/run-state.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import { RatchetError } from '../../core/errors.ts';
import { appendMetrics } from '../../runs/metrics/metrics.ts';
import { FileStore } from '../../store/file-store.ts';
import { readJson } from '../../runs/run-access.ts';
import { hasCode } from '../store/store.contract.ts';
import { act, commitFirst, datasets, makeRun, openRoles, WordsInference } from './runs.ts';

const full = (): RatchetError => new RatchetError('StoreFull', 'No space left');

test('rollouts that were finished while the store was full are stored by the next attempt, and not sampled again', async (t) => {
  const made = await makeRun(t);
  const { run } = made;
  const inference = new WordsInference();
  const roles = openRoles(inference);
  const { state } = await commitFirst(made, roles);
  const lease = { run, step: 1, count: 2, curriculum: initialCurriculum, datasets, policy: state.policy };
  const { round } = await roles.leaseGroups(lease);
  const input = { run, round, chunk: { index: 0, count: 1 } };
  const rollouts = (await readJson<LeasedGroups>(run, round.leases)).leases.length * 4;

  const writing = t.mock.method(FileStore.prototype, 'putIfAbsent', () => Promise.reject(full()));
  await assert.rejects(act(roles.playGroups, input), hasCode('StoreFull'));
  assert.equal(inference.asked.length, rollouts);
  writing.mock.restore();

  const generated = await act(roles.playGroups, input);
  assert.deepEqual([generated.rollouts, generated.adopted, inference.asked.length], [rollouts, rollouts, rollouts]);
});

test('a line of the metrics that a full disk cut in half is closed off, and its step is written when there is room', async (t) => {
  const { store, folder } = await makeRun(t);
  const file = path.join(folder, 'metrics.jsonl');
  await appendMetrics(store, { step: 1, lineage: 'main' });
  const appending = t.mock.method(FileStore.prototype, 'append', async () => {
    await appendFile(file, '{"step":2,"lin');
    throw full();
  });
  await assert.rejects(appendMetrics(store, { step: 2, lineage: 'main' }), hasCode('StoreFull'));
  appending.mock.restore();
  await appendMetrics(store, { step: 2, lineage: 'main' });
  assert.deepEqual((await readFile(file, 'utf8')).trim().split('\n'), [
    '{"step":1,"lineage":"main"}',
    '{"step":2,"lin',
    '{"step":2,"lineage":"main"}',
  ]);
});
