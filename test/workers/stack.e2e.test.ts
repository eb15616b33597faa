import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { Client, Connection } from '@temporalio/client';
import {
  endLeftoverServer,
  recordServer,
  serverArguments,
  serverFiles,
  defaultPorts,
} from '../../workers/temporal/dev-server.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { startStack, type Role } from '../../workers/stack/supervisor.ts';
import { ensureTemporalCli } from '../../workers/temporal/temporal-cli.ts';
import { startActivity } from './fixtures/one-activity.ts';
import { eventually, isAlive, startFixture, temporaryFolder } from './fixtures/processes.ts';

const worker: Role = {
  name: 'meek worker',
  args: ['-e', `setInterval(() => {}, 1000); console.log('up')`],
  ready: { line: 'up' },
};

/** Occupies a port unless somebody has it already; either way it is not ours. */
async function occupy(port: number): Promise<() => void> {
  const server = createServer();
  await new Promise<void>((resolve) => server.once('error', () => resolve()).listen(port, '127.0.0.1', resolve));
  return () => server.close();
}

test('a stack beside a stranger on the usual ports: other ports, a killed server comes back there with its history, stop leaves nothing', async (t) => {
  t.after(await occupy(defaultPorts.grpc));
  t.after(await occupy(defaultPorts.ui));
  const lines: string[] = [];
  const projectFolder = temporaryFolder(t);
  const stack = await startStack({ projectFolder, roles: [worker], log: (line) => lines.push(line) });
  t.after(() => stack.stop());
  assert.notEqual(stack.temporalAddress, `127.0.0.1:${defaultPorts.grpc}`);
  assert.notEqual(stack.uiUrl, `http://127.0.0.1:${defaultPorts.ui}`);
  assert.equal((await fetch(stack.uiUrl ?? '')).status, 200);

  const connection = await Connection.connect({ address: stack.temporalAddress });
  t.after(() => connection.close());
  const { config } = await connection.workflowService.describeNamespace({ namespace: 'default' });
  assert.equal(Number(config?.workflowExecutionRetentionTtl?.seconds), 30 * 24 * 3_600);
  const client = new Client({ connection });
  await client.workflow.start('nobody', { taskQueue: 'nobody', workflowId: 'kept' });

  const pids = stack.pids();
  process.kill(pids['Temporal server'] ?? 0, 'SIGKILL');
  await eventually('the server is back', () => lines.includes('Temporal server is back'));
  assert.equal((await client.workflow.getHandle('kept').describe()).status.name, 'RUNNING');
  assert.equal(stack.pids()['meek worker'], pids['meek worker']);

  const all = Object.values(stack.pids());
  const startedAtMs = performance.now();
  await stack.stop();
  assert.ok(performance.now() - startedAtMs < 5_000);
  assert.ok(all.every((pid) => !isAlive(pid ?? 0)));
  const logged = (name: string) => readFileSync(join(stack.logFolder, name), 'utf8').trim().split('\n').at(-1) ?? '';
  const endedAt = (name: string) => logged(name).split(' ')[1] ?? '';
  assert.ok(endedAt('meek-worker.log') <= endedAt('temporal-server.log'), 'the worker ends before the server');
});

test('Temporal is told at once that a worker of the stack was killed', async (t) => {
  const told = { line: 'up' };
  const args = ['-e', `setInterval(() => {}, 1000); console.log('tag ' + process.env.RATCHET_WORKER_TAG + ' up')`];
  const roles = [{ ...worker, args, ready: told, worker: 'rollout' as const }];
  const stack = await startStack({ projectFolder: temporaryFolder(t), roles, log: () => undefined });
  t.after(() => stack.stop());
  const connection = await Connection.connect({ address: stack.temporalAddress });
  t.after(() => connection.close());
  const { poll } = await startActivity(connection);
  const pid = stack.pids()['meek worker'] ?? 0;
  const tag = /tag ([0-9a-f]{6}) up/.exec(readFileSync(join(stack.logFolder, 'meek-worker.log'), 'utf8'))?.[1];
  assert.equal((await poll(`rollout worker ${pid}@${hostname()} ${tag} code abcdef01`)).attempt, 1);
  process.kill(pid, 'SIGKILL');
  assert.equal((await poll('another')).attempt, 2); // its heartbeat timeout is an hour
});

test('kill -9 of the supervisor takes the server with it; a database of another version is moved aside', async (t) => {
  const { folder, supervisor, pids } = await startedStack(t);
  supervisor.kill('SIGKILL');
  await eventually('all are gone', () => !pids.some(isAlive));

  writeFileSync(join(folder, '.ratchet', 'temporal.version'), '1.2.3\n');
  const { lines, stack } = await startAgain(t, folder);
  assert.match(lines.join('\n'), /written by Temporal server 1\.2\.3.*moved to/);
  assert.ok(readdirSync(stack.stateFolder).some((name) => /^temporal\.1\.2\.3\..*\.db$/.test(name)));
});

test('a server that outlived its supervisor and guard is ended before another one opens its database', async (t) => {
  const folder = temporaryFolder(t);
  const { database } = serverFiles(folder);
  const path = (await ensureTemporalCli({ log: () => {} })).path;
  const ports = { grpc: await choosePort(0), ui: await choosePort(0) };
  const leftover = spawn(path, serverArguments(ports, database), { stdio: 'ignore' });
  t.after(() => leftover.kill('SIGKILL'));
  await eventually('it has the database', () => existsSync(database));
  recordServer(folder, leftover.pid ?? 0);

  const lines: string[] = [];
  await endLeftoverServer(folder, (line) => lines.push(line));
  assert.match(lines.join('\n'), new RegExp(`left over from an earlier start \\(process ${leftover.pid}\\)`));
  assert.equal(isAlive(leftover.pid ?? 0), false);
});

test('a recorded process that is somebody else by now is left alone', async (t) => {
  const folder = temporaryFolder(t);
  recordServer(folder, process.pid);
  await endLeftoverServer(folder, () => assert.fail('nothing was to be ended'));
});

async function startedStack(t: TestContext) {
  const folder = temporaryFolder(t);
  const supervisor = startFixture(t, 'run-stack.ts', [folder], { TEMPORAL_ADDRESS: '' });
  const { temporalAddress: _, ...byName } = JSON.parse(await supervisor.firstLine()) as Record<string, number>;
  const pids = Object.values(byName);
  assert.equal(pids.length, 4);
  assert.ok(pids.every(isAlive));
  return { folder, supervisor, pids };
}

async function startAgain(t: TestContext, projectFolder: string) {
  const lines: string[] = [];
  const stack = await startStack({ projectFolder, roles: [], log: (line) => lines.push(line) });
  t.after(() => stack.stop());
  return { lines, stack };
}
