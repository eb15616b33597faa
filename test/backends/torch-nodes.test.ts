/** The protocol between nodes of a trainer, without Python. `npm run test:engines` tries nodes themselves. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, createServer, type AddressInfo } from 'node:net';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { nodesPlace } from '../../backends/nodes/node-link.ts';
import { Rendezvous } from '../../backends/torch/rendezvous.ts';

const base64 = (text: string): string => Buffer.from(text).toString('base64');

test('ranks find one another’s keys: a question waits for its answer, and other connections do not', async (t) => {
  const rendezvous = new Rendezvous();
  const server = createServer((socket) => rendezvous.serve(socket)).listen(0, '127.0.0.1');
  t.after(() => server.close());
  await once(server, 'listening');
  const open = () => {
    const socket = connect((server.address() as AddressInfo).port, '127.0.0.1');
    t.after(() => socket.destroy());
    const lines = createInterface(socket)[Symbol.asyncIterator]();
    return async (question: object): Promise<unknown> => {
      socket.write(`${JSON.stringify(question)}\n`);
      return JSON.parse((await lines.next()).value as string);
    };
  };
  const [one, other] = [open(), open()];
  const waiting = one({ op: 'wait', keys: ['a', 'b'], ms: 60_000 });
  assert.deepEqual(await other({ op: 'check', keys: ['a'] }), { result: false });
  await other({ op: 'set', key: 'a', value: base64('x') });
  assert.deepEqual(await other({ op: 'add', key: 'b', amount: 2 }), { result: 2 });
  assert.deepEqual(await waiting, {});
  assert.deepEqual(await one({ op: 'add', key: 'b', amount: 3 }), { result: 5 });
  assert.deepEqual(await one({ op: 'get', key: 'a' }), { result: base64('x') });
  const [x, y] = [base64('x'), base64('y')];
  assert.deepEqual(await one({ op: 'compare_set', key: 'a', expected: y, desired: y }), { result: x });
  assert.deepEqual(await one({ op: 'compare_set', key: 'a', expected: x, desired: y }), { result: y });
  assert.deepEqual(await one({ op: 'compare_set', key: 'c', expected: '', desired: y }), { result: y });
  assert.deepEqual(await one({ op: 'count' }), { result: 3 });
  assert.deepEqual(await one({ op: 'delete', key: 'c' }), { result: true });
  assert.deepEqual(await one({ op: 'wait', keys: ['c'], ms: 5 }), {
    error: 'Timed out after 5 ms waiting for other ranks (c).',
  });
});

test('the first node is where torch.distributed’s variables say', () => {
  assert.equal(nodesPlace({}), null);
  assert.deepEqual(nodesPlace({ MASTER_ADDR: 'node0' }), { address: 'node0', port: 29_500 });
  assert.deepEqual(nodesPlace({ MASTER_ADDR: 'node0', MASTER_PORT: '4' }), { address: 'node0', port: 4 });
  assert.throws(() => nodesPlace({ MASTER_ADDR: 'node0', MASTER_PORT: 'x' }), { code: 'ConfigInvalid' });
});
