import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { heartbeatTimeoutDefaultS } from '../../core/limits.ts';
import { type RunStatus, eventsQuery } from '../../workflows/control/messages.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { openSmallProject, smallRun, type SmallProject } from './small-run.ts';
import { eventually, until } from '../eventually.ts';

const steps = 6;
const config = smallRun
  .replace('max_steps = 12', `max_steps = ${steps}`)
  .replace('steps = 60', 'steps = 50')
  .replace('interval = 4', 'interval = 3')
  .replace('interval = 6', 'interval = 100');
const runs = ['undisturbed', 'killed', 'stopped', 'one', 'two', 'three'];

/** Two GPU workers. */
let project: SmallProject;
let undisturbed: RunSummary;
before(async () => {
  project = await openSmallProject(Object.fromEntries(runs.map((run) => [`${run}.toml`, config])), { train: 2 });
  undisturbed = await start('undisturbed').then((handle) => handle.result());
});
after(() => project?.close());

test('a GPU worker killed in the middle of a step: the other one continues, to the same weights, and nothing is generated again', async () => {
  const handle = await start('killed');
  await untilInStep('killed', 5);
  process.kill(await holderOf('killed'), 'SIGKILL');
  const summary = await handle.result();
  const [first, second, ...more] = await holders('killed');
  assert.ok(first !== undefined && second !== undefined && first !== second, 'another process held the run');
  assert.deepEqual(more, []);
  await assertSame('killed', summary);
  const events = await handle.query(eventsQuery, 0);
  const recovery = events.find(({ values }) => 'rollouts_regenerated' in values);
  assert.ok(recovery, JSON.stringify(events.map(({ text }) => text)));
  assert.deepEqual(
    [recovery.values['restored_from'], recovery.values['rollouts_regenerated']],
    [3, 0],
    'from the newest sealed checkpoint',
  );
  assert.equal(recovery.values['replayed_steps'], 1);
  assert.ok(events.some(({ text }) => text.includes('is lost')));
});

test('a GPU worker stopped for longer than its heartbeat and continued later harms no weights', async () => {
  const handle = await start('stopped');
  await untilInStep('stopped', 3);
  const pid = await holderOf('stopped');
  process.kill(pid, 'SIGSTOP');
  try {
    await until('another holder', async () => (await holders('stopped')).length === 2);
    await delay(heartbeatTimeoutDefaultS * 200);
  } finally {
    process.kill(pid, 'SIGCONT');
  }
  const summary = await handle.result();
  await delay(heartbeatTimeoutDefaultS * 200); // what woke up had time to do harm
  await assertSame('stopped', summary);
});

test('three runs on two GPU workers: one waits, says by name what for, and runs in its turn', async () => {
  const names = ['one', 'two', 'three'];
  const handles = await Promise.all(names.map(start));
  const waitingFor = async (handle: (typeof handles)[number]): Promise<string | null> => {
    const status = await handle.query<RunStatus>('status').catch(() => null); // it is not open yet
    return status?.waitingOn.find(({ what }) => what.includes('busy with run'))?.what ?? null;
  };
  const said = await eventually(
    'a run that waits for a trainer',
    async () => (await Promise.all(handles.map(waitingFor))).find((what) => what !== null) ?? null,
    (what) => what !== null,
  );
  assert.ok(said !== null);
  // One that was killed before is known to Temporal for another minute.
  assert.match(said, /^a GPU worker: [23] known, busy with run (one|two|three), (one|two|three)(, 1 not answering)?$/);
  const summaries = await Promise.all(handles.map((handle) => handle.result()));
  for (const [i, name] of names.entries()) await assertSame(name, summaries[i]!);
});

async function start(name: string) {
  return project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    args: [`${name}.toml`],
  });
}

/** The same bits, the same ledger, and every version in the store is the one its commit names. */
async function assertSame(run: string, summary: RunSummary): Promise<void> {
  assert.equal(summary.step, steps);
  assert.equal(summary.policyDigest, undisturbed.policyDigest);
  assert.ok(summary.ledger.isSound, JSON.stringify(summary.ledger));
  assert.deepEqual(summary.ledger.counts, undisturbed.ledger.counts);
  for (let step = 0; step <= steps; step++) {
    const { policy, optimizer } = (await project.commit(run, step))!;
    for (const ref of [policy.file, ...(optimizer ? [optimizer] : [])]) {
      const file = path.join(project.folder, 'outputs', run, ref.key);
      if (!existsSync(file)) continue; // retention
      assert.equal(
        createHash('sha256')
          .update(await readFile(file))
          .digest('hex'),
        ref.sha256,
        ref.key,
      );
    }
  }
}

/** Resolves while the run's `count`-th train step is under way. */
async function untilInStep(run: string, count: number): Promise<void> {
  const log = path.join(project.folder, 'outputs', run, 'logs/attempt_1/train.log');
  for (;;) {
    const text = await readFile(log, 'utf8').catch(() => '');
    const lines = text.split('\n').filter((line) => line.includes(' trainBatch '));
    if (lines.filter((line) => line.includes(': starts')).length >= count) return;
    await delay(5);
  }
}

/** Workers that held the run, oldest first. */
async function holders(run: string): Promise<string[]> {
  const folder = path.join(project.folder, 'outputs', run, 'claims/trainer');
  const names = await readdir(folder).catch(() => []);
  const claims = names
    .filter((name) => name.endsWith('.json'))
    .map((name) => readFile(path.join(folder, name), 'utf8'));
  return (await Promise.all(claims))
    .map((text) => JSON.parse(text) as { epoch: number; holder: string })
    .sort((a, b) => a.epoch - b.epoch)
    .map(({ holder }) => holder);
}

async function holderOf(run: string): Promise<number> {
  return Number((await holders(run)).at(-1)!.split('-').at(-2));
}
