import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { EventEmitter } from 'node:events';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { endWhenTold } from '../../workers/first-process.mjs';
import { repositoryFolder } from '../e2e/small-run.ts';
import { eventually, temporaryFolder } from './fixtures/processes.ts';

function processOf(pid: number) {
  const exits: number[] = [];
  const exit = (code: number): void => void exits.push(code);
  return { exits, told: Object.assign(new EventEmitter(), { pid, exit }) as unknown as NodeJS.Process };
}

test('the first process of a container ends when it is told to and does not listen itself', () => {
  const { exits, told } = processOf(1);
  endWhenTold(told);
  const listens = (): void => undefined;
  told.on('SIGTERM', listens);
  told.emit('SIGTERM', 'SIGTERM');
  assert.deepEqual(exits, []);
  told.off('SIGTERM', listens);
  told.emit('SIGTERM', 'SIGTERM');
  told.emit('SIGINT', 'SIGINT');
  assert.deepEqual(exits, [143, 130]);
});

test('any other process is left to the kernel', () => {
  const { exits, told } = processOf(7);
  endWhenTold(told);
  assert.deepEqual([told.listenerCount('SIGTERM'), exits], [0, []]);
});

const asFirst = ['--user', '--map-root-user', '--pid', '--fork', '--kill-child', '--'];
const skip = spawnSync('unshare', [...asFirst, 'true']).status === 0 ? false : 'no namespaces of processes here';

test(
  'a worker that waits for its drain file to go ends at once, as the first process of a container',
  { skip },
  async (t) => {
    const file = path.join(temporaryFolder(t), 'drain');
    writeFileSync(file, '');
    const worker = ['cli/ratchet.mjs', 'worker', '--role', 'rollout', '--drain-file', file];
    const child = spawn('unshare', [...asFirst, process.execPath, ...worker], {
      cwd: repositoryFolder,
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    t.after(() => child.kill('SIGKILL'));
    let said = '';
    child.stderr.on('data', (chunk: Buffer) => (said += chunk.toString('utf8')));
    await eventually('it waits', () => said.includes('no worker begins while'), 60_000);
    const { stdout } = spawnSync('pgrep', ['-P', String(child.pid)], { encoding: 'utf8' });
    process.kill(Number(stdout.trim()), 'SIGTERM');
    await eventually('it has ended', () => child.exitCode !== null);
    assert.equal(child.exitCode, 143);
  },
);
