/** Keys and certificates of Temporal are changed, the old ones become invalid, and a worker that was started long ago works on. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { Client, Connection, WorkflowFailedError } from '@temporalio/client';
import { startTemporalServer } from '../workers/fixtures/temporal-server.ts';
import { temporaryFolder } from '../workers/fixtures/processes.ts';
import { hasOpenssl, makeCertificates, startRenewingProxy, startTlsProxy } from '../workers/fixtures/tls.ts';
import { eventually, until } from '../eventually.ts';
import { fakeRun } from '../faults/fake-run.ts';
import { repositoryFolder } from './small-run.ts';

const skip = hasOpenssl() ? false : 'there is no openssl to make certificates with';
const changed = 'the credentials for Temporal were changed: they are in use';

test('an API key is changed: before the old one becomes invalid, and after', { skip }, async (t) => {
  const upstream = await startTemporalServer(t);
  const { authority, server } = makeCertificates(t);
  const proxy = await startTlsProxy(t, { server, upstream });
  const folder = temporaryFolder(t);
  const keyFile = path.join(folder, 'api-key');
  writeFileSync(keyFile, 'first\n');
  proxy.requireKey('first');
  const worker = startWorker(t, folder, {
    TEMPORAL_ADDRESS: proxy.address,
    TEMPORAL_TLS_SERVER_CA_CERT_PATH: authority.certificate,
    TEMPORAL_API_KEY_FILE: keyFile,
  });
  await worker.says('ready at');
  await works(upstream, 'with-the-first');

  writeFileSync(keyFile, 'second\n');
  await worker.says(changed);
  proxy.requireKey('second');
  await works(upstream, 'with-the-second');

  proxy.requireKey('third');
  await until('calls with the second key are turned away', () =>
    proxy.calls.slice(-3).every(({ authorization }) => authorization === 'Bearer second'),
  );
  writeFileSync(keyFile, 'third\n');
  await works(upstream, 'with-the-third');
  assert.equal(worker.exitCode(), null, 'it was never restarted');
});

test('an authority and its client certificates are replaced while a worker polls', { skip }, async (t) => {
  const upstream = await startTemporalServer(t);
  const { proxy, first, second, folder, own, put } = await startRenewingProxy(t, upstream);
  const worker = startWorker(t, folder, {
    TEMPORAL_ADDRESS: proxy.address,
    TEMPORAL_TLS_SERVER_CA_CERT_PATH: first.authority.certificate,
    TEMPORAL_TLS_CLIENT_CERT_PATH: own.certificate,
    TEMPORAL_TLS_CLIENT_KEY_PATH: own.key,
  });
  await worker.says('ready at');
  await works(upstream, 'with-the-first');

  proxy.requireCertificateOf(second.authority.certificate);
  put(second);
  await worker.says(changed);
  await works(upstream, 'with-the-second');
  assert.equal(worker.exitCode(), null, 'it was never restarted');
});

test('a client certificate is replaced while `ratchet dev` and `ratchet attach` are connected', { skip }, async (t) => {
  const started: ReturnType<typeof startRatchet>[] = [];
  // Before their folder is removed.
  t.after(() => Promise.all(started.map((one) => one.end())));
  const upstream = await startTemporalServer(t);
  const { proxy, first, second, folder, own, put } = await startRenewingProxy(t, upstream);
  const variables = {
    TEMPORAL_ADDRESS: proxy.address,
    TEMPORAL_TLS_SERVER_CA_CERT_PATH: first.authority.certificate,
    TEMPORAL_TLS_CLIENT_CERT_PATH: own.certificate,
    TEMPORAL_TLS_CLIENT_KEY_PATH: own.key,
    RATCHET_CODE_ROOTS: path.join(repositoryFolder, 'test'),
  };
  writeFileSync(path.join(folder, 'long.toml'), fakeRun({ steps: 1_000, log: path.join(folder, 'sampled') }));
  const dev = startRatchet(t, folder, variables, 'dev', '--no-page');
  started.push(dev);
  await dev.says('start a run:');
  await works(upstream, 'with-the-first');
  await dev.says('with-the-first failed');
  const connection = await Connection.connect({ address: upstream });
  t.after(() => connection.close());
  const run = await new Client({ connection }).workflow.start('trainRun', {
    workflowId: 'long',
    taskQueue: 'ratchet',
    args: [{ config: 'long.toml' }],
  });
  await dev.says('long begins');
  const attached = startRatchet(t, folder, variables, 'attach', 'long', '--plain');
  started.push(attached);
  await attached.says('step 2');

  proxy.requireCertificateOf(second.authority.certificate);
  const calls = proxy.calls.length;
  put(second);
  await works(upstream, 'with-the-second');
  await dev.says('with-the-second failed');
  const { step } = await run.query<{ readonly step: number }>('status');
  await attached.says(`step ${step + 2}`);
  for (const one of [dev, attached]) assert.equal(one.exitCode(), null, one.said());
  assert.ok(proxy.calls.length > calls);
  for (const one of [dev, attached]) assert.doesNotMatch(one.said(), /DeprecationWarning/);
});

/** A run whose file is not there: an orchestrator has to open it to find that out. */
async function works(address: string, run: string): Promise<void> {
  const connection = await Connection.connect({ address });
  try {
    const client = new Client({ connection });
    const asked = client.workflow.execute('trainRun', {
      workflowId: run,
      taskQueue: 'ratchet',
      args: [{ config: 'not-there.toml' }],
    });
    await assert.rejects(asked, (error) => error instanceof WorkflowFailedError);
  } finally {
    await connection.close();
  }
}

function startWorker(t: TestContext, cwd: string, variables: Readonly<Record<string, string>>) {
  return startRatchet(t, cwd, variables, 'worker', '--role', 'orchestrator');
}

function startRatchet(t: TestContext, cwd: string, variables: Readonly<Record<string, string>>, ...args: string[]) {
  const ratchet = path.join(repositoryFolder, 'cli/ratchet.mjs');
  const child = spawn(process.execPath, [ratchet, ...args], { cwd, env: { ...process.env, ...variables } });
  t.after(() => child.kill('SIGKILL'));
  let said = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (said += chunk.toString()));
  return {
    exitCode: () => child.exitCode,
    said: () => said,
    end: async () => {
      const exited = child.exitCode === null ? once(child, 'exit') : null;
      child.kill('SIGTERM');
      await exited;
    },
    says: (what: string) =>
      eventually(
        `"${what}"`,
        () => Promise.resolve(said),
        (all) => all.includes(what),
      ),
  };
}
