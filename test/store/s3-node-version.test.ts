import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));

/** Asks a bucket for an object, then emits two other warnings. */
const script = (port: number): string => `
const { openS3Requests, s3Limits } = await import('./store/s3-requests.ts');
const { grantHere } = await import('./host/grants.ts');
const { lineOfStore } = await import('./store/store-uri.ts');
const location = { bucket: 'runs', prefix: '', endpoint: 'http://127.0.0.1:${port}', region: 'us-east-1', pathStyle: true, sse: null, kmsKeyId: null };
grantHere([lineOfStore(location)]);
process.emitWarning('before S3', 'BeforeWarning');
const requests = openS3Requests(location, s3Limits);
const answer = await requests.run({
  operation: 'GetObject',
  key: 'k',
  send: async ({ client, sdk }) => (await client.send(new sdk.GetObjectCommand({ Bucket: 'runs', Key: 'k' }))).Body.transformToString(),
});
process.emitWarning('after S3', 'AfterWarning');
console.log(JSON.stringify({ answer, left: process.env.AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED ?? null }));
`;

test('S3 is used without a warning about the version of Node, and other warnings are shown', async (t) => {
  const server = createServer((_request, response) => response.end('kept')).listen(0, '127.0.0.1');
  t.after(() => server.close());
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as AddressInfo;
  const args = ['--import', 'tsx', '--input-type=module', '-e', script(port)];
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, {
    cwd: root,
    env: {
      ...selectEnvironment(environmentForAll, process.env),
      AWS_ACCESS_KEY_ID: 'a',
      AWS_SECRET_ACCESS_KEY: 's',
    },
  });
  assert.deepEqual(JSON.parse(stdout), { answer: 'kept', left: null });
  const warnings = stderr.split('\n').filter((line) => line.includes('Warning'));
  assert.deepEqual(
    warnings.map((line) => line.replace(/^\(node:\d+\) /, '')),
    ['BeforeWarning: before S3', 'AfterWarning: after S3'],
    stderr,
  );
});

test('the S3 client supports the oldest Node that Ratchet supports', async () => {
  const enginesOf = async (file: string): Promise<string> =>
    (JSON.parse(await readFile(`${root}${file}`, 'utf8')) as { engines: { node: string } }).engines.node;
  const oldest = Number(/\d+/.exec(await enginesOf('package.json'))?.[0]);
  const wanted = /^>=(\d+)\.0\.0$/.exec(await enginesOf('node_modules/@aws-sdk/client-s3/package.json'));
  assert.ok(wanted && Number(wanted[1]) <= oldest, wanted?.[0]);
});
