/** Work outside the loop of RL steps, killed half-way: supervised training, and the process that sends metrics. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { readRecords, rowNumberOf } from '../../workers/metrics/tensorboard.ts';
import { type RunEvent, eventsQuery } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { openSmallProject, smallRun, type SmallProject } from './small-run.ts';
import { until } from '../eventually.ts';

const supervised = `
model = "preset:reverse-text-0.2m"
max_steps = 0
[sft]
data = "./rows.jsonl"
steps = 200
batch_size = 16
learning_rate = 3e-3
[sampling]
max_tokens = 10
`;
const words = ['stone', 'river', 'lamp', 'cloud', 'tree', 'bread', 'glass', 'horse', 'north', 'plum'];
const rows = words
  .map((word) => JSON.stringify({ prompt: word, completion: word.split('').reverse().join('') }))
  .join('\n');

let project: SmallProject;
before(async () => {
  const configs = { 'whole.toml': supervised, 'killed.toml': supervised, 'words.toml': smallRun, 'rows.jsonl': rows };
  project = await openSmallProject(configs, {}, true);
});
after(() => project?.close());

const start = (name: string) =>
  project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    args: [`${name}.toml`],
  });

async function untilWarm(name: string, step: number): Promise<void> {
  const handle = project.client.workflow.getHandle(name);
  for (;;) {
    const events = await handle.query(eventsQuery, 0).catch((): readonly RunEvent[] => []);
    if (events.some(({ values }) => Number(values['sft_step']) >= step)) return;
    await delay(100);
  }
}

async function untilRunning(name: string): Promise<number> {
  for (;;) {
    const pid = project.stack.pids()[name];
    if (pid) return pid;
    await delay(100);
  }
}

/** The engine is a process of its own, below the worker: built (`workers/built.mjs`), or from its source. */
async function engineOf(worker: number): Promise<number> {
  const { stdout } = await promisify(execFile)('ps', ['-A', '-o', 'pid=,ppid=,args=']);
  const line = stdout
    .split('\n')
    .find((one) => new RegExp(`^\\s*\\d+\\s+${worker}\\s.*/trainer(?:-main\\.ts|\\.mjs)`).test(one));
  assert.ok(line, `an engine runs below the train worker:\n${stdout}`);
  return Number.parseInt(line, 10);
}

test('supervised training whose engine, then whose worker is killed ends with the weights of an undisturbed one', async () => {
  const whole = await (await start('whole')).result();
  const handle = await start('killed');
  await untilWarm('killed', 50);
  process.kill(await engineOf(await untilRunning('train worker')), 'SIGKILL');
  await untilWarm('killed', 100);
  process.kill(await untilRunning('train worker'), 'SIGKILL');
  const killed = await handle.result();
  assert.equal(killed.policyDigest, whole.policyDigest);
  assert.ok(project.stack.restarts()['train worker']! >= 1, project.log.join(' | '));
});

/** Numbers of the rows that TensorBoard's files hold, in the order of their files. */
async function rowsInTensorboard(run: string): Promise<number[]> {
  const folder = path.join(project.folder, 'outputs', run, 'tensorboard/main');
  const files = (await readdir(folder)).sort();
  const read = await Promise.all(files.map((file) => readFile(path.join(folder, file))));
  return read.flatMap((bytes) => readRecords(bytes).records.flatMap((event) => rowNumberOf(event) ?? []));
}

/** Metrics for Prometheus, from the address in the newest metrics worker's log; empty while none answers. */
async function exposed(): Promise<string> {
  const log = await readFile(path.join(project.folder, '.ratchet/logs/metrics-worker.log'), 'utf8');
  const url = log.match(/http:\/\/127\.0\.0\.1:\d+\/metrics/g)?.at(-1);
  if (url === undefined) return '';
  const secret = await readFile(path.join(project.folder, '.ratchet/secret'), 'utf8');
  return fetch(url, { headers: { authorization: `Bearer ${secret.trim()}` } }).then(
    (answer) => answer.text(),
    () => '',
  );
}

test('the metrics worker, killed twice, hands every row on once, and tells Prometheus how far the run is', async () => {
  const handle = await start('words');
  for (const step of [2, 7]) {
    await until(`step ${step}`, () => project.commit('words', step));
    process.kill(await untilRunning('metrics worker'), 'SIGKILL');
  }
  await handle.executeUpdate('pause', { args: ['to be asked'] }); // an ended run gets no more signals
  await until('the step at /metrics', async () => /^ratchet_step\{run="words"[^}]*\} \d+$/m.test(await exposed()));
  await handle.executeUpdate('resume');
  await handle.result();
  const metrics = await readFile(path.join(project.folder, 'outputs/words/metrics.jsonl'), 'utf8');
  const expected = metrics.trim().split('\n').length;
  for (;;) {
    const found = await rowsInTensorboard('words').catch((): number[] => []);
    if (found.length >= expected) break;
    await delay(200);
  }
  const numbers = await rowsInTensorboard('words');
  assert.deepEqual(
    numbers.toSorted((a, b) => a - b),
    Array.from({ length: expected }, (_, i) => i),
  );
});
