import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { type ContentServer, startContentServer } from '../../bench/content-server.ts';
import { disturbed, nativeVictims } from '../../bench/eval-resume.ts';
import type { Bench } from '../../bench/measurement.ts';
import type { EvaluationResult } from '../../core/eval/evaluation.ts';
import { installPython } from '../python-here.ts';
import { repositoryFolder, smallRun } from './small-run.ts';
import { until } from '../eventually.ts';

const bench: Bench = { say: () => undefined, doing: () => undefined, signal: new AbortController().signal };
const held = { resampled: 0, equal: true };

test('an evaluation of 1,000 rollouts whose processes are killed samples no finished rollout again, and gives the same figures', async (t) => {
  const environment = { id: 'reverse-text', name: 'reverse-text', args: {} };
  const seed = 7;
  const end = await disturbed(bench, { environment, rollouts: 1_002, kills: 3, victims: nativeVictims, seed });
  t.diagnostic(`seed ${seed}: ${JSON.stringify(end)}`);
  assert.deepEqual({ resampled: end.resampled, equal: end.equal }, held);
  assert.deepEqual([end.rollouts, end.kills], [1_002, 3]);
});

const installed = await installPython('verifiers-v0-requirements.txt');

test('the same of a verifiers environment whose Python process is killed', { skip: installed.why }, async (t) => {
  const folder = path.dirname(path.dirname(installed.python));
  const python = { module: 'toy_multi', api: 'v0' as const, folder, verifiers: '0.3.1', version: '' };
  const environment = { id: 'toy_multi', name: 'toy_multi', args: { n: 80 }, python };
  const end = await disturbed(bench, { environment, rollouts: 240, kills: 1, victims: ['Python child'], seed: 3 });
  t.diagnostic(JSON.stringify(end));
  assert.deepEqual({ resampled: end.resampled, equal: end.equal }, held);
  assert.deepEqual([end.rollouts, end.kills], [240, 1]);
});

/** `ratchet` as a user types it, in a project of its own. */
let folder: string;
let server: ContentServer;
const secret = 'sk-e2e-4f1d7c9b2a8e6035';
before(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'ratchet-eval-e2e-'));
  server = await startContentServer({ key: secret, varies: 'session', delayMs: 40 });
});
after(async () => {
  await server?.close();
  await rm(folder, { recursive: true, force: true });
});

interface Typed {
  readonly code: number | null;
  readonly lines: readonly Record<string, unknown>[];
  readonly stderr: string;
}

/** `interruptedAfter`: as by Ctrl-C, when this many requests were answered. */
async function ratchet(
  args: readonly string[],
  { interruptedAfter = Infinity }: { interruptedAfter?: number } = {},
): Promise<Typed> {
  const env: NodeJS.ProcessEnv = { ...process.env, E2E_EVAL_KEY: secret };
  delete env['TEMPORAL_ADDRESS'];
  const command = path.join(repositoryFolder, 'cli/ratchet.mjs');
  const child = spawn(process.execPath, [command, ...args], { cwd: folder, env });
  let [stdout, stderr] = ['', ''];
  const life = { isOver: false };
  child.stdout.on('data', (text: Buffer) => (stdout += text.toString()));
  child.stderr.on('data', (text: Buffer) => (stderr += text.toString()));
  const ended = new Promise<number | null>((resolve) => child.on('close', resolve)).finally(() => (life.isOver = true));
  if (interruptedAfter < Infinity) {
    await until(`${interruptedAfter} answers`, () => life.isOver || server.answered.length >= interruptedAfter);
    child.kill('SIGINT');
  }
  const code = await ended;
  const lines = stdout.split('\n').filter((line) => line.startsWith('{'));
  return { code, stderr, lines: lines.map((line) => JSON.parse(line) as Record<string, unknown>) };
}

function resultIn({ lines, stderr }: Typed): EvaluationResult {
  const result = lines.find(({ type }) => type === 'result');
  assert.ok(result, stderr);
  return result as unknown as EvaluationResult;
}

test('ratchet eval run continues where Ctrl-C left it, and the key stands in nothing that it leaves', async () => {
  const asked = [
    'eval',
    'run',
    'reverse-text',
    '-m',
    'mock',
    '-b',
    `${server.url}/v1`,
    '-k',
    'E2E_EVAL_KEY',
    '-n',
    '100',
    '--json',
  ];
  const cut = await ratchet(asked, { interruptedAfter: 60 });
  assert.equal(cut.code, 130, cut.stderr);
  assert.match(cut.stderr, /What is finished is stored: the same command continues/);
  const whole = await ratchet(asked);
  assert.equal(whole.code, 0, whole.stderr);
  const { rollouts, failed, folder: lies } = resultIn(whole);
  assert.deepEqual([rollouts, failed], [300, 0]);
  assert.ok(server.answered.length - 300 <= 34, 'only what was in flight was asked for again');
  assert.match(whole.stderr, /distribution/);
  const rows = (await readFile(path.join(lies, 'results.jsonl'), 'utf8')).trimEnd().split('\n');
  assert.equal(rows.length, 300);
  const files = (await readdir(folder, { recursive: true, withFileTypes: true })).filter((entry) => entry.isFile());
  for (const { parentPath, name } of files) {
    const bytes = await readFile(path.join(parentPath, name));
    assert.ok(!bytes.includes(secret), `${name} holds the key`);
  }
});

test('a checkpoint of a run is evaluated on its own servers, and as an API behind a server of its own', async () => {
  const text = smallRun.replace('max_steps = 12', 'max_steps = 0').replace('steps = 60', 'steps = 20');
  await writeFile(path.join(folder, 'small.toml'), text);
  const trained = await ratchet(['train', 'small.toml', '--json']);
  assert.equal(trained.code, 0, trained.stderr);
  const common = [
    'eval',
    'run',
    'reverse-text',
    '-n',
    '4',
    '-r',
    '2',
    '-t',
    '8',
    '-a',
    '{"min_length":3,"max_length":4}',
    '-T',
    '0',
    '--json',
  ];
  const own = await ratchet([...common, '--run', 'small']);
  assert.equal(own.code, 0, own.stderr);
  const [byTokens, byMessages] = [resultIn(own), resultIn(await ratchet([...common, '--run', 'small', '--serve']))];
  assert.equal(byTokens.model, 'small@0');
  assert.deepEqual([byTokens.rollouts, byTokens.failed, byMessages.failed], [8, 0, 0]);
  assert.equal(byMessages.avgReward, byTokens.avgReward); // greedy, by the same weights
});
