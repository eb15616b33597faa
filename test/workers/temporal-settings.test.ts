import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { storeCredentials } from '../../store/s3-credentials.ts';
import { takeCredentials } from '../../workers/temporal/credentials.ts';
import { localTemporal, remoteTemporal } from '../../workers/temporal/temporal-settings.ts';
import { temporaryFolder } from './fixtures/processes.ts';
import { hasOpenssl, makeCertificates } from './fixtures/tls.ts';

const skip = hasOpenssl() ? false : 'there is no openssl to make certificates with';
const read = (env: NodeJS.ProcessEnv) => remoteTemporal('temporal.test:7233', env);

test('without settings a server is reached plainly, in the namespace default; our own always', () => {
  const plain = { address: 'temporal.test:7233', namespace: 'default', tls: null, apiKey: null, reread: null };
  assert.deepEqual(read({}), plain);
  assert.deepEqual(read({ TEMPORAL_TLS: '', TEMPORAL_TLS_SERVER_CA_CERT_PATH: '', TEMPORAL_API_KEY: '' }), plain);
  assert.deepEqual(localTemporal('temporal.test:7233'), plain);
});

test(
  'an API key, a certificate or a server name means TLS; TEMPORAL_TLS=false beside them is refused',
  { skip },
  (t) => {
    const { authority, client } = makeCertificates(t);
    assert.deepEqual(read({ TEMPORAL_TLS: 'true' }).tls, {});
    assert.deepEqual(read({ TEMPORAL_API_KEY: 'k' }).tls, {});
    assert.deepEqual(read({ TEMPORAL_TLS_SERVER_NAME: 'other' }).tls, { serverNameOverride: 'other' });
    const pem = readFileSync(authority.certificate);
    assert.deepEqual(read({ TEMPORAL_TLS_SERVER_CA_CERT_PATH: authority.certificate }).tls, {
      serverRootCACertificate: pem,
    });
    assert.deepEqual(read({ TEMPORAL_TLS_SERVER_CA_CERT_DATA: pem.toString() }).tls, { serverRootCACertificate: pem });
    const pair = { TEMPORAL_TLS_CLIENT_CERT_PATH: client.certificate, TEMPORAL_TLS_CLIENT_KEY_PATH: client.key };
    assert.deepEqual(read(pair).tls, {
      clientCertPair: { crt: readFileSync(client.certificate), key: readFileSync(client.key) },
    });
    assert.throws(
      () => read({ TEMPORAL_TLS: 'false', TEMPORAL_API_KEY: 'k' }),
      /TEMPORAL_API_KEY is set too, which needs TLS/,
    );
    assert.equal(read({ TEMPORAL_TLS: '0' }).tls, null);
  },
);

test('what cannot be used is refused by the name of its variable', { skip }, (t) => {
  const { authority, server, client } = makeCertificates(t);
  const noPem = join(temporaryFolder(t), 'no.pem');
  writeFileSync(noPem, 'this is no PEM');
  const cases: readonly [NodeJS.ProcessEnv, RegExp][] = [
    [{ TEMPORAL_TLS: 'maybe' }, /TEMPORAL_TLS: expected true or false, got "maybe"/],
    [{ TEMPORAL_TLS_DISABLE_HOST_VERIFICATION: 'true' }, /cannot be honoured/],
    [
      { TEMPORAL_TLS_SERVER_CA_CERT_PATH: '/no/such.pem' },
      /TEMPORAL_TLS_SERVER_CA_CERT_PATH: .*no such file: \/no\/such\.pem/,
    ],
    [{ TEMPORAL_TLS_SERVER_CA_CERT_PATH: noPem }, /no\.pem\): expected a certificate in PEM/],
    [{ TEMPORAL_TLS_SERVER_CA_CERT_PATH: authority.key }, /expected a certificate in PEM/],
    [{ TEMPORAL_TLS_CLIENT_CERT_PATH: client.certificate }, /TEMPORAL_TLS_CLIENT_KEY_PATH is not/],
    [{ TEMPORAL_TLS_CLIENT_KEY_PATH: client.key }, /TEMPORAL_TLS_CLIENT_CERT_PATH is not/],
    [
      { TEMPORAL_TLS_CLIENT_CERT_PATH: client.certificate, TEMPORAL_TLS_CLIENT_KEY_PATH: noPem },
      /expected a private key in PEM/,
    ],
    [
      { TEMPORAL_TLS_CLIENT_CERT_PATH: client.certificate, TEMPORAL_TLS_CLIENT_KEY_PATH: server.key },
      /is not the key of the certificate/,
    ],
    [{ TEMPORAL_API_KEY: 'k', TEMPORAL_API_KEY_FILE: noPem }, /both set/],
    [{ TEMPORAL_API_KEY_FILE: '/no/such' }, /TEMPORAL_API_KEY_FILE: .*no such file/],
  ];
  for (const [env, message] of cases) assert.throws(() => read(env), message);
});

test('an API key that is no header is refused without being repeated', () => {
  assert.throws(
    () => read({ TEMPORAL_API_KEY: 'sécret words' }),
    (error: Error) => /one word of printable ASCII/.test(error.message) && !error.message.includes('words'),
  );
});

test('once a worker has its credentials, code that runs in it finds none in the environment', () => {
  const key = Buffer.alloc(32, 7).toString('base64');
  const env: NodeJS.ProcessEnv = {
    TEMPORAL_ADDRESS: 'a:1',
    TEMPORAL_API_KEY: 'k',
    RATCHET_PAYLOAD_KEY: key,
    RATCHET_X: 'x',
    AWS_ACCESS_KEY_ID: 'id',
    AWS_SECRET_ACCESS_KEY: 'secret',
    AWS_PROFILE: 'p',
  };
  const { temporal, payloadKeys } = takeCredentials(env);
  assert.equal(temporal.apiKey, 'k');
  assert.equal(payloadKeys.length, 1);
  assert.deepEqual(env, { TEMPORAL_ADDRESS: 'a:1', RATCHET_X: 'x', AWS_PROFILE: 'p' });
  assert.deepEqual(storeCredentials(), { accessKeyId: 'id', secretAccessKey: 'secret' }, 'for the store alone');
});
