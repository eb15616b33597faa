import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { Parameters } from '../../engine/index.ts';
import { ResidentWeights, type WeightSource } from '../../engine/server/resident-weights.ts';
import { tinyConfig } from './models.ts';

interface Watched extends WeightSource {
  readonly reads: (Float32Array | null)[];
  closed: number;
}

function source(bytes: number, fail?: () => Error): Watched {
  const watched: Watched = {
    bytes,
    reads: [],
    closed: 0,
    canReadAgain: () => Promise.resolve(true),
    async read(spare) {
      watched.reads.push(spare);
      await setTimeout(1);
      if (fail) throw fail();
      return new Parameters(tinyConfig, spare ?? undefined);
    },
    async close() {
      await setTimeout(1);
      watched.closed++;
    },
  };
  return watched;
}

/** Work that ends on request. */
function held() {
  const { promise, resolve } = deferred();
  return { work: () => promise, end: resolve };
}

function deferred(): { promise: Promise<void>; resolve: () => void } {
  let resolve = (): void => undefined;
  const promise = new Promise<void>((done) => (resolve = done));
  return { promise, resolve };
}

const nothing = (): Promise<void> => Promise.resolve();

test('weights are loaded once for all users, and stay while there is room', async () => {
  const residents = new ResidentWeights(() => 20);
  const [a, b] = [source(10), source(10)];
  await Promise.all([residents.use(a, nothing), residents.use(a, nothing), residents.use(b, nothing)]);
  await residents.use(a, nothing);
  assert.deepEqual([a.reads.length, b.reads.length, a.closed, b.closed], [1, 1, 0, 0]);
  assert.equal(residents.bytes, 20);
});

test('the least recently used weights make room, and the next ones reuse their memory', async () => {
  const residents = new ResidentWeights(() => 20);
  const [a, b, c] = [source(10), source(10), source(10)];
  const memory = await residents.use(a, async ({ flat }) => flat);
  await residents.use(b, nothing);
  await residents.use(c, nothing);
  assert.deepEqual([a.closed, b.closed], [1, 0]);
  assert.deepEqual(c.reads, [memory]);
  assert.equal(residents.bytes, 20);
});

test('weights that somebody keeps and that cannot be read again stay, whoever else wants the room', async () => {
  const lost = new Set<WeightSource>();
  const [a, b, c] = [source(10), source(10), source(10)];
  for (const each of [a, b, c]) Object.assign(each, { canReadAgain: async () => !lost.has(each) });
  const residents = new ResidentWeights(
    () => 10,
    (asked) => asked === a,
  );
  await residents.use(a, nothing);
  lost.add(a).add(b);
  await residents.use(b, nothing);
  assert.deepEqual([a.closed, residents.bytes], [0, 20]);
  await residents.use(c, nothing);
  assert.deepEqual([a.closed, b.closed], [0, 1], 'nobody keeps b');
  await residents.use(a, nothing);
  assert.equal(a.reads.length, 1);
  await residents.drop(a);
  assert.equal(a.closed, 1);
});

test('weights for which there is no room wait until others are not used any more, never beyond the bound', async () => {
  const residents = new ResidentWeights(() => 10);
  const [a, b] = [source(10), source(10)];
  const first = held();
  const using = residents.use(a, first.work);
  await setTimeout(10);
  const waiting = residents.use(b, nothing);
  await residents.use(a, nothing); // loaded weights stay in use meanwhile
  assert.equal(b.reads.length, 0);
  assert.equal(residents.bytes, 10);
  first.end();
  await Promise.all([using, waiting]);
  assert.deepEqual([a.closed, b.reads.length, residents.bytes], [1, 1, 10]);
});

test('a waiter that gives up holds back no others', async () => {
  const residents = new ResidentWeights(() => 10);
  const [a, b] = [source(10), source(10)];
  const first = held();
  const using = residents.use(a, first.work);
  await setTimeout(10);
  const controller = new AbortController();
  const waiting = residents.use(b, nothing, controller.signal);
  controller.abort(new Error('gone'));
  await assert.rejects(waiting, /gone/);
  first.end();
  await using;
  await residents.use(a, nothing);
  assert.deepEqual([a.closed, b.reads.length], [0, 0]);
});

test('a failed load is reported to all its waiters, and to no others', async () => {
  const residents = new ResidentWeights(() => 10);
  const broken = source(10, () => new Error('no such folder'));
  const whole = source(10);
  const told = await Promise.allSettled([residents.use(broken, nothing), residents.use(broken, nothing)]);
  assert.deepEqual(
    told.map(({ status }) => status),
    ['rejected', 'rejected'],
  );
  await residents.use(whole, nothing);
  assert.equal(residents.bytes, 10);
});

test('dropped weights are unloaded when unused, and loaded again on request', async () => {
  const residents = new ResidentWeights(() => 100);
  const a = source(10);
  const first = held();
  const using = residents.use(a, first.work);
  await setTimeout(10);
  await residents.drop(a);
  assert.equal(a.closed, 0);
  first.end();
  await using;
  await setTimeout(10);
  assert.deepEqual([a.closed, residents.bytes], [1, 0]);
  await residents.use(a, nothing);
  assert.equal(residents.bytes, 10);
});

test('weights that are larger than the bound are used alone', async () => {
  const residents = new ResidentWeights(() => 10);
  const [small, large] = [source(5), source(50)];
  await residents.use(small, nothing);
  await residents.use(large, nothing);
  assert.deepEqual([small.closed, residents.bytes], [1, 50]);
});
