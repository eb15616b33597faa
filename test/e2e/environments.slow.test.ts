import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { openSmallProject, smallRun, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';

/** So few words of each kind that examples come back, and most of them are hard. */
const twoEnvironments = smallRun
  .replace('max_steps = 12', 'max_steps = 6')
  .replace(
    /\[\[env\]\]\n[^[]*/,
    `[[env]]
id = "reverse-text"
name = "short"
args = { min_length = 3, max_length = 3 }
weight = 0.6
[[env]]
id = "reverse-text"
name = "long"
args = { min_length = 6, max_length = 6 }
weight = 0.4
buffer = { hard_threshold = 0.25, hard_fraction = 0.2 }
[buffer]
easy_threshold = 0.5
easy_fraction = 0.5
`,
  )
  .replace('interval = 6', 'interval = 3');

let project: SmallProject;
before(async () => {
  project = await openSmallProject({ 'undisturbed.toml': twoEnvironments, 'disturbed.toml': twoEnvironments });
});
after(() => project?.close());

test('a run with two environments and pools, killed and resumed, ends with the same bits and the same pools', async () => {
  const undisturbed = await start('undisturbed').then((handle) => handle.result());
  const handle = await start('disturbed');
  for (const [step, name] of [
    [1, 'rollout worker'],
    [2, 'orchestrator worker'],
    [4, 'train worker'],
  ] as const) {
    await until(`step ${step}`, () => project.commit('disturbed', step));
    process.kill(project.stack.pids()[name]!, 'SIGKILL');
  }
  const disturbed = await handle.result();
  assert.equal(disturbed.policyDigest, undisturbed.policyDigest);
  assert.deepEqual(disturbed.ledger, undisturbed.ledger);
  assert.ok(disturbed.ledger.isSound);
  assert.deepEqual(evaluated(disturbed), ['long 0', 'long 3', 'long 6', 'short 0', 'short 3', 'short 6']);

  const [one, other] = await Promise.all(['undisturbed', 'disturbed'].map((run) => project.commit(run, 6)));
  assert.deepEqual(other!.state.curriculum, one!.state.curriculum);
  const pools = one!.state.curriculum.pools!;
  assert.deepEqual(await poolsAt('disturbed', pools), await poolsAt('undisturbed', pools));
  for (const { metrics } of [one!, other!]) {
    assert.ok(metrics['pool/long/hard']! + metrics['pool/short/easy']! > 0, JSON.stringify(metrics));
    assert.ok(Number.isFinite(metrics['reward/short/mean']) && Number.isFinite(metrics['reward/long/mean']));
    assert.ok('train/short/effective/reward/mean' in metrics && 'batch/long' in metrics);
  }
});

async function start(name: string) {
  return project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    args: [`${name}.toml`],
  });
}

function evaluated({ evals }: RunSummary): string[] {
  return evals.map(({ environment, step }) => `${environment} ${step}`).sort();
}

async function poolsAt(run: string, { key }: ObjectRef): Promise<unknown> {
  return JSON.parse(await readFile(path.join(project.folder, 'outputs', run, key), 'utf8'));
}
