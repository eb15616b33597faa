/**
 * One small run under `ratchet dev` with secrets in its environment and a key for its payloads: what is written down and who sees
 * what is looked at from outside. The machine loses power once on the way.
 */
import { until } from '../eventually.ts';
import assert from 'node:assert/strict';
import { execFile, execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Client, Connection } from '@temporalio/client';
import proto from '@temporalio/proto';
import { settingsOfOpenRun } from '../../cli/start/open-run-settings.ts';
import { dataConverterFor, readPayloadKeys } from '../../workers/temporal/payload-codec.ts';
import { readRunningStack } from '../../workers/stack/project-lock.ts';
import type { RunSummary } from '../../workflows/train-run.ts';
import { eventually, isAlive } from '../workers/fixtures/processes.ts';
import { smallRun } from './small-run.ts';

const steps = 8;
const command = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));

/** Reports what user code can see: the environment of its process. */
const spyLoss = `
import { writeFileSync } from 'node:fs';
writeFileSync('spied-loss.json', JSON.stringify(process.env));
export default ({ logprobs, advantages, operators: { multiply, negate } }) => negate(multiply(advantages, logprobs));
`;
const spyAdvantage = `
import { writeFileSync } from 'node:fs';
writeFileSync('spied-advantage.json', JSON.stringify(process.env));
export default (rewards) => rewards.map((reward) => reward - rewards.reduce((sum, one) => sum + one, 0) / rewards.length);
`;
const guarded = `name = "guarded"\n${smallRun
  .replace('max_steps = 12', `max_steps = ${steps}`)
  .replace(
    '[trainer]\nadvantage = "std_normalized"',
    '[trainer.loss]\ntype = "custom"\nimport = "./spy-loss.js"\n[trainer.advantage]\ntype = "custom"\nimport = "./spy-advantage.js"',
  )}`;
const leaked = `sk-${randomBytes(12).toString('hex')}`;

const canary = (): string => `canary-${randomBytes(12).toString('hex')}`;
const payloadKey = randomBytes(32).toString('base64');
const foreign = {
  WANDB_API_KEY: canary(),
  TEMPORAL_API_KEY: canary(),
  HF_TOKEN: canary(),
  OPENAI_API_KEY: canary(),
};
/** Keys of the store: only for the workers, which write to it. */
const forStore = { AWS_ACCESS_KEY_ID: canary(), AWS_SECRET_ACCESS_KEY: canary() };
const secrets: readonly string[] = [
  ...Object.values(foreign),
  ...Object.values(forStore),
  payloadKey,
  Buffer.from(payloadKey, 'base64').toString('hex'),
];

let folder: string;
let dev: ChildProcess;
let printed = '';
let connection: Connection;
let client: Client;
let summary: RunSummary;

before(async () => {
  folder = await realpath(await mkdtemp(path.join(os.tmpdir(), 'ratchet-secrets-')));
  const files = {
    'package.json': '{"type":"module"}',
    'spy-loss.js': spyLoss,
    'spy-advantage.js': spyAdvantage,
    'hidden-config.toml': guarded,
    'leaky.toml': `${smallRun}[wandb]\napi_key = "${leaked}"\n`,
  };
  for (const [name, text] of Object.entries(files)) await writeFile(path.join(folder, name), text);
  await startDev();
  const handle = await client.workflow.start('trainRun', {
    workflowId: 'guarded',
    taskQueue: 'ratchet',
    args: ['hidden-config.toml'],
    staticSummary: 'a hidden summary',
  });
  await eventually('step 3 is committed', () => existsSync(commitFile(3)), 300_000);
  lookAtProcesses();
  await losePower();
  await connection.close();
  await startDev();
  summary = (await client.workflow.getHandle(handle.workflowId).result()) as RunSummary;
});

after(async () => {
  await connection?.close();
  dev?.kill('SIGTERM');
  if (dev) await eventually('the stack has ended', () => dev.exitCode !== null || dev.signalCode !== null);
  if (folder) await rm(folder, { recursive: true, force: true, maxRetries: 5 });
});

test('after a loss of power the open run continues as soon as the stack is started again, and ends exact', () => {
  assert.equal(summary.step, steps);
  assert.ok(summary.ledger.isSound, JSON.stringify(summary.ledger));
});

test('no argument of any process held a secret, and each process saw only what it needs', () => {
  for (const secret of secrets) assert.ok(!argumentsSeen.includes(secret));
  assert.ok(environments.size > 0 || process.platform !== 'linux');
  for (const [what, environment] of environments) {
    // The compiler of tsx belongs to the process it compiles for: started before any code of ours runs, with that environment.
    if (/\besbuild\b.*--service/.test(what)) continue;
    for (const [name, secret] of Object.entries(foreign)) {
      const isItsOwn = name === 'WANDB_API_KEY' && /ratchet_wandb/.test(what); // it sends metrics there
      if (!isItsOwn) assert.ok(!environment.includes(secret), `${what} saw ${name}`);
    }
    // Workers receive them through a pipe: any process of the user can read what another was started with.
    assert.ok(!environment.includes(payloadKey), `${what} and the key of the payloads`);
    assert.ok(!environment.includes(forStore.AWS_SECRET_ACCESS_KEY), `${what} and the credentials of the store`);
  }
});

test("code of the user's finds no secret in its environment, in a process of its own as within a worker", () => {
  for (const file of ['spied-loss.json', 'spied-advantage.json']) {
    const seen = readFileSync(path.join(folder, file), 'utf8');
    for (const secret of secrets) assert.ok(!seen.includes(secret), file);
  }
});

test('a config with a literal secret is refused by its line; who owns it is told to rotate it, without a word of it', async () => {
  const handle = await client.workflow.start('trainRun', {
    workflowId: 'leaky',
    taskQueue: 'ratchet',
    args: ['leaky.toml'],
  });
  const message = await handle.result().then(
    () => assert.fail('it was trained'),
    (error: Error) => String((error.cause as Error).cause),
  );
  assert.match(message, /something else in line \d+\n.*npx ratchet-rl check FILE/s);
  const { output, code } = await ratchet(['check', 'leaky.toml'], true);
  assert.equal(code, 2);
  assert.match(output, /literal secret.*\n?.*rotate it/s);
  for (const said of [message, output]) assert.ok(!said.includes(leaked));
});

test('with a payload key nothing but names, times and figures can be read in the history', async () => {
  for (const workflowId of ['guarded', 'leaky']) {
    const history = await rawHistory(workflowId);
    assert.ok(history.events.length > 5);
    // Evaluations are workflows with names of their own: RUN.eval.ENVIRONMENT.VERSION.
    const texts = readableTexts(history.events)
      .join('\n')
      .replaceAll(/\bguarded\.eval\.reverse-text\.v/g, '');
    for (const hidden of ['hidden', 'leaky.toml', 'rotate', 'reverse-text', 'max_tokens', 'learningRate', folder]) {
      assert.ok(!texts.includes(hidden), `${workflowId}: ${hidden} can be read`);
    }
    const open = new Set(
      payloadsIn(history.events)
        .filter((one) => one.encoding !== 'binary/encrypted')
        .map(({ at }) => at),
    );
    const expected = workflowId === 'leaky' ? [] : ['upsertWorkflowSearchAttributesEventAttributes'];
    for (const place of expected) assert.ok(open.has(place), place);
    for (const place of open) assert.ok([...expected, 'marker data'].includes(place), `not encrypted: ${place}`);
  }
});

test('status and logs work with the key; without it they say which key is missing', async () => {
  const [status, logs] = [
    await ratchet(['status', 'guarded'], true),
    await ratchet(['logs', 'guarded', 'train'], true),
  ];
  assert.match(status.output, new RegExp(`guarded: .*step ${steps} of ${steps}`), status.output);
  assert.match(logs.output, /trainBatch/);
  const guarded = { workflowId: 'guarded', run: 'guarded', projectFolder: folder };
  const { stored } = await settingsOfOpenRun(client, guarded);
  assert.equal(stored?.maxSteps, steps, 'how it was started is read too');
  const failed = await ratchet(['status', 'leaky'], true);
  assert.match(failed.output, /failed because: .*leaky\.toml/s, failed.output);
  const without = await ratchet(['status', 'guarded'], false);
  assert.equal(without.code, 2);
  assert.match(without.output, /encrypted with the key [0-9a-f]{12}.*RATCHET_PAYLOAD_KEY/s);
  assert.doesNotMatch(without.output, / at .*\.ts:/, 'a message, no stack');
});

test('a stack without the key loses no run that needs it: the run waits, says which key is missing, and continues with it', async () => {
  await restartDev(false);
  const handle = await client.workflow.start('trainRun', {
    workflowId: 'kept',
    taskQueue: 'ratchet',
    args: ['leaky.toml'],
  });
  await eventually('the task was tried', async () => {
    const texts = readableTexts((await rawHistory('kept')).events).join('\n');
    return /encrypted with the key [0-9a-f]{12}, and none is set/.test(texts);
  });
  assert.equal((await handle.describe()).status.name, 'RUNNING');
  await restartDev(true);
  const again = client.workflow.getHandle('kept');
  await assert.rejects(again.result(), (error: Error) =>
    /something else in line/.test(String((error.cause as Error).cause)),
  );
});

test('no secret is in the history, the database, the store, the logs, or anything that was printed', () => {
  const found = [...filesBelow(folder)].filter((file) => {
    const bytes = readFileSync(file);
    const all = file.endsWith('leaky.toml') ? secrets : [...secrets, leaked];
    return all.some((secret) => bytes.includes(secret)) || bytes.includes(Buffer.from(payloadKey, 'base64'));
  });
  assert.deepEqual(found, []);
  assert.ok(readdirSync(path.join(folder, '.ratchet')).includes('temporal.db'), 'the database was among them');
  for (const secret of [...secrets, leaked]) assert.ok(!printed.includes(secret));
});

let argumentsSeen = '';
/** Environment of each process below `ratchet dev`, by its command line. Linux only. */
const environments = new Map<string, string>();

async function startDev(hasKey = true): Promise<void> {
  dev = spawn(process.execPath, [command, 'dev'], {
    cwd: folder,
    env: shellEnvironment(hasKey),
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  for (const stream of [dev.stdout, dev.stderr])
    stream?.on('data', (chunk: Buffer) => (printed += chunk.toString('utf8')));
  let address = '';
  await eventually(
    'the stack is ready',
    async () => {
      if (dev.exitCode !== null) throw new Error(`ratchet dev ended: ${printed}`);
      const running = await readRunningStack(folder);
      address = running?.state === 'ready' && running.pid === dev.pid ? (running.temporalAddress ?? '') : '';
      return address !== '';
    },
    300_000,
  ).catch((error: unknown) => assert.fail(`${String(error)}; it said: ${printed}`));
  connection = await Connection.connect({ address });
  const dataConverter = dataConverterFor(readPayloadKeys({ RATCHET_PAYLOAD_KEY: payloadKey }));
  client = new Client({ connection, dataConverter });
}

/** In good order. */
async function restartDev(hasKey: boolean): Promise<void> {
  await connection.close();
  dev.kill('SIGTERM');
  await eventually('the stack has ended', () => dev.exitCode !== null || dev.signalCode !== null);
  await startDev(hasKey);
}

function shellEnvironment(hasKey: boolean): NodeJS.ProcessEnv {
  const { TEMPORAL_ADDRESS: _, NODE_TEST_CONTEXT: __, ...env } = process.env;
  return { ...env, ...foreign, ...forStore, ...(hasKey ? { RATCHET_PAYLOAD_KEY: payloadKey } : {}) };
}

function ratchet(args: readonly string[], hasKey: boolean): Promise<{ code: number; output: string }> {
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      [command, ...args],
      { cwd: folder, env: shellEnvironment(hasKey) },
      (error, stdout, stderr) => {
        printed += stdout + stderr;
        resolve({ code: error ? Number(error.code) : 0, output: stdout + stderr });
      },
    );
  });
}

/** All processes below `ratchet dev`, itself first. */
function processTree(): { pid: number; args: string }[] {
  const lines = execFileSync('ps', ['-ww', '-A', '-o', 'pid=,ppid=,args='], { encoding: 'utf8' }).split('\n');
  const all = lines.flatMap((line) => {
    const [, pid, parent, args] = /^\s*(\d+)\s+(\d+)\s+(.*)$/.exec(line) ?? [];
    return args === undefined ? [] : [{ pid: Number(pid), parent: Number(parent), args }];
  });
  const tree = all.filter(({ pid }) => pid === dev.pid);
  for (const { pid } of tree) tree.push(...all.filter(({ parent }) => parent === pid));
  return tree;
}

function lookAtProcesses(): void {
  const tree = processTree();
  assert.ok(tree.length >= 7, 'supervisor, guard, server, policy server, three workers, trainer');
  argumentsSeen = tree.map(({ args }) => args).join('\n');
  if (process.platform !== 'linux') return;
  for (const { pid, args } of tree) environments.set(args, readFileSync(`/proc/${pid}/environ`, 'utf8'));
}

/** Ends everything at once, without a process left to clean up. */
async function losePower(): Promise<void> {
  const tree = processTree();
  // The guard first: it would end the others in good order.
  for (const { pid } of tree.toSorted((a, b) => Number(b.args.includes('guard')) - Number(a.args.includes('guard')))) {
    process.kill(pid, 'SIGKILL');
  }
  await until('the end of all processes', () => !tree.some(({ pid }) => isAlive(pid)), { everyMs: 1 });
}

async function rawHistory(workflowId: string): Promise<{ events: unknown[] }> {
  const events: unknown[] = [];
  let nextPageToken: Uint8Array | undefined;
  do {
    const page = await connection.workflowService.getWorkflowExecutionHistory({
      namespace: 'default',
      execution: { workflowId },
      ...(nextPageToken ? { nextPageToken } : {}),
    });
    for (const event of page.history?.events ?? []) {
      events.push(
        proto.temporal.api.history.v1.HistoryEvent.toObject(proto.temporal.api.history.v1.HistoryEvent.create(event)),
      );
    }
    nextPageToken = page.nextPageToken?.length ? page.nextPageToken : undefined;
    await delay(0);
  } while (nextPageToken);
  return { events };
}

/** Every text in a message, bytes as the text they would be. */
function readableTexts(value: unknown): string[] {
  if (typeof value === 'string') return [value];
  if (value instanceof Uint8Array) return [Buffer.from(value).toString('latin1')];
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value).flatMap(([key, item]) => [key, ...readableTexts(item)]);
}

/** Every payload in a message: its encoding, and the attributes that contain it. */
function payloadsIn(value: unknown, place: readonly string[] = []): { at: string; encoding: string }[] {
  if (typeof value !== 'object' || value === null || value instanceof Uint8Array) return [];
  const { metadata, data } = value as { metadata?: Record<string, unknown>; data?: unknown };
  // The server's own word for an activity that was cancelled before a worker took it.
  if (data instanceof Uint8Array && Buffer.from(data).toString('utf8') === '"ACTIVITY_ID_NOT_STARTED"') return [];
  if (metadata?.['encoding'] instanceof Uint8Array) {
    const isMarkerData = place.includes('markerRecordedEventAttributes') && place.includes('data');
    const at = isMarkerData ? 'marker data' : (place.find((part) => part.endsWith('Attributes')) ?? place.join('.'));
    return [{ at, encoding: Buffer.from(metadata['encoding']).toString('utf8') }];
  }
  return Object.entries(value).flatMap(([key, item]) => payloadsIn(item, [...place, key]));
}

function* filesBelow(root: string): Iterable<string> {
  for (const entry of readdirSync(root, { withFileTypes: true })) {
    const file = path.join(root, entry.name);
    if (entry.isDirectory()) yield* filesBelow(file);
    else if (entry.isFile()) yield file;
  }
}

function commitFile(step: number): string {
  return path.join(folder, `outputs/guarded/lineages/main/steps/step_${step}.json`);
}
