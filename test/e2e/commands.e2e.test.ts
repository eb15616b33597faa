/** The commands that go back, branch and prove, as a user types them in a folder whose processes run: their words and exit codes. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { cp, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import type { StepCommit } from '../../core/rl/run-state.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { RunningCommand, thisVersion } from '../faults/upgrade.ts';
import { openSmallProject, smallRun, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';

const config = smallRun
  .replace('max_steps = 12', 'max_steps = 6')
  .replace('batch_size = 32', 'batch_size = 16')
  .replace(/\[eval\][^[]*/, '')
  .replace('interval = 4', 'interval = 2');
const lora = `${config.replace('max_steps = 6', 'max_steps = 3').replace('steps = 60', 'steps = 50')}\n[lora]\nr = 4\nalpha = 8\n`;

let project: SmallProject;
before(async () => {
  project = await openSmallProject({
    'words.toml': config,
    'running.toml': config.replace('max_steps = 6', 'max_steps = 90'),
    'adapters.toml': lora,
  });
  const trained = await Promise.all([ratchet('train', 'words.toml'), ratchet('train', 'adapters.toml')]);
  for (const { code, said } of trained) assert.equal(code, 0, said);
});
after(() => project?.close());

interface Typed {
  readonly code: number | null;
  readonly said: string;
}

function ratchet(...args: readonly string[]): Promise<Typed> {
  return ratchetIn(project.folder, ...args);
}

async function ratchetIn(folder: string, ...args: readonly string[]): Promise<Typed> {
  const environment = { ...process.env };
  delete environment['TEMPORAL_ADDRESS'];
  const command = new RunningCommand(thisVersion, args, { folder, environment });
  const code = await command.ended;
  return { code, said: command.said };
}

/** The words after `next    npx ratchet-rl` or the like. */
function toTypeNext(said: string, what: string): string[] {
  const [, words] = new RegExp(`^.*${what}\\s+npx ratchet-rl (.*)$`, 'm').exec(said) ?? [];
  assert.ok(words, said);
  return words.trim().split(' ');
}

function fileOf(run: string, key: string): string {
  return path.join(project.folder, 'outputs', run, key);
}

async function commitOf(run: string, lineage: string, step: number): Promise<StepCommit> {
  return JSON.parse(await readFile(fileOf(run, `lineages/${lineage}/steps/step_${step}.json`), 'utf8')) as StepCommit;
}

async function sha256(file: string): Promise<string> {
  return createHash('sha256')
    .update(await readFile(file))
    .digest('hex');
}

test('a run that was trained is audited as sound, and its checkpoints are listed with what they can be used for', async () => {
  const audit = await ratchet('audit', 'words');
  assert.equal(audit.code, 0, audit.said);
  assert.match(audit.said, /^main \(current\): steps 0–6\n {2}\d+ groups issued = \d+ trained.* \+ \d+ pending\n/);
  assert.match(
    audit.said,
    /\n {2}effective training time \(ETTR\) [\d.]+ · .*\nwords is sound ✓\nthe ledger is proven from the commits; weights were not read/,
  );

  const whole = await ratchet('audit', 'words', '--weights');
  assert.equal(whole.code, 0, whole.said);
  assert.match(whole.said, /^weights: 3 checkpoints agree with their sha256 \(steps 0,4,6\)$/m);

  const checkpoints = await ratchet('checkpoints', 'words');
  assert.equal(checkpoints.code, 0, checkpoints.said);
  const digest = (await commitOf('words', 'main', 6)).policy.digest.slice(0, 12);
  assert.match(
    checkpoints.said,
    new RegExp(`^step 6 +main +sealed +[\\d.]+ MB +${digest} +latest, rewind, fork$`, 'm'),
  );
  assert.match(checkpoints.said, /^head: step 6 of main; a rewind can continue from step 0,4-6$/m);
});

test('a commit that was changed or removed makes the audit loud, by name, and its exit code 1', async () => {
  const changed = await spoiled('changed', async (commit) => {
    await writeFile(
      commit,
      (await readFile(commit, 'utf8')).replace(/"committedAt":\s*"\d/, (text) => `${text.slice(0, -1)}3`),
    );
  });
  assert.equal(changed.code, 1);
  assert.match(
    changed.said,
    /^ {2}✗ commit 4 does not continue the one before it: it or that one was changed or removed$/m,
  );
  assert.match(changed.said, /^words is NOT SOUND ✗$/m);

  const removed = await spoiled('removed', (commit) => rm(commit));
  assert.equal(removed.code, 1);
  assert.match(removed.said, /^ {2}✗ commits are missing: step 3$/m);
  assert.match(removed.said, /^words is NOT SOUND ✗$/m);
});

/** The audit of a copy of the run after something was done to the commit of step 3. */
async function spoiled(copy: string, spoil: (commit: string) => Promise<void>) {
  const folder = path.join(project.folder, copy, 'words');
  await cp(path.join(project.folder, 'outputs', 'words'), folder, { recursive: true });
  await spoil(path.join(folder, 'lineages/main/steps/step_3.json'));
  return ratchet('audit', 'words', '--store', `file:${copy}`);
}

test('a run is taken back to a step and trains on in a new lineage; a step that cannot be reached is refused with those that can', async () => {
  const refused = await ratchet('rewind', 'words', '--step', '2');
  assert.equal(refused.code, 1, refused.said);
  assert.match(refused.said, /^Rewind of words: step 2 can no longer be restored: .*What can be chosen: 0,4-6\.$/m);

  const before = await sha256(fileOf('words', 'lineages/main/steps/step_5.json'));
  const { code, said } = await ratchet('rewind', 'words', '--step', '4');
  assert.equal(code, 0, said);
  assert.match(said, /lineage l2 begins at step 4; later steps of the earlier lineage are superseded/);
  assert.match(said, /done: step 6 of 6 .* groups issued = .*✓/);
  assert.equal(await sha256(fileOf('words', 'lineages/main/steps/step_5.json')), before);

  const audit = await ratchet('audit', 'words');
  assert.equal(audit.code, 0, audit.said);
  assert.match(audit.said, /^l2 \(current\): steps 4–6, from step 4 of main$/m);
  assert.match(audit.said, /^all lineages: \d+ groups issued = .* superseded$/m);
});

test('a run that is running is told to go back, and does so by itself; what it cannot do it says', async () => {
  const handle = await project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: 'running',
    taskQueue: 'ratchet',
    args: ['running.toml'],
  });
  await until('step 1', () => project.commit('running', 1));
  const refused = await ratchet('rewind', 'running', '--step', '99');
  assert.equal(refused.code, 2, refused.said);
  assert.match(refused.said, /^rewind: expected a committed step up to \d+, got 99\.$/m);

  const { code, said } = await ratchet('rewind', 'running', '--step', '0');
  assert.equal(code, 0, said);
  assert.match(said, /^Continuing from step 0 in a new lineage once what is under way is done\./m);
  await until('step 1 of l2', () => existsSync(fileOf('running', 'lineages/l2/steps/step_1.json')));
  await handle.cancel();
});

test('both spellings of resume: an earlier step begins a lineage, -1 continues from the newest commit', async () => {
  const earlier = await ratchet('train', 'words.toml', '--trainer.ckpt.resume-step', '5');
  assert.equal(earlier.code, 0, earlier.said);
  assert.match(earlier.said, /lineage l3 begins at step 5/);

  const newest = await ratchet('train', 'words.toml', '--resume.step', '-1', '--max-steps', '7');
  assert.equal(newest.code, 0, newest.said);
  assert.match(newest.said, /done: step 7 of 7/);
  assert.doesNotMatch(newest.said, /begins at step/);
  assert.equal((await commitOf('words', 'l3', 7)).lineage, 'l3');
});

test('a fork with a learning rate of its own says what to type, and that trains it', async () => {
  const fork = await ratchet('fork', 'words', '--step', '4', '--name', 'words-b', '--learning-rate', '5e-4');
  assert.equal(fork.code, 0, fork.said);
  assert.match(fork.said, /^words-b begins at step 4 of words, in /m);
  const next = toTypeNext(fork.said, 'next');
  assert.deepEqual(next.slice(0, 4), ['train', 'words.toml', '--name', 'words-b']);

  const trained = await ratchet(...next);
  assert.equal(trained.code, 0, trained.said);
  assert.match(trained.said, /this run begins at step 4 of another one/);
  const [ours, theirs] = [await commitOf('words-b', 'main', 5), await commitOf('words', 'main', 5)];
  const rate = (commit: StepCommit): number => commit.metrics['train/learning_rate']!;
  assert.ok(Math.abs(rate(ours) / rate(theirs) - 0.5) < 1e-9, `${rate(ours)} after ${rate(theirs)}`);
});

test('a fork of a run that trains adapters makes the very adapters that the original made of the same step', async () => {
  const fork = await ratchet('fork', 'adapters', '--step', '2', '--name', 'adapters-b');
  assert.equal(fork.code, 0, fork.said);
  const trained = await ratchet(...toTypeNext(fork.said, 'next'));
  assert.equal(trained.code, 0, trained.said);
  const adapters = 'weights/step_3/adapter_model.safetensors';
  assert.equal(await sha256(fileOf('adapters-b', adapters)), await sha256(fileOf('adapters', adapters)));
  const { policy } = await commitOf('adapters', 'main', 2);
  assert.notEqual(await sha256(fileOf('adapters-b', adapters)), policy.file.sha256, 'the step changed them');
});

test('where no server runs, a run is told of from its folder: runs, status, events, attach', async () => {
  const folder = path.join(project.folder, 'no-server');
  await cp(path.join(project.folder, 'outputs/adapters'), path.join(folder, 'outputs/adapters'), { recursive: true });
  const typed = (...args: readonly string[]) => ratchetIn(folder, ...args);

  const runs = await typed('runs');
  assert.equal(runs.code, 0, runs.said);
  assert.match(runs.said, /^adapters {2}finished {2}step 3 of 3 {2}reward \d\.\d{3} {2}last step 20/m);
  const status = await typed('status', 'adapters');
  assert.match(status.said, /^adapters: finished, step 3 of 3, lineage main, .*no Temporal server runs here/m);
  assert.match(status.said, /^reward {8}\d\.\d{3} · mean of the last 3 steps/m);
  assert.match(status.said, /^step time {5}[\d.]+s$/m);
  const events = await typed('events', 'adapters');
  assert.equal(events.code, 0, events.said);
  assert.match(events.said, /^ +\d+ {2}20.* step {8}step 3 {2}reward \d\.\d{3}/m);
  const attach = await typed('attach', 'adapters');
  assert.equal(attach.code, 0, attach.said);
  assert.match(attach.said, /adapters is not running here: finished at step 3 of 3$/m);

  const unknown = await typed('status', 'nobody');
  assert.equal(unknown.code, 1);
  assert.match(unknown.said, /^Nothing of Ratchet runs in /m);

  // Suggested commands are run; those that train, only as a dry run.
  const suggested = [...`${status.said}\n${attach.said}`.matchAll(/npx ratchet-rl ([^,\n]*)/g)].map(
    ([, line]) => line!,
  );
  assert.ok(suggested.length >= 4, suggested.join('\n'));
  for (const line of new Set(suggested)) {
    const words = line.trim().split(' ');
    const { code, said } = await typed(...words, ...(words[0] === 'train' ? ['--dry-run'] : []));
    assert.equal(code, 0, `${line}: ${said}`);
  }
});
