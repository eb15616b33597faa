/**
 * A trainer that runs out of memory at one step, again and again: the run pauses with a message, and continues on
 * request.
 */
import assert from 'node:assert/strict';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { type RunStatus, eventsQuery } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import type { SampledLine } from '../faults/fake-inference.ts';
import { fakeRun } from '../faults/fake-run.ts';
import { openSmallProject, type SmallProject } from './small-run.ts';

const trainer = fileURLToPath(new URL('failing-trainer.ts', import.meta.url));
const steps = 3;

let project: SmallProject;
before(async () => {
  project = await openSmallProject({});
});
after(() => project?.close());

async function start(name: string, failsAt: number, more = '') {
  const file = (extension: string): string => path.join(project.folder, `${name}.${extension}`);
  const [flag, log] = [file('fails'), file('sampled')];
  writeFileSync(flag, String(failsAt));
  const own = `[trainer]\nkind = "module"\nimport = ${JSON.stringify(trainer)}\noptions = { failsAt = ${JSON.stringify(flag)}${more} }\n`;
  writeFileSync(
    file('toml'),
    fakeRun({ log, steps }).replace(/\[trainer\][^[]*/, () => own),
  );
  const args: [string] = [`${name}.toml`];
  const handle = await project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    args,
  });
  for (;;) {
    const status = await handle.query<RunStatus>('status').catch(() => null); // no handler before the run is open
    if (status?.phase === 'paused') return { handle, status, mend: () => rmSync(flag), log };
    await delay(100);
  }
}

test('a trainer that runs out of memory three times at one step pauses the run by name; resumed, nothing is generated again', async () => {
  const { handle, status, mend, log } = await start('memory', 2);
  assert.equal(status.step, 1);
  assert.match(status.pausedBecause ?? '', /^step 2: the trainer failed 3 times in a row.*OutOfMemory/);
  assert.match(status.pausedBecause ?? '', /CUDA out of memory.*micro_batch_size.*\[lora\].*Then resume\.$/);
  mend();
  await handle.executeUpdate('resume');
  const { step, ledger } = await handle.result();
  assert.deepEqual([step, ledger.isSound], [steps, true]);
  // Out of memory at first, it was planned once more with half the rows at a time: that is what a replay repeats.
  const { key } = (await project.commit('memory', 2))!.plan!;
  assert.match(key, /step_2\.attempt_2\./);
  const lines = readFileSync(log, 'utf8').trim().split('\n');
  const places = lines.map((line) => JSON.parse(line) as SampledLine).map(({ policy, seed }) => `${policy} ${seed}`);
  assert.equal(new Set(places).size, places.length);
});

test('from such a pause a run can be taken back to an earlier step', async () => {
  const { handle, mend } = await start('back', 3);
  mend();
  await handle.executeUpdate('rewind', { args: [1] });
  const { step, ledger } = await handle.result();
  assert.deepEqual([step, ledger.isSound], [steps, true]);
  const events = await project.client.workflow.getHandle('back').query(eventsQuery, 0);
  assert.ok(events.some(({ kind, text }) => kind === 'rewound' && text.includes('l2 begins at step 1')));
});

test('a trainer that ends its process at one step, time after time, pauses the run, too', async () => {
  const { handle, status, mend } = await start('exits', 2, ', exits = true');
  assert.equal(status.step, 1);
  assert.match(
    status.pausedBecause ?? '',
    /^the GPU worker ended 3 times in a row in the middle of the same work.*exit code 137.*micro_batch_size.*Then resume\.$/,
  );
  mend();
  await handle.executeUpdate('resume');
  const { step, ledger } = await handle.result();
  assert.deepEqual([step, ledger.isSound], [steps, true]);
});
