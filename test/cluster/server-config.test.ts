import assert from 'node:assert/strict';
import { createPublicKey, createVerify, type JsonWebKey } from 'node:crypto';
import { test } from 'node:test';
import { dynamicConfig, serverConfig, type ServerConfig, serverServices } from './server-config.ts';
import { startKeyServer } from './tokens.ts';

const ports = Object.fromEntries(
  serverServices.map((service, i) => [service, { grpc: 7_000 + i, membership: 6_000 + i }]),
) as ServerConfig['ports'];
const plain: ServerConfig = {
  ports,
  database: { port: 5_432, user: 'temporal', password: 'a "word"' },
  dynamicConfigFile: '/limits.yaml',
  metricsPort: 9_000,
};

test('each service has ports of its own on loopback, and all have one database', () => {
  const config = JSON.parse(serverConfig(plain));
  assert.deepEqual(Object.keys(config.services).toSorted(), [
    'frontend',
    'history',
    'internal-frontend',
    'matching',
    'worker',
  ]);
  assert.deepEqual(config.services.history.rpc, { grpcPort: 7_001, membershipPort: 6_001, bindOnIP: '127.0.0.1' });
  const { default: runs, visibility } = config.persistence.datastores;
  assert.deepEqual(
    [runs, visibility].map(({ sql }) => [sql.databaseName, sql.connectAddr, sql.password]),
    [
      ['temporal', '127.0.0.1:5432', 'a "word"'],
      ['temporal_visibility', '127.0.0.1:5432', 'a "word"'],
    ],
  );
  assert.equal('tls' in config.global || 'authorization' in config.global, false);
});

test('with TLS a client needs a certificate, and with tokens a namespace needs a permission', () => {
  const server = { certificate: '/server.pem', key: '/server.key' };
  const config = JSON.parse(
    serverConfig({ ...plain, tls: { server, clientAuthority: '/clients.pem' }, keys: 'http://127.0.0.1:1/keys' }),
  );
  assert.deepEqual(config.global.tls.frontend.server, {
    certFile: '/server.pem',
    keyFile: '/server.key',
    requireClientAuth: true,
    clientCaFiles: ['/clients.pem'],
  });
  const { authorizer, claimMapper, jwtKeyProvider } = config.global.authorization;
  assert.deepEqual([authorizer, claimMapper], ['default', 'default']);
  assert.deepEqual(jwtKeyProvider.keySourceURIs, ['http://127.0.0.1:1/keys']);
});

test('a limit holds for every namespace', () => {
  assert.deepEqual(JSON.parse(dynamicConfig({ 'limit.blobSize.error': 1024, 'system.x': '5s' })), {
    'limit.blobSize.error': [{ value: 1024, constraints: {} }],
    'system.x': [{ value: '5s', constraints: {} }],
  });
});

test('a token is signed with the key that the server finds, and names what it permits', async () => {
  const keys = await startKeyServer();
  try {
    const [header, claims, signature] = keys.token({ namespace: 'team', role: 'write' }).split('.');
    const found = (await (await fetch(keys.url)).json()) as { readonly keys: readonly JsonWebKey[] };
    const key = createPublicKey({ key: found.keys[0]!, format: 'jwk' });
    assert.ok(createVerify('RSA-SHA256').update(`${header}.${claims}`).verify(key, signature!, 'base64url'));
    assert.deepEqual(JSON.parse(Buffer.from(claims!, 'base64url').toString()).permissions, ['team:write']);
  } finally {
    await keys.close();
  }
});
