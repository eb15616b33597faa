import assert from 'node:assert/strict';
import { copyFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { connect } from '../../workers/temporal/client.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { localTemporal, remoteTemporal } from '../../workers/temporal/temporal-settings.ts';
import { innermostMessage } from '../../workers/temporal/innermost-message.ts';
import { connectWorker } from '../../workers/temporal/temporal-link.ts';
import { eventually, temporaryFolder } from './fixtures/processes.ts';
import { startTemporalServer } from './fixtures/temporal-server.ts';
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
