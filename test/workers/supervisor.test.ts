import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, realpathSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { openProcesses } from '../../cli/start/processes.ts';
import { startGuard } from '../../workers/stack/guard.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { openRoleLog } from '../../workers/stack/role-log.ts';
import { readRunningStack } from '../../workers/stack/project-lock.ts';
import { localRoles } from '../../workers/stack/roles.ts';
import { startStack, type Role, type StackOptions } from '../../workers/stack/supervisor.ts';
import { eventually, isAlive, startFixture, temporaryFolder } from './fixtures/processes.ts';

/** A server that is not ours: the stack has roles only. */
const TEMPORAL_ADDRESS = '127.0.0.1:1';
const up = { line: 'up' };
const meek: Role = { name: 'meek worker', args: ['-e', `setInterval(() => {}, 1000); console.log('up')`], ready: up };
const stubborn: Role = {
  name: 'stubborn worker',
  args: ['-e', `process.on('SIGTERM', () => {}); setInterval(() => {}, 1000); console.log('up')`],
  ready: up,
};

async function stackOf(t: TestContext, roles: readonly Role[], options: Partial<StackOptions> = {}) {
  const projectFolder = temporaryFolder(t);
  const lines: string[] = [];
  const environment = { PATH: process.env['PATH'], TEMPORAL_ADDRESS };
  const stack = await startStack({ projectFolder, roles, environment, log: (line) => lines.push(line), ...options });
  t.after(() => stack.stop());
  return { stack, lines, projectFolder };
}

test('a role that is killed is started again, said and counted; the others continue undisturbed', async (t) => {
  const { stack, lines } = await stackOf(t, [meek, { ...meek, name: 'other worker' }]);
  const { 'meek worker': pid, 'other worker': other } = stack.pids();
  assert.ok(pid);
  process.kill(pid, 'SIGKILL');
  await eventually('it is back', () => lines.includes('meek worker is back'));
  assert.deepEqual(lines, ['meek worker was killed (SIGKILL); restarting', 'meek worker is back']);
  assert.deepEqual(stack.restarts(), { 'meek worker': 1, 'other worker': 0 });
  assert.notEqual(stack.pids()['meek worker'], pid);
  assert.equal(stack.pids()['other worker'], other);
});

test('a role that ends by itself is started again with its exit code said', async (t) => {
  const role: Role = {
    name: 'brief worker',
    args: ['-e', `console.log('up'); setTimeout(() => process.exit(3), 100)`],
    ready: up,
  };
  const { stack, lines } = await stackOf(t, [role]);
  await eventually('it was restarted twice', () => (stack.restarts()['brief worker'] ?? 0) >= 2);
  assert.equal(lines[0], 'brief worker ended (exit code 3); restarting');
});

test('what a role has started ends with it: its successor has no stranger beside it', async (t) => {
  const parent: Role = {
    name: 'parent worker',
    args: [
      '-e',
      `const child = require('node:child_process').spawn('sleep', ['600'], { stdio: 'ignore' }); console.log('child ' + child.pid + ' up'); setInterval(() => {}, 1000)`,
    ],
    ready: up,
  };
  const { stack, lines, projectFolder } = await stackOf(t, [parent]);
  const log = readFileSync(join(projectFolder, '.ratchet', 'logs', 'parent-worker.log'), 'utf8');
  const child = Number(/^child (\d+) up$/m.exec(log)?.[1]);
  assert.ok(isAlive(child), log);
  process.kill(stack.pids()['parent worker']!, 'SIGKILL');
  await eventually('it is back', () => lines.includes('parent worker is back'));
  await eventually('its child ended', () => !isAlive(child));
});

test('stop ends everything within 5 s, also who ignores SIGTERM, and may be asked twice', async (t) => {
  const { stack, projectFolder } = await stackOf(t, [meek, stubborn]);
  const pids = Object.values(stack.pids());
  const startedAtMs = performance.now();
  await Promise.all([stack.stop(), stack.stop()]);
  assert.ok(performance.now() - startedAtMs < 5_000);
  for (const pid of pids) assert.equal(isAlive(pid ?? 0), false);
  assert.equal(await readRunningStack(projectFolder), null);
});

test('a role that never gets ready fails the start with its last words, and nothing is left', async (t) => {
  const broken: Role = {
    name: 'broken worker',
    args: ['-e', `console.error('no such model'); process.exit(1)`],
    ready: up,
  };
  let place = '';
  const start = stackOf(t, [], {
    roles: ({ projectFolder }) => {
      place = projectFolder;
      return [meek, broken];
    },
  });
  await assert.rejects(start, /broken worker ended \(exit code 1\); its log is .*broken-worker\.log[^]*no such model/);
  assert.equal(await readRunningStack(place), null);
});

test('a role that takes long to fail is given up after as many starts as one that fails at once', async (t) => {
  const slow: Role = {
    name: 'slow worker',
    args: ['-e', `setTimeout(() => process.exit(1), 50)`],
    ready: up,
    startAttemptsMax: 2,
    steadyMs: 0,
  };
  const lines: string[] = [];
  await assert.rejects(stackOf(t, [slow], { log: (line) => lines.push(line) }), /slow worker ended \(exit code 1\)/);
  assert.deepEqual(lines, ['slow worker ended (exit code 1); restarting']);
});

test('a start can be broken off', async (t) => {
  const abort = new AbortController();
  const never: Role = { name: 'slow worker', args: ['-e', 'setInterval(() => {}, 1000)'], ready: up };
  const start = stackOf(t, [never], { signal: abort.signal });
  setTimeout(() => abort.abort(new Error('Ctrl-C')), 300);
  await assert.rejects(start, /Ctrl-C/);
});

test('a second stack in the folder is refused and the first continues', async (t) => {
  const { stack, projectFolder } = await stackOf(t, [meek]);
  const second = startStack({ projectFolder, roles: [], log: () => {}, environment: { TEMPORAL_ADDRESS } });
  await assert.rejects(second, new RegExp(`already runs in .* \\(process ${process.pid}, ready`));
  assert.ok(isAlive(stack.pids()['meek worker'] ?? 0));
});

test('a role sees its settings and Temporal, but no secret that it was not meant to have', async (t) => {
  const environment = {
    PATH: process.env['PATH'],
    TEMPORAL_ADDRESS,
    TEMPORAL_API_KEY: 'k',
    RATCHET_X: 'x',
    OPENAI_API_KEY: 'passed',
    AWS_SECRET_ACCESS_KEY: 'canary',
  };
  const show: Role = {
    name: 'shown worker',
    args: ['-e', `console.log(JSON.stringify(process.env) + 'up'); setInterval(() => {}, 1000)`],
    ready: up,
    env: { OWN: '1' },
    passEnv: ['OPENAI_API_KEY'],
    dropEnv: ['TEMPORAL_API_*'],
  };
  const { stack } = await stackOf(t, [show], { environment });
  const seen = readFileSync(join(stack.logFolder, 'shown-worker.log'), 'utf8');
  for (const part of ['"RATCHET_X":"x"', '"OPENAI_API_KEY":"passed"', '"OWN":"1"', TEMPORAL_ADDRESS]) {
    assert.ok(seen.includes(part), part);
  }
  assert.doesNotMatch(seen, /canary|TEMPORAL_API_KEY/);
});

test('credentials that no worker could use are refused before anything starts', async (t) => {
  const projectFolder = temporaryFolder(t);
  const start = (environment: NodeJS.ProcessEnv) =>
    startStack({ projectFolder, roles: [meek], log: () => {}, environment: { TEMPORAL_ADDRESS, ...environment } });
  await assert.rejects(start({ RATCHET_PAYLOAD_KEY: 'a pass phrase' }), /32 bytes in base64 or hex/);
  await assert.rejects(start({ TEMPORAL_TLS_SERVER_CA_CERT_PATH: '/no/such.pem' }), /no such file: \/no\/such\.pem/);
  assert.equal(await readRunningStack(projectFolder), null);
});

test('with a server elsewhere its workers get the credentials for it, and the policy server none', async (t) => {
  const environment = {
    PATH: process.env['PATH'],
    TEMPORAL_ADDRESS,
    TEMPORAL_API_KEY: 'canary-api',
    RATCHET_PAYLOAD_KEY: Buffer.alloc(32, 7).toString('base64'),
    TEMPORAL_NAMESPACE: 'theirs',
  };
  const show = {
    args: [
      '-e',
      `console.log('started with ' + JSON.stringify(process.env));
      if (process.env.RATCHET_SECRETS) process.stdin.once('data', (line) => console.log('told ' + line + 'is up'));
      else console.log('is up');
      setInterval(() => {}, 1000)`,
    ],
    ready: { line: 'is up' },
  };
  const roles = localRoles({ weightRoots: [], policyPort: 1 }).map((role) => ({ ...role, ...show }));
  const { stack } = await stackOf(t, roles, { environment });
  for (const { name } of roles) {
    const seen = readFileSync(join(stack.logFolder, `${name.replaceAll(' ', '-')}.log`), 'utf8');
    const isWorker = name.endsWith('worker');
    for (const secret of ['canary-api', environment.RATCHET_PAYLOAD_KEY]) {
      assert.equal(/^told .*$/m.exec(seen)?.[0].includes(secret) ?? false, isWorker, name);
      assert.ok(!/^started with .*$/m.exec(seen)![0].includes(secret), `${name} shows it to every process of its user`);
    }
  }
});

test('what asks other servers has neither a trainer nor a policy server, says so, and whoever trains is refused it', async (t) => {
  const roles = localRoles({ weightRoots: [], policyPort: 1, playsOnly: true });
  assert.deepEqual(
    roles.map(({ name }) => name),
    ['orchestrator worker', 'rollout worker'],
  );
  const { stack } = await stackOf(t, [meek], { playsOnly: true });
  const needs = { storeUri: `file:${stack.projectFolder}/outputs`, workersSee: [] };
  const said: string[] = [];
  const place = (playsOnly: boolean) =>
    openProcesses(
      { ...needs, playsOnly },
      stack.projectFolder,
      { say: (line) => said.push(line), part: () => '' },
      new AbortController().signal,
    );
  await assert.rejects(
    place(false),
    /with neither a GPU worker nor a policy server beside it\. Wait until it has ended/,
  );
  assert.equal((await place(true))?.address, TEMPORAL_ADDRESS);
  assert.match(said.join('\n'), /^attached to the processes that run here/);
});

test('credentials for S3 reach the workers, never the policy server', () => {
  const roles = localRoles({ weightRoots: [], policyPort: 1 });
  const namesAws = ({ passEnv = [], env = {} }: Role) =>
    [...passEnv, ...Object.keys(env)].some((name) => /AWS/.test(name));
  assert.deepEqual(
    roles.filter((role) => !namesAws(role)).map(({ name }) => name),
    ['policy server'],
  );
});

test('the key of W&B reaches the process that follows metrics, and no other', () => {
  const roles = localRoles({ weightRoots: [], policyPort: 1 });
  const seen = roles.filter(({ passEnv = [] }) => passEnv.some((name) => /WANDB/.test(name)));
  assert.deepEqual(
    seen.map(({ name }) => name),
    ['metrics worker'],
  );
});

test('kill -9 of the supervisor leaves no process behind, not even one that ignores SIGTERM or a child of a child', async (t) => {
  const folder = temporaryFolder(t);
  const supervisor = startFixture(t, 'run-stack.ts', [folder], { TEMPORAL_ADDRESS });
  const { temporalAddress: _, ...pids } = JSON.parse(await supervisor.firstLine()) as Record<string, number>;
  const grandchild = /child (\d+) up/.exec(readFileSync(join(folder, '.ratchet/logs/parent.log'), 'utf8'))?.[1];
  const all = [...Object.values(pids), Number(grandchild)];
  assert.equal(all.length, 4);
  for (const pid of all) assert.ok(isAlive(pid));

  supervisor.kill('SIGKILL');
  await eventually('all are gone', () => !all.some(isAlive));
  assert.equal(await readRunningStack(folder), null);
});

test('the guard ends workers before the server', async (t) => {
  const folder = temporaryFolder(t);
  const leaves = (name: string, afterMs: number) => {
    const file = JSON.stringify(join(folder, name));
    const bye = `setTimeout(() => { fs.writeFileSync(${file}, String(fs.existsSync(${JSON.stringify(join(folder, 'worker'))}))); process.exit(); }, ${afterMs})`;
    const code = `const fs = require('node:fs'); process.on('SIGTERM', () => ${bye}); setInterval(() => {}, 1000); console.log('up')`;
    return spawn(process.execPath, ['-e', code], { detached: true, stdio: ['ignore', 'pipe', 'ignore'] });
  };
  const [server, worker] = [leaves('server', 0), leaves('worker', 300)];
  const guard = startGuard();
  await guard.add(server.pid ?? 0, 'server');
  await guard.add(worker.pid ?? 0, 'role');
  await Promise.all([server, worker].map((one) => new Promise((resolve) => one.stdout.once('data', resolve))));
  guard.close();
  await eventually('both are gone', () => existsSync(join(folder, 'server')) && !isAlive(worker.pid ?? 0));
  assert.equal(readFileSync(join(folder, 'server'), 'utf8'), 'true');
});

test('a port somebody has is left alone and another one is chosen', async (t) => {
  const somebody = createServer();
  await new Promise<void>((resolve) => somebody.listen(0, '127.0.0.1', resolve));
  t.after(() => somebody.close());
  const address = somebody.address();
  assert.ok(address !== null && typeof address === 'object');
  assert.notEqual(await choosePort(address.port), address.port);
});

test('a port that is drawn is none that outgoing connections are given, and nobody else draws it meanwhile', async () => {
  const ports = await Promise.all(Array.from({ length: 8 }, () => choosePort(0)));
  assert.equal(new Set(ports).size, 8);
  assert.ok(ports.every((port) => port >= 20_000 && port < 30_000));
});

test('what a role prints is kept within bounds', (t) => {
  const folder = realpathSync(temporaryFolder(t));
  mkdirSync(join(folder, 'logs'));
  const log = openRoleLog(join(folder, 'logs', 'role.log'), 100);
  for (let line = 0; line < 25; line += 1) log.append(`line ${String(line).padStart(4, '0')}\n`);
  log.close();
  log.append('after the end\n');
  assert.equal(readFileSync(log.path, 'utf8').trim().split('\n').length, 5);
  assert.equal(readFileSync(`${log.path}.1`, 'utf8').trim().split('\n').length, 10);
});
