import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { test, type TestContext } from 'node:test';
import { answerOf, childPatience, watchChild } from '../../host/child-progress.ts';

const everyMs = 20;
const patience = { standstillMs: 400, mostMs: 60_000 };

/** Starts a child in its own process group, which ends with the test. */
function node(t: TestContext, script: string) {
  const child = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'ignore'], detached: true });
  t.after(() => {
    process.kill(-child.pid!, 'SIGKILL');
    child.stdout.destroy();
  });
  return child;
}

const printed = (child: ChildProcess): Promise<unknown> =>
  new Promise((resolve) => child.stdout!.once('data', resolve));

test('a child that works is waited for beyond any limit on standing still, and so are its own children', async (t) => {
  const work = 'console.log(1); for (let i = 0; ; i++) Math.sqrt(i);';
  const nested = `require('node:child_process').spawn(process.execPath, ['-e', ${JSON.stringify(work)}], { stdio: 'inherit' })`;
  for (const script of [work, nested]) {
    const child = node(t, script);
    await printed(child);
    const watch = watchChild(child.pid, patience, everyMs);
    const turns = new Promise((resolve) => setTimeout(() => resolve('at work'), 5 * patience.standstillMs));
    assert.equal(await Promise.race([watch.over, turns]), 'at work', script);
    watch.end();
  }
});

test('a child that stands still is given up, with that as the reason', async (t) => {
  const child = node(t, 'console.log(1); require("node:child_process").execFileSync("sleep", ["1000"])');
  await printed(child);
  assert.match(await watchChild(child.pid, patience, everyMs).over, /^it stood still for 0\.4 s: no output/);
});

test('output is progress, and endless work is not waited for endlessly', async () => {
  const watch = watchChild(undefined, { standstillMs: 100, mostMs: 1_000 }, everyMs);
  const speaking = setInterval(() => watch.heard(), everyMs / 2);
  assert.match(
    await watch.over,
    /after 1 s, although it was still working; RATCHET_IMPORT_MINUTES allows more minutes$/,
  );
  clearInterval(speaking);
});

test('a program that is missing, fails or stalls gives no answer', async () => {
  const env = { PATH: process.env['PATH'] ?? '' };
  assert.equal(await answerOf(process.execPath, ['-e', 'console.log(6 * 7)'], env), '42\n');
  assert.equal(await answerOf('no-such-program', [], env), null);
  assert.equal(await answerOf(process.execPath, ['-e', 'process.exit(3)'], env), null);
  assert.equal(await answerOf('sleep', ['1000'], env, { standstillMs: 1_500, mostMs: 60_000 }), null);
});

test('the longest wait is a setting', () => {
  assert.equal(childPatience({}).mostMs, 60 * 60_000);
  assert.equal(childPatience({ RATCHET_IMPORT_MINUTES: '5' }).mostMs, 5 * 60_000);
  assert.equal(childPatience({ RATCHET_IMPORT_MINUTES: 'soon' }).mostMs, 60 * 60_000);
});
