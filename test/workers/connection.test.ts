import assert from 'node:assert/strict';
import { createServer, type ServerHttp2Stream } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { connect } from '../../workers/temporal/client.ts';
import { remoteTemporal } from '../../workers/temporal/temporal-settings.ts';

/** Answers the first call, which is that of connecting, with an empty message, and each later one as a server that is going down. */
function goingDown(): ReturnType<typeof createServer> {
  let calls = 0;
  return createServer().on('stream', (stream: ServerHttp2Stream) => {
    const [isFirst, type] = [calls++ === 0, { ':status': 200, 'content-type': 'application/grpc' }];
    if (!isFirst) return stream.respond({ ...type, 'grpc-status': '14' }, { endStream: true });
    stream.respond(type, { waitForTrailers: true });
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }));
    stream.end(Buffer.alloc(5));
  });
}

test('a connection is closed while a call waits to be tried again: the call fails, and nothing else', async (t) => {
  const server = goingDown();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  const uncaught: unknown[] = [];
  const onUncaught = (error: unknown): unknown => uncaught.push(error);
  process.on('uncaughtException', onUncaught);
  t.after(() => process.off('uncaughtException', onUncaught));

  const { port } = server.address() as AddressInfo;
  const { client, close } = await connect(remoteTemporal(`127.0.0.1:${port}`, {}));
  assert.match(client.options.identity, /^ratchet \S.*@\S+ \d+$/, 'the history of a run says who asked');
  const call = client.workflowService.getSystemInfo({}).then(
    () => 'answered',
    () => 'failed',
  );
  await delay(50);
  await close();
  assert.equal(await call, 'failed');
  await delay(500);
  assert.deepEqual(uncaught, []);
});
