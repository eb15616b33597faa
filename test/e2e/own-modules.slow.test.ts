/** Runs whose trainer and inference are faulty modules of the user: the run's messages, and that it continues. */
import assert from 'node:assert/strict';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { decodeJson } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { type RunStatus, eventsQuery } from '../../workflows/control/messages.ts';
import { FaultStage, type StagedRun } from '../faults/stage.ts';
import { until } from '../eventually.ts';

const own = (name: string): string => JSON.stringify(fileURLToPath(new URL(name, import.meta.url)));

let stage: FaultStage;
before(async () => {
  stage = await FaultStage.open('fake');
});
after(() => stage?.close());

/** Files that control a run's inference, and that it reports in. */
function filesOf(name: string) {
  const file = (what: string): string => path.join(stage.folder, `${name}.${what}`);
  return { log: file('sampled'), broughtTo: file('brought'), isAway: file('away'), isWrong: file('wrong') };
}

async function start(name: string, steps: number, overrides: Readonly<Record<string, string>>): Promise<StagedRun> {
  const options = Object.entries(filesOf(name)).map(([key, file]) => `${key} = ${JSON.stringify(file)}`);
  const modules = {
    'trainer.import': own('salted-trainer.ts'),
    'inference.import': own('moody-inference.ts'),
    'inference.options': `{ ${options.join(', ')} }`,
  };
  return stage.start(name, { steps, overrides: { ...modules, ...overrides } });
}

async function untilPaused({ handle }: StagedRun): Promise<RunStatus> {
  for (;;) {
    const status = await handle.query<RunStatus>('status').catch(() => null); // no handler before the run is open
    if (status?.phase === 'paused') return status;
    await delay(50);
  }
}

async function commitOf({ store }: StagedRun, step: number): Promise<StepCommit> {
  const key = layout.commit('main', step);
  return decodeJson<StepCommit>((await store.read(key))!, key);
}

const textsOf = async ({ handle }: StagedRun): Promise<string[]> =>
  (await handle.query(eventsQuery, 0)).map(({ text }) => text);

test('a batch that another process trains again to other weights makes a version of its own, and the run continues from it', async () => {
  stage.plan('train.applied', { at: 4, action: 'hold' });
  const run = await start('salted', 5, { 'trainer.options': '{ isSalted = true }' });
  await stage.fired('train.applied', run);
  process.kill(stage.pid('train worker'), 'SIGKILL');
  const { step, ledger } = await run.handle.result();
  assert.deepEqual([step, ledger.isSound], [5, true]);

  const [third, fourth, fifth] = await Promise.all([3, 4, 5].map((n) => commitOf(run, n)));
  const { from } = fourth!;
  assert.ok(from, 'the commit says that it was not trained from the version of the one before');
  assert.deepEqual([from.step, from.replay, from.weights], [3, 1, 'weights/step_3.r1/']);
  assert.notEqual(from.digest, third!.policy.digest);
  await run.store.verify(from.file); // stored as such, beside the first
  await run.store.verify(third!.policy.file);
  assert.equal(fifth!.from, undefined);

  const brought = readFileSync(filesOf('salted').broughtTo, 'utf8').trim().split('\n');
  assert.deepEqual(
    brought,
    ['0', '1', '2', '3', '3.r1', '4', '5'].map((version) => `salted:main:${version}`),
  );
  const said = (await textsOf(run)).find((text) => text.startsWith('training up to step 3 again gave other weights'));
  assert.match(said ?? '', /first at step 3 \([0-9a-f]{12}…\)\. The engine does not promise equal bits/);
});

test('a last version that was lost before it was in its place ends the run as another one, which stays when the run continues', async () => {
  stage.clear();
  stage.plan('commitStep.begun', { at: 3, action: 'hold' });
  const run = await start('last', 2, { 'trainer.options': '{ isSalted = true }' });
  await stage.fired('commitStep.begun', run);
  await run.store.removeAll(layout.allPending('main'));
  process.kill(stage.pid('train worker'), 'SIGKILL');
  process.kill(stage.pid('orchestrator worker'), 'SIGKILL');
  const ended = await run.handle.result();
  assert.deepEqual([ended.step, ended.ledger.isSound, ended.weights], [2, true, 'weights/step_2.r1/']);
  const key = `${ended.weights}model.safetensors`;
  const weights = (await run.store.read(key))!.toString();
  assert.equal(weights, ended.policyDigest);

  await untilReplaced(stage.pid('train worker'));
  const onward = await stage.startAgain({ ...run, overrides: { ...run.overrides, max_steps: '3' } });
  const { step, ledger } = await onward.handle.result();
  assert.deepEqual([step, ledger.isSound], [3, true]);
  assert.equal((await run.store.read(key))!.toString(), weights);
  const { from } = await commitOf(run, 3);
  assert.deepEqual([from?.step, from?.weights], [2, 'weights/step_2.r2/']);
});

/** Kills the GPU worker, and waits for the one that is started in its place. */
async function untilReplaced(pid: number): Promise<void> {
  process.kill(pid, 'SIGKILL');
  await until('another GPU worker', () => (stage.stack.pids()['train worker'] ?? pid) !== pid);
}

test('a server that holds other weights than are trained pauses the run before anything is sampled there', async () => {
  stage.clear();
  const { isWrong } = filesOf('canary');
  writeFileSync(isWrong, '');
  const run = await start('canary', 2, { 'trainer.options': '{ isSalted = false }' });
  const { pausedBecause, step } = await untilPaused(run);
  assert.equal(step, 1);
  assert.match(
    pausedBecause ?? '',
    /^canary: the logprobs of v1 at the policy servers are 2\.5e-1 off the trainer's, expected 0\.05 at most\. .*restart it, or look at its log; then resume, and it is asked again\./,
  );
  await delay(500); // time to sample all the same
  assert.ok(run.sampled().every(({ policy }) => policy === 'canary:main:0'));

  rmSync(isWrong);
  await run.handle.executeUpdate('resume');
  const summary = await run.handle.result();
  assert.deepEqual([summary.step, summary.ledger.isSound], [2, true]);
  assert.ok(run.sampled().some(({ policy }) => policy === 'canary:main:1'));
});

test('an inference server that is not ready pauses the run and says since when; resumed, nothing was given up', async () => {
  const { isAway } = filesOf('away');
  writeFileSync(isAway, '');
  const begun = new Date().toISOString();
  // One group a step: one chunk, so that nothing else is under way.
  const run = await start('away', 2, { batch_size: '4', generation_timeout: '2' });
  const { pausedBecause, step } = await untilPaused(run);
  assert.equal(step, 0);
  const said =
    /^no-signal: the inference server is not ready since (\S+Z): .*all of its GPUs are busy elsewhere \(4 rollouts wait, 0 are finished\.\)$/;
  assert.match(pausedBecause ?? '', said);
  const [, since = ''] = said.exec(pausedBecause ?? '')!;
  assert.ok(begun < since && since < new Date().toISOString(), since);

  rmSync(isAway);
  await run.handle.executeUpdate('resume');
  const summary = await run.handle.result();
  assert.deepEqual([summary.step, summary.ledger.isSound, summary.ledger.counts['failed']], [2, true, undefined]);
});

test('on_starvation = "widen": after four rounds that kept too little the run says so and trains what differs', async () => {
  const run = await start('wide', 2, {
    'difficulty_filter.enabled': 'true',
    'difficulty_filter.min_reward': '0.999',
    'difficulty_filter.on_starvation': 'widen',
  });
  const { step, ledger } = await run.handle.result();
  assert.deepEqual([step, ledger.isSound], [2, true]);
  assert.ok((ledger.counts['trained'] ?? 0) > 0);
  const texts = await textsOf(run);
  assert.ok(
    texts.some((text) => text.startsWith('step 1: [difficulty_filter] widened after 4 sampling rounds')),
    texts.join('\n'),
  );
  const left = /^step 2 of 2 {2}reward – {2}kept 8 of 8 groups/; // trained on what was left over: nothing has a mean
  assert.ok(
    texts.some((text) => left.test(text)),
    texts.join('\n'),
  );
});
