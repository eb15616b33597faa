/** A program of a user's starts, steers, follows and reads a real run through `ratchet-rl/client`. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { attach, readRun, startRun } from '../../client/index.mjs';
import { choosePort } from '../../workers/stack/ports.ts';
import { openSmallProject, repositoryFolder, smallRun, type SmallProject } from '../e2e/small-run.ts';

let project: SmallProject;
before(async () => {
  project = await openSmallProject({ 'words.toml': smallRun });
});
after(() => project?.close());

const connecting = () => ({ address: project.stack.temporalAddress, folder: project.folder });

test('a run is started from a file, paused, changed, resumed and waited for; what it stored is read without a server', async () => {
  const run = await startRun('words.toml', { ...connecting(), overrides: { max_steps: 200 } });
  assert.deepEqual([run.name, run.workflowId], ['words', 'words']);
  assert.equal((await run.status()).maxSteps, 200);
  await assert.rejects(startRun('words.toml', connecting()), /The run words is running. attach\("words"\)/);

  const kinds: string[] = [];
  for await (const { kind, step } of run.events()) {
    kinds.push(kind);
    if (kind === 'step' && step >= 2) break;
  }
  assert.ok(kinds.includes('eval'));
  assert.match(await run.pause('to look'), /pause/);
  const paused = await run.status();
  assert.equal(paused.pausedBecause, 'to look');

  const other = await attach('words', connecting());
  await assert.rejects(other.set({ learning_rate: 2 }), { code: 'ConfigInvalid', message: /learning_rate: expected/ });
  const last = paused.step + 3;
  assert.match(await other.set({ max_steps: last }), /max_steps 200 → /);
  await other.resume();
  await other.close();

  const result = await run.result();
  assert.deepEqual([result.run, result.step, result.ledger.isSound], ['words', last, true]);
  assert.equal((await run.status()).phase, 'finished');

  const stored = await readRun(path.join(project.folder, 'outputs/words'));
  const ofRun = await run.read();
  assert.equal(ofRun.uri, stored.uri);
  await run.close();
  const steps = await stored.steps();
  assert.deepEqual(
    steps.map(({ step }) => step),
    Array.from({ length: last + 1 }, (_, step) => step),
  );
  const rewards = await stored.metric('train/reward');
  assert.deepEqual(
    rewards.map(({ step }) => step),
    Array.from({ length: last }, (_, i) => i + 1),
  );
  const [first] = await stored.evaluations();
  assert.deepEqual([first?.step, first?.environment, first?.numExamples], [0, 'reverse-text', 16]);
  const rollouts = [];
  for await (const rollout of stored.rollouts({ step: 1 })) rollouts.push(rollout);
  assert.equal(rollouts.length % 4, 0);
  assert.ok(rollouts.every(({ step, turns }) => step === 1 && typeof turns[0]?.text === 'string'));
  const sampled = new Set<number>();
  for await (const { step } of stored.rollouts()) sampled.add(step);
  for (let step = 1; step <= last; step += 1) assert.ok(sampled.has(step));
});

test('settings as an object become a run file; a wrong one is refused with the words of the check', async () => {
  const settings = { model: 'preset:reverse-text-0.2m', batch_size: 32, env: [{ id: 'reverse-text' }] };
  const options = { ...connecting(), name: 'typed' };
  const typo = startRun({ ...settings, batch_sise: 3 }, options);
  await assert.rejects(typo, { code: 'ConfigInvalid', message: /batch_sise[^]*batch_size/ });
  await assert.rejects(startRun(settings, connecting()), /name: expected the name of the run/);
  await assert.rejects(startRun('nothing.toml', connecting()), {
    code: 'ConfigInvalid',
    message: /there is no such file/,
  });
  await assert.rejects(attach('nobody', connecting()), { code: 'RunNotFound' });

  const run = await startRun({ ...settings, env: [{ id: './nothing.ts' }] }, options);
  const failed = { message: /The run typed did not finish: [^]*nothing\.ts/ };
  await assert.rejects(run.result(), failed);
  await assert.rejects(run.status(), failed);
  await assert.rejects(run.events().next(), failed);
  await run.close();
  await assert.rejects(startRun(settings, options), /typed\.toml has other settings, and is not overwritten/);
  const typed = await readFile(path.join(project.folder, 'typed.toml'), 'utf8');
  assert.match(typed, /^batch_size = 32$/m);
});

test('without a server, workers or a run the error says what to do', async (t) => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-client-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const port = await choosePort(0);
  const nowhere = { address: `127.0.0.1:${port}` };
  await assert.rejects(attach('words', nowhere), { code: 'ServerUnavailable', message: /Is it running/ });
  await writeFile(path.join(folder, 'words.toml'), smallRun);
  await assert.rejects(startRun('words.toml', { folder }), { message: /Nothing of Ratchet runs in .*ratchet-rl dev/ });
  await assert.rejects(readRun(path.join(folder, 'words')), { code: 'RunNotFound', message: /holds no run\.json/ });
});

test('the import loads nothing: neither the engine nor Temporal', async () => {
  const script = `
    await import(${JSON.stringify(pathToFileURL(path.join(repositoryFolder, 'client/index.mjs')).href)});
    console.log(process.moduleLoadList.filter((name) => /^(?:NativeModule )?(?:http2|worker_threads)$/.test(name)).length);
  `;
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script]);
  assert.equal(stdout.trim(), '0');
});
