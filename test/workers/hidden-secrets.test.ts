/** Credentials of a worker that its child, such as an environment's process, can read. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { startGuard } from '../../workers/stack/guard.ts';
import { splitSecrets } from '../../workers/stack/secrets-pipe.ts';
import { SupervisedProcess } from '../../workers/stack/supervised-process.ts';
import { eventually, temporaryFolder } from './fixtures/processes.ts';

/** PR_GET_DUMPABLE of prctl(2): whether others of this process's user may look into it. */
const getDumpable = 3;
const canary = 'CANARY-9f3b6a';
const from = (file: string): string => JSON.stringify(fileURLToPath(new URL(`../../${file}`, import.meta.url)));

/**
 * Values that a child of a process that runs `program` reads from its parent, and that the process itself still has.
 */
function lookAt(
  t: TestContext,
  program: string,
  env: Record<string, string>,
): Promise<{ seen: string; kept: string; open: string }> {
  const file = path.join(temporaryFolder(t), 'parent.ts');
  const child = "process.stdout.write(require('fs').readFileSync('/proc/' + process.ppid + '/environ', 'utf8'))";
  writeFileSync(
    file,
    `${program}
import { execFileSync } from 'node:child_process';
import koffi from ${JSON.stringify(import.meta.resolve('koffi'))};
const prctl = koffi.load(null).func('int prctl(int, unsigned long, unsigned long, unsigned long, unsigned long)');
const open = String(prctl(${getDumpable}, 0, 0, 0, 0) !== 0);
const seen = execFileSync(process.execPath, ['-e', ${JSON.stringify(child)}], { encoding: 'utf8', env: {} });
console.log(JSON.stringify({ seen, kept: process.env['OPENAI_API_KEY'] ?? '', open }));
`,
  );
  return new Promise((resolve, reject) => {
    const args = ['--import', import.meta.resolve('tsx'), file];
    execFile(process.execPath, args, { env: { PATH: process.env['PATH'], ...env } }, (error, stdout) =>
      error ? reject(error) : resolve(JSON.parse(stdout) as { seen: string; kept: string; open: string }),
    );
  });
}

test(
  'credentials that a worker took are nowhere to be read by its children, nor by others of its user',
  { skip: process.platform !== 'linux' },
  async (t) => {
    const program = `import { takeCredentials } from ${from('workers/temporal/credentials.ts')};\ntakeCredentials();`;
    const { seen, kept, open } = await lookAt(t, program, {
      TEMPORAL_API_KEY: `${canary}-temporal`,
      AWS_ACCESS_KEY_ID: 'AKIA0',
      AWS_SECRET_ACCESS_KEY: `${canary}-aws`,
      TINKER_API_KEY: `${canary}-tinker`,
      OPENAI_API_KEY: `${canary}-openai`,
      PLAIN: 'plain',
    });
    assert.match(seen, /PLAIN=plain/);
    assert.doesNotMatch(seen, new RegExp(canary));
    assert.equal(kept, `${canary}-openai`, 'what the worker itself needs it still has');
    assert.equal(open, 'false', 'Linux lets nobody but root look into it');
  },
);

test('a supervised worker is not even started with them', { skip: process.platform !== 'linux' }, async (t) => {
  const folder = temporaryFolder(t);
  const { open, secrets } = splitSecrets({
    PATH: process.env['PATH'] ?? '',
    RATCHET_POLICY_URL: 'http://policy',
    RATCHET_PAYLOAD_KEY: canary,
    RATCHET_SECRET: canary,
    AWS_SECRET_ACCESS_KEY: canary,
    OPENAI_API_KEY: canary,
  });
  assert.deepEqual(Object.keys(secrets).toSorted(), [
    'AWS_SECRET_ACCESS_KEY',
    'OPENAI_API_KEY',
    'RATCHET_PAYLOAD_KEY',
    'RATCHET_SECRET',
  ]);
  const file = path.join(folder, 'worker.ts');
  writeFileSync(
    file,
    `import ${from('workers/take-secrets.ts')};
import { readFileSync } from 'node:fs';
const { AWS_SECRET_ACCESS_KEY, RATCHET_PAYLOAD_KEY, RATCHET_POLICY_URL, RATCHET_SECRET } = process.env;
const startedWith = readFileSync('/proc/self/environ', 'utf8').includes('CANARY');
console.log('told ' + JSON.stringify({ AWS_SECRET_ACCESS_KEY, RATCHET_PAYLOAD_KEY, RATCHET_POLICY_URL, RATCHET_SECRET, startedWith }) + ' end');
setInterval(() => {}, 1000);
`,
  );
  const guard = startGuard();
  const worker = new SupervisedProcess(
    { name: 'worker', command: process.execPath, args: ['--import', import.meta.resolve('tsx'), file], env: open, secrets, folder, rank: 'role', ready: { line: ' end' } }, // prettier-ignore
    { guard, logFolder: folder, log: () => undefined },
  );
  t.after(async () => {
    await worker.stop(0);
    guard.close();
  });
  await worker.start();
  await eventually('it has said what it has', () => worker.lastLines.some((line) => line.startsWith('told')));
  const told = worker.lastLines.find((line) => line.startsWith('told'))!;
  assert.deepEqual(JSON.parse(told.slice('told '.length, -' end'.length)), {
    AWS_SECRET_ACCESS_KEY: canary,
    RATCHET_PAYLOAD_KEY: canary,
    RATCHET_SECRET: canary,
    RATCHET_POLICY_URL: 'http://policy',
    startedWith: false,
  });
});
