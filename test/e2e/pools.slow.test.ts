/** Two runs and one GPU worker of a pool, with everything real: turns at step boundaries, and the same weights as alone. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import type { FoundPool } from '../../core/fleet/pool-types.ts';
import { nothingLost } from '../../core/rl/lost-work.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { openSmallProject, repositoryFolder, smallRun, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';

const steps = 6;
/** Steps of the run that takes the trainer: enough to be looked at meanwhile. */
const longSteps = 40;
const inPool = (queue: string, maxSteps = steps): string =>
  `${smallRun.replace('max_steps = 12', `max_steps = ${maxSteps}`).replace(/\[eval\][^[]*/, '')}\n[queue]\npool = "gpus"\n${queue}`;

let project: SmallProject;
before(async () => {
  const configs = {
    'alone.toml': inPool(''),
    'low.toml': inPool('team = "a"\nlabels = { gpu = "small" }\n'),
    'high.toml': inPool('team = "b"\npriority = 5\n', longSteps),
  };
  project = await openSmallProject(configs, {}, false, {}, { pool: 'gpus', labels: { gpu: 'small' } });
});
after(() => project?.close());

async function ratchet(...args: readonly string[]): Promise<string> {
  const program = path.join(repositoryFolder, 'cli/ratchet.mjs');
  const { stdout } = await promisify(execFile)(process.execPath, [program, ...args], { cwd: project.folder });
  return stdout;
}

async function queue(): Promise<Exclude<FoundPool, { readonly trouble: string }>> {
  const [pool] = JSON.parse(await ratchet('queue', 'gpus', '--json')) as FoundPool[];
  assert.ok(pool && !('trouble' in pool), JSON.stringify(pool));
  return pool;
}

function start(run: string) {
  const options = { workflowId: run, taskQueue: 'ratchet', args: [`${run}.toml`] as [string] };
  return project.client.workflow.start<typeof trainRun>('trainRun', options);
}

async function committed(run: string, step: number): Promise<void> {
  await until(`step ${step} of ${run}`, async () => (await project.commit(run, step)) !== null, { withinMs: 240_000 });
}

let alone: RunSummary;

test('a run of a pool trains with the trainer and the rollout worker that joined it', async () => {
  alone = await (await start('alone')).result();
  assert.equal(alone.step, steps);
  assert.ok(alone.ledger.isSound);
});

test('a run of higher priority takes the trainer at a step boundary, and both end with the weights of the run alone', async () => {
  assert.match(
    await ratchet('pool', 'set', 'gpus', 'b.quota=1', 'slice=30'),
    /slice=30 aging=3600 b.quota=1 b.weight=1/,
  );
  const low = await start('low');
  await committed('low', 1);
  const high = await start('high');
  await committed('high', 1);
  const during = await queue();
  assert.deepEqual(during.trainers.map(({ run, labels }) => [run, labels]), [['high', { gpu: 'small' }]]); // prettier-ignore
  assert.deepEqual(during.waiting.map(({ run, team }) => [run, team]), [['low', 'a']]); // prettier-ignore
  assert.match(during.waiting[0]!.why, /all of 1 trainer that fit are held: high \(priority 5\)/);
  assert.match(await ratchet('status', 'low'), /a trainer of the pool gpus: all of 1 trainer/);
  // What decides is killed in between; the pool, its runs and its trainer go on by themselves.
  process.kill(project.stack.pids()['orchestrator worker']!, 'SIGKILL');
  const [ofHigh, ofLow] = [await high.result(), await low.result()];
  assert.equal(ofLow.policyDigest, alone.policyDigest, 'the same bits as alone');
  assert.deepEqual(ofLow.ledger, alone.ledger);
  assert.equal((await project.commit('high', steps))!.policy.digest, alone.policyDigest);
  assert.ok(ofHigh.ledger.isSound);
  assert.deepEqual(ofLow.effectiveness.lost, nothingLost);
  assert.match(
    await ratchet('queue'),
    /pool gpus: 1 trainer, 0 held; 1 rollout worker, 0 at work; 0 runs wait; turns of 30 s/,
  );
});

test('a killed GPU worker leaves the pool, the one in its place joins it, and the run goes on', async () => {
  const again = await project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: 'again',
    taskQueue: 'ratchet',
    args: [{ config: 'high.toml', run: 'again' }],
  });
  await committed('again', 2);
  const [before] = (await queue()).trainers;
  process.kill(project.stack.pids()['train worker']!, 'SIGKILL');
  assert.equal((await again.result()).policyDigest, (await project.commit('high', longSteps))!.policy.digest);
  const { trainers } = await queue();
  assert.equal(trainers.length, 1);
  assert.notEqual(trainers[0]!.trainer, before!.trainer);
});
