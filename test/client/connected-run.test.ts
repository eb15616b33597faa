/** A program uses `ratchet-rl/client` wrongly, or leaves while it waits. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { Client, Connection } from '@temporalio/client';
import { attach, readRun, startRun } from '../../client/index.mjs';
import { startTemporalServer } from '../workers/fixtures/temporal-server.ts';

/** A server that no worker polls, with an open run and an open pool. */
async function stage(t: TestContext): Promise<{ address: string }> {
  const address = await startTemporalServer(t);
  const connection = await Connection.connect({ address });
  t.after(() => connection.close());
  const { workflow } = new Client({ connection });
  await workflow.start('trainRun', { workflowId: 'words', taskQueue: 'nobody' });
  await workflow.start('pool', { workflowId: 'ratchet-pool-gpus', taskQueue: 'nobody' });
  return { address };
}

const closed = { code: 'ServerUnavailable', message: /^close\(\) was called on the run words, which goes on\. attach/ };

test('whoever closes a run while it is waited for is told so, and so is who asks it later', async (t) => {
  const connecting = await stage(t);
  const run = await attach('words', connecting);
  const waiting = [run.result(), run.events().next(), run.status()].map((one) => assert.rejects(one, closed));
  await delay(500);
  await run.close();
  await Promise.all(waiting);
  for (const later of [run.result(), run.events().next(), run.status(), run.pause(), run.read()])
    await assert.rejects(later, closed);
  await run.close();

  const again = await attach('words', connecting);
  assert.equal(again.workflowId, 'words');
  await again.close();
});

test('a workflow that is no run is not attached to', async (t) => {
  await assert.rejects(attach('ratchet-pool-gpus', await stage(t)), {
    code: 'RunNotFound',
    message: /^ratchet-pool-gpus is no run: on this Temporal server a workflow of the type pool is open/,
  });
});

test('what a program passes wrongly is named before anything begins', async (t) => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-client-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await writeFile(
    path.join(folder, 'words.toml'),
    'model = "preset:reverse-text-0.2m"\nenv = [{ id = "reverse-text" }]\n',
  );
  const nothing = undefined as unknown as string;
  const start = (options: object): Promise<unknown> => startRun('words.toml', { folder, ...options });
  const cases: [Promise<unknown>, RegExp][] = [
    [attach(''), /^attach: expected the name of a run, got ""/],
    [attach(nothing), /^attach: expected the name of a run, got nothing/],
    [attach('words', { adress: 'x:1' } as object), /^options: there is no "adress"\. Did you mean address\?/],
    [attach('words', { address: 7233 } as object), /^address: expected a text, got 7233/],
    [attach('words', { folder: `${folder}/none` }), /^folder: expected the folder of a project, and there is none at/],
    [readRun(nothing), /^readRun: expected the folder of a run/],
    [startRun(nothing), /^startRun: expected the path of a run file, or its settings as an object, got nothing/],
    [startRun([] as unknown as string), /^startRun: expected the path of a run file/],
    [start({ overides: {} }), /Did you mean overrides\?/],
    [start({ overrides: ['max_steps=2'] }), /^overrides: expected settings by dotted key/],
    [start({ overrides: { learning_rate: Number.NaN } }), /^overrides: learning_rate: expected a number .*NaN/],
    [start({ overrides: { max_steps: 2n } }), /^overrides: max_steps: expected a value as TOML has it/],
    [start({ rewind: -1 }), /^rewind: expected a committed step, got -1/],
    // What is undefined is left out; so the first thing that is wrong is that nothing runs here.
    [start({ name: undefined, overrides: { max_steps: undefined } }), /^Nothing of Ratchet runs in/],
  ];
  for (const [asked, message] of cases) await assert.rejects(asked, { message });
});
