import assert from 'node:assert/strict';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { Context } from '@temporalio/activity';
import { Client, Connection } from '@temporalio/client';
import { DefaultLogger, Runtime, Worker } from '@temporalio/worker';
import { connect } from '../../workers/temporal/client.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { localTemporal, remoteTemporal } from '../../workers/temporal/temporal-settings.ts';
import { innermostMessage } from '../../workers/temporal/innermost-message.ts';
import { connectWorker, TemporalLink } from '../../workers/temporal/temporal-link.ts';
import { workflowBundlePath, workflowCodeVersion } from '../../workers/program/workflow-bundle.ts';
import { eventually, temporaryFolder } from './fixtures/processes.ts';
import { startStoppableServer, startTemporalServer } from './fixtures/temporal-server.ts';
import { Gate } from '../workflows/fake-run.ts';
import { hasOpenssl, type KeyPair, makeCertificates, startRenewingProxy, startTlsProxy } from './fixtures/tls.ts';

const skip = hasOpenssl() ? false : 'there is no openssl to make certificates with';

test(
  'workers and commands reach a server behind TLS, with a client certificate where it wants one, and with an API key',
  { skip },
  async (t) => {
    const upstream = await startTemporalServer(t);
    const { authority, server, client } = makeCertificates(t);
    const open = await startTlsProxy(t, { server, upstream });
    const strict = await startTlsProxy(t, { server, upstream, clientAuthority: authority.certificate });
    const trusting = { TEMPORAL_TLS_SERVER_CA_CERT_PATH: authority.certificate };
    const keyFile = join(temporaryFolder(t), 'api-key');
    writeFileSync(keyFile, 'key-from-a-file\n');
    const warnings: Error[] = [];
    const onWarning = (warning: Error): void => void warnings.push(warning);
    process.on('warning', onWarning);
    t.after(() => process.off('warning', onWarning));

    await reach(open.address, { ...trusting, TEMPORAL_API_KEY: 'key-from-the-environment' });
    await reach(open.address, {
      ...trusting,
      TEMPORAL_API_KEY_FILE: keyFile,
      TEMPORAL_TLS_SERVER_NAME: 'temporal.test',
    });
    await reach(strict.address, { ...trusting, ...presenting(client) });

    const keys = new Set(open.calls.map(({ authorization }) => authorization));
    assert.deepEqual([...keys], ['Bearer key-from-the-environment', 'Bearer key-from-a-file']);
    assert.ok(strict.calls.length > 0);
    assert.deepEqual(warnings, [], 'an IP address is not sent as the name of a server');
    assert.ok(strict.calls.every(({ authorization }) => authorization === undefined));

    async function reach(address: string, env: NodeJS.ProcessEnv): Promise<void> {
      const settings = remoteTemporal(address, env);
      const command = await connect(settings);
      await command.client.workflow.count("WorkflowType='trainRun'");
      await command.close();
      const worker = await connectWorker(settings);
      await worker.workflowService.getSystemInfo({});
      await worker.close();
    }
  },
);

test('a command that was connected long ago follows a changed key and certificates', { skip }, async (t) => {
  const upstream = await startTemporalServer(t);
  const { proxy, first, second, folder, own, put: putPair } = await startRenewingProxy(t, upstream);
  const keyFile = join(folder, 'api-key');
  const put = (key: string, certificates: typeof first): void => {
    writeFileSync(keyFile, `${key}\n`);
    putPair(certificates);
  };
  put('first', first);
  proxy.requireKey('first');
  const settings = remoteTemporal(proxy.address, {
    TEMPORAL_TLS_SERVER_CA_CERT_PATH: first.authority.certificate,
    TEMPORAL_API_KEY_FILE: keyFile,
    ...presenting(own),
  });
  const { client, close } = await connect(settings);
  t.after(close);
  const ask = () => client.workflow.count("WorkflowType='trainRun'");
  await ask();

  // The connection is cut, as the server does from time to time, and another authority is required from here on.
  proxy.requireCertificateOf(second.authority.certificate);
  proxy.requireKey('second');
  await assert.rejects(ask(), 'the certificate before is turned away');
  const saying = (what: RegExp) => (error: unknown) => what.test(innermostMessage(error));
  copyFileSync(second.client.certificate, own.certificate);
  // A call before the next attempt to connect gets the failure of the last one.
  const isRefusedAsHalf = () => ask().then(() => assert.fail('it was let in'), saying(/is not the key of the certificate/)); // prettier-ignore
  await eventually('one of two files was replaced', isRefusedAsHalf, 60_000);
  put('second', second);
  const isAnswered = () =>
    ask().then(
      () => true,
      () => false,
    );
  await eventually('an answer', isAnswered, 60_000);

  proxy.requireKey('third');
  await assert.rejects(ask(), saying(/the key is not valid/));
  put('third', second);
  await ask();
});

test(
  'a worker whose certificate is renewed again and again gathers no connections, and cuts no call and no poll',
  { skip },
  async (t) => {
    // A poll keeps its connection until it ends.
    const { address: upstream } = await startStoppableServer(t, {
      settings: { 'matching.longPollExpirationInterval': '"2s"' },
    });
    const [first, second] = [makeCertificates(t), makeCertificates(t)];
    const folder = temporaryFolder(t);
    const both = join(folder, 'authorities.pem');
    writeFileSync(both, [first, second].map(({ authority }) => readFileSync(authority.certificate, 'utf8')).join('\n'));
    const proxy = await startTlsProxy(t, { server: first.server, upstream, clientAuthority: both });
    const own = { certificate: join(folder, 'client.pem'), key: join(folder, 'client.key') };
    const put = ({ client }: typeof first): void => {
      copyFileSync(client.certificate, own.certificate);
      copyFileSync(client.key, own.key);
    };
    put(first);
    const settings = remoteTemporal(proxy.address, {
      TEMPORAL_TLS_SERVER_CA_CERT_PATH: first.authority.certificate,
      ...presenting(own),
    });
    Runtime.install({ logger: new DefaultLogger('ERROR'), shutdownSignals: [] });
    const link = await TemporalLink.open({ temporal: settings, payloadKeys: [] });
    const gate = new Gate();
    const worker = await Worker.create({
      connection: link.connection,
      taskQueue: 'ratchet',
      workflowBundle: { codePath: await workflowBundlePath(await workflowCodeVersion()) },
      activities: {
        sweepSandboxes: async ({ store }: { readonly store: string }) => {
          const { client } = Context.current(); // of the connection at its begin
          if (store === 'file:held') await gate.pass();
          await client.workflow.count("WorkflowId='nobody'");
          return { open: 0, ended: [], orphans: [], left: [], troubles: [] };
        },
      },
    });
    link.add(worker);
    const working = worker.run();
    const direct = await Connection.connect({ address: upstream });
    const start = (id: string, store = 'file:outputs') =>
      new Client({ connection: direct }).workflow.start('sweepSandboxes', {
        workflowId: id,
        taskQueue: 'ratchet',
        args: [{ store }],
      });
    try {
      await (await start('before')).result();
      const slow = await start('slow', 'file:held');
      await gate.reached;
      const kept = link.client;
      const slowResult = kept.workflow.getHandle('slow').result(); // a call under way, which the server holds
      for (let i = 0; i < 5; i++) {
        put(i % 2 === 0 ? second : first);
        const before = link.connection;
        await link.renew(settings.reread!());
        assert.notEqual(link.connection, before);
        await (await start(`after-${i}`)).result();
      }
      gate.open();
      await slowResult;
      await slow.result();
      assert.equal(
        await kept.workflow.count("WorkflowId='nobody'").then(({ count }) => count),
        0,
        'a client that was kept',
      );
      // The SDK's worker keeps the connection that it was made with, unused, for as long as it lives.
      await eventually('the first connection and the last', () => Promise.resolve(proxy.open() === 2), 30_000);
      assert.equal(worker.getState(), 'RUNNING');
    } finally {
      // Before the proxy and the server behind it end.
      gate.open();
      worker.shutdown();
      await working;
      await link.connection.close();
      await direct.close();
    }
  },
);

test('what is wrong with the way to a server is said, with what to set', { skip }, async (t) => {
  const upstream = await startTemporalServer(t);
  const { authority, server } = makeCertificates(t);
  const stranger = makeCertificates(t);
  const open = await startTlsProxy(t, { server, upstream });
  const strict = await startTlsProxy(t, { server, upstream, clientAuthority: authority.certificate });
  const trusting = { TEMPORAL_TLS_SERVER_CA_CERT_PATH: authority.certificate };
  const elsewhere = { TEMPORAL_TLS_SERVER_CA_CERT_PATH: stranger.authority.certificate };

  await refused(strict.address, trusting, /client certificate: TEMPORAL_TLS_CLIENT_CERT_PATH/);
  await refused(
    strict.address,
    { ...trusting, ...presenting(stranger.client) },
    /does not accept the client certificate/,
  );
  assert.equal(strict.calls.length, 0, 'nobody got in');
  await refused(open.address, elsewhere, /not signed by the authority in TEMPORAL_TLS_SERVER_CA_CERT_PATH/);
  await refused(open.address, { TEMPORAL_TLS: 'true' }, /not signed by an authority this system knows/);
  await refused(open.address, { ...trusting, TEMPORAL_TLS_SERVER_NAME: 'other.test' }, /TEMPORAL_TLS_SERVER_NAME/);
  await refused(open.address, {}, /speaks TLS\. Set TEMPORAL_TLS=true/);
  await refused(upstream, trusting, /does not speak TLS\. Unset TEMPORAL_TLS/);
  assert.equal(open.calls.length, 0, 'nothing was sent to a server that was not trusted');
  // A command reports the same after a longer wait, so one case stands for all.
  await assert.rejects(connect(remoteTemporal(strict.address, trusting)), /it may want a client certificate/);

  async function refused(address: string, env: NodeJS.ProcessEnv, message: RegExp): Promise<void> {
    await assert.rejects(connectWorker(remoteTemporal(address, env)), message);
  }
});

test('a server that nobody runs is said to be silent', async () => {
  const port = await choosePort(0);
  await assert.rejects(
    connectWorker(localTemporal(`127.0.0.1:${port}`)),
    /No Temporal server answers at .* \(ECONNREFUSED\)/,
  );
});

function presenting({ certificate, key }: KeyPair): NodeJS.ProcessEnv {
  return { TEMPORAL_TLS_CLIENT_CERT_PATH: certificate, TEMPORAL_TLS_CLIENT_KEY_PATH: key };
}
