/** A run is steered, looked into and talked to from another folder than its own, over Temporal alone, as a user types it. */
import { createHash } from 'node:crypto';
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { spawn } from 'node:child_process';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import type { RunStatus } from '../../workflows/control/messages.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import type { WorkflowHandle } from '@temporalio/client';
import { openSmallProject, repositoryFolder, smallRun, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';

const config = smallRun.replace('max_steps = 12', 'max_steps = 4000').replace('interval = 4', 'interval = 3');

let project: SmallProject;
let elsewhere: string;
let handle: WorkflowHandle<typeof trainRun>;
before(async () => {
  project = await openSmallProject({ 'steered.toml': config });
  elsewhere = await mkdtemp(path.join(os.tmpdir(), 'ratchet-elsewhere-'));
  handle = await start();
  await until('step 3', () => project.commit('steered', 3));
});
after(async () => {
  await project?.close();
  await rm(elsewhere, { recursive: true, force: true });
});

function start(): Promise<WorkflowHandle<typeof trainRun>> {
  return project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: 'steered',
    taskQueue: 'ratchet',
    args: [{ config: 'steered.toml', overrides: {} }],
    workflowIdReusePolicy: 'ALLOW_DUPLICATE',
  });
}

/** In a folder where nothing runs and nothing is stored. */
async function ratchet(
  args: readonly string[],
  stdin = '',
  more: Readonly<Record<string, string>> = {},
): Promise<{ code: number | null; out: string; err: string }> {
  const env = { ...process.env, TEMPORAL_ADDRESS: project.stack.temporalAddress, ...more };
  const child = spawn(process.execPath, [path.join(repositoryFolder, 'cli/ratchet.mjs'), ...args], {
    cwd: elsewhere,
    env,
  });
  let [out, err] = ['', ''];
  child.stdout.on('data', (piece: Buffer) => (out += piece.toString()));
  child.stderr.on('data', (piece: Buffer) => (err += piece.toString()));
  child.stdin.end(stdin);
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  return { code, out, err };
}

async function said(...args: readonly string[]): Promise<string> {
  const { code, out, err } = await ratchet(args);
  assert.equal(code, 0, out + err);
  return out;
}

test('settings, a pause and its end say what was and what is, and what cannot be is refused with the way to it', async () => {
  assert.match(
    await said('set', 'steered', 'learning_rate=5e-4', 'eval.interval=500'),
    /learning_rate 0\.001 → 0\.0005\neval\.interval 6 → 500\nfrom step \d+ on; the run ends after step 4000/,
  );
  const refused = await ratchet(['set', 'steered', 'batch_size=8']);
  assert.equal(refused.code, 2);
  assert.match(refused.err, /ratchet-rl fork steered --step N --name NEW --batch-size VALUE/);

  assert.match(
    await said('pause', 'steered', 'lunch'),
    /running → paused: lunch\..*Continue with: npx ratchet-rl resume steered/,
  );
  const [run] = JSON.parse(await said('runs', '--json')) as { state: string; waitingFor: string }[];
  assert.deepEqual([run?.state, run?.waitingFor], ['paused', 'lunch']);
  assert.match(await said('resume', 'steered'), /paused \(lunch\) → running/);
  const { status } = JSON.parse(await said('status', 'steered', '--json')) as { status: RunStatus };
  assert.equal(status.learningRate, 5e-4);
  const kinds = (await said('events', 'steered', '--json'))
    .trim()
    .split('\n')
    .map((line) => (JSON.parse(line) as { kind: string }).kind);
  for (const kind of ['step', 'set', 'paused', 'resumed']) assert.ok(kinds.includes(kind), kind);
});

test('who started it and who changed what is told; with a file of roles only some may', async () => {
  const login = `${os.userInfo().username}@${os.hostname()}`;
  type Told = { who: string; what: string; asked: string; step: number | null };
  const changes = async (): Promise<string[]> => {
    const lines = (await said('events', 'steered', '--changes', '--json')).trim().split('\n');
    return lines
      .map((line) => JSON.parse(line) as Told)
      .map(({ who, what, asked }) => `${who}: ${what} ${asked}`.trim());
  };
  const before = [`${login}: set learning_rate=0.0005 eval.interval=500`, `${login}: pause lunch`, `${login}: resume`];
  await until('the record of what was asked', async () => (await changes()).length === 4);
  const [started = '', ...rest] = await changes();
  assert.match(started, /^test \d+: start$/, 'by the client of this test');
  assert.deepEqual(rest, before);
  assert.ok((await said('status', 'steered')).includes(`owner         ${started.replace(': start', '')}`));

  const key = 'a long key of eve';
  const sha256 = createHash('sha256').update(key).digest('hex');
  const roles = path.join(elsewhere, 'roles.toml');
  await writeFile(
    roles,
    `[users.me]\nrole = "operator"\nlogins = ["${login}"]\n[users.eve]\nrole = "admin"\nkey_sha256 = "${sha256}"\n`,
  );
  try {
    for (const command of [
      ['pause', 'steered'],
      ['stop', 'steered', '--now'],
      ['rewind', 'steered', '--step', '1'],
    ]) {
      const { code, err } = await ratchet(command);
      assert.equal(code, 1, err);
      assert.match(err, /^me is an operator \(roles\.toml\): steered belongs to test \d+, .* the role admin \(eve\)/);
    }
    assert.match((await ratchet(['pool', 'set', 'gpus', 'slice=60'])).err, /asks for the role admin \(eve\)/);
    const wrong = await ratchet(['pause', 'steered'], '', { RATCHET_KEY: 'eve' });
    assert.match(wrong.err, /^RATCHET_KEY is the key of nobody in roles\.toml/);
    const paused = await ratchet(['pause', 'steered', 'tea'], '', { RATCHET_KEY: key });
    assert.match(paused.out, /running → paused: tea/, paused.err);
    await ratchet(['resume', 'steered'], '', { RATCHET_KEY: key });
    await until('the record of both', async () => (await changes()).length === 6);
    assert.deepEqual((await changes()).slice(4), ['eve: pause tea', 'eve: resume']);
    assert.ok(!(await said('events', 'steered', '--json')).includes(key));
  } finally {
    await rm(roles);
  }
});

test('metrics, rollouts and advice of a run come from the store that the run itself names', async () => {
  assert.match(
    await said('metrics', 'steered', 'train/rew*', '--last', '1', '--csv'),
    /^step,lineage,train\/reward\n\d+,main,[\d.]+\n$/,
  );
  const unknown = await ratchet(['metrics', 'steered', 'train/rewrd']);
  assert.match(unknown.err, /Did you mean train\/reward\?/);
  const lines = (await said('rollouts', 'steered', '--step', '2', '--sort', 'reward', '--limit', '500', '--json'))
    .trim()
    .split('\n');
  const rewards = lines.map((line) => (JSON.parse(line) as { reward: number }).reward);
  assert.deepEqual(
    rewards,
    rewards.toSorted((a, b) => b - a),
  );
  assert.match(lines[0]!, /"prompt":"<bos>[a-z]+<sep>"/);
  const { findings } = JSON.parse(await said('advise', 'steered', '--json')) as { findings: unknown[] };
  assert.ok(Array.isArray(findings));
});

test('a run is stopped after the step under way, is talked to, and continues from there; a paused one stops as well', async () => {
  assert.match(await said('stop', 'steered'), /running → stopping: step \d+ is finished and committed/);
  const first: RunSummary = await handle.result();
  assert.ok(first.step < 100 && first.ledger.isSound);
  assert.match(await said('runs'), /^steered +stopped +step /m);

  const answers = [
    await ratchet(['chat', 'steered', '--seed', '3'], 'abc\n'),
    await ratchet(['chat', 'steered', '--seed', '3'], 'abc\n'),
  ];
  for (const { code, err } of answers) assert.equal(code, 0, err);
  assert.match(answers[0]!.out, /^[a-z]{0,10}\n$/);
  assert.equal(answers[0]!.out, answers[1]!.out, 'the same seed says the same');

  handle = await start();
  await until('one more step', () => project.commit('steered', first.step + 1));
  await said('pause', 'steered');
  assert.match(await said('stop', 'steered'), /paused \(asked to\) → stopping at step \d+/);
  const second = await handle.result();
  assert.ok(second.step > first.step && second.ledger.isSound);
});

test('the baseline samples the run itself before training, leaves nothing behind, and names what to change', async () => {
  const short = smallRun.replace('steps = 60', 'steps = 20');
  await writeFile(
    path.join(project.folder, 'raw.toml'),
    short.replace(/rollouts_per_example = 4/, 'rollouts_per_example = 2'),
  );
  await writeFile(path.join(project.folder, 'over.toml'), 'rollouts_per_example = 4\n[sampling]\nmax_tokens = 3\n');
  const child = spawn(
    process.execPath,
    [
      path.join(repositoryFolder, 'cli/ratchet.mjs'),
      'baseline',
      'raw.toml',
      '@',
      'over.toml',
      '--examples',
      '6',
      '--json',
    ],
    { cwd: project.folder, env: { ...process.env, TEMPORAL_ADDRESS: '' } },
  );
  let out = '';
  child.stdout.on('data', (piece: Buffer) => (out += piece.toString()));
  await new Promise((resolve) => child.once('close', resolve));
  const { baselines, findings } = JSON.parse(out) as {
    baselines: { attempts: number }[];
    findings: { evidence: string }[];
  };
  assert.equal(baselines[0]?.attempts, 24);
  assert.ok(findings.some(({ evidence }) => /rollouts_per_example = 4/.test(evidence)));
});
