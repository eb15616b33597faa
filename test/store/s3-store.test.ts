import assert from 'node:assert/strict';
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, beforeEach, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import {
  CreateMultipartUploadCommand,
  ListMultipartUploadsCommand,
  S3Client,
  UploadPartCommand,
} from '@aws-sdk/client-s3';
import { FileStore } from '../../store/file-store.ts';
import { type Store } from '../../store/index.ts';
import { copiesFolder } from '../../store/s3-local-copies.ts';
import { checkS3Store, S3Store, type S3StoreOptions } from '../../store/s3-store.ts';
import { putMade, verifyVersion } from '../../store/version-files.ts';
import { openOptimizer, putOptimizer } from '../../runs/versions/optimizer-state.ts';
import { weightsFolder } from '../../store/weights-folder.ts';
import { startProxy, type Fate, type MisbehavingProxy, type SeenRequest } from '../backends/misbehaving-proxy.ts';
import { credentials, skipWithoutGateway, startGateway, type Gateway } from './s3-gateway.ts';
import { bytes, hasCode, storeContract, text } from './store.contract.ts';

/** Impatient, so that a server which is down, or hangs, is given up in seconds. */
const limits = { connectMs: 500, idleMs: 1_500, patienceMs: 20_000, backoffMs: 10, partBytes: 5 * 1024 * 1024 };

function useCredentials(): void {
  process.env['AWS_ACCESS_KEY_ID'] = credentials.accessKeyId;
  process.env['AWS_SECRET_ACCESS_KEY'] = credentials.secretAccessKey;
}

describe('S3', { skip: skipWithoutGateway }, () => {
  let gateway: Gateway;
  let proxy: MisbehavingProxy;
  let cache: string;

  before(async () => {
    cache = await mkdtemp(path.join(tmpdir(), 'ratchet-s3-cache-'));
    process.env['RATCHET_CACHE'] = cache;
    gateway = await startGateway();
    proxy = await startProxy(gateway.port);
  });
  after(async () => {
    await proxy.close();
    await gateway.remove();
    await rm(cache, { recursive: true, force: true });
  });
  beforeEach(() => {
    proxy.decide = () => 'pass';
    proxy.seen.length = 0;
    proxy.uploadedBytes = 0;
  });

  /** An empty place in the bucket; its stores go through the proxy. */
  function fresh(options: S3StoreOptions = {}) {
    const location = { ...gateway.location(`${randomUUID()}/`), endpoint: `http://127.0.0.1:${proxy.port}` };
    const open = (): S3Store => new S3Store(location, 'run', { ...options, limits: { ...limits, ...options.limits } });
    const fileOf = (key: string): string => path.join(gateway.bucketFolder, location.prefix, 'run', key);
    return { location, open, fileOf, store: open() };
  }

  async function flipBit(file: string): Promise<void> {
    const content = await readFile(file);
    content[0]! ^= 1;
    await writeFile(file, content);
  }

  /** The first `count` requests of an operation meet their fate, the others pass. */
  function first(count: number, operation: string, fate: Fate): void {
    let left = count;
    proxy.decide = (request) => (request.operation === operation && left-- > 0 ? fate : 'pass');
  }

  const seen = (operation: string): SeenRequest[] => proxy.seen.filter((request) => request.operation === operation);

  async function uploadsUnderWay(): Promise<number> {
    const { endpoint, bucket } = gateway.location('');
    const client = new S3Client({ endpoint: endpoint!, region: 'us-east-1', forcePathStyle: true });
    const { Uploads = [] } = await client.send(new ListMultipartUploadsCommand({ Bucket: bucket }));
    client.destroy();
    return Uploads.length;
  }

  test('a version and a state of several files go there in parts, and what is changed or missing is named', async () => {
    const { open, fileOf, location, store } = fresh();
    const size = 6 * 1024 * 1024; // a part and a bit
    const index = 'model.safetensors.index.json';
    const { files } = await putMade(store, { prefix: 'weights/step_1/', pendingAt: 'pending/a/' }, async (folder) => {
      for (const name of ['model-1-of-2.safetensors', 'model-2-of-2.safetensors'])
        await writeFile(path.join(folder, name), randomBytes(size));
      await writeFile(path.join(folder, index), '{}');
    });
    assert.equal(files.file.key, `weights/step_1/${index}`);
    assert.equal(seen('UploadPart').length, 4);
    const version = { weights: 'weights/step_1/', ...files };
    await verifyVersion(open(), version, { anew: new Map() });

    const contents = { '.metadata': Buffer.from('list'), '__0_0.distcp': randomBytes(size) };
    const prefix = 'checkpoints/step_1/';
    const place = { prefix, name: 'optimizer.state', pendingAt: 'pending/b/' };
    const ref = await putOptimizer(store, place, async (folder) => {
      const listed: Record<string, object> = {};
      for (const [name, content] of Object.entries(contents)) {
        await writeFile(path.join(folder, name), content);
        listed[name] = { bytes: content.length, sha256: createHash('sha256').update(content).digest('hex') };
      }
      await writeFile(path.join(folder, 'optimizer.json'), JSON.stringify({ schemaVersion: 1, files: listed }));
      return { folder };
    });
    assert.equal(ref.key, `${prefix}optimizer/optimizer.json`);
    const opened = await openOptimizer(open(), ref);
    assert.ok('folder' in opened && opened.isVerified);
    const copy = path.join(opened.folder, '__0_0.distcp');
    await flipBit(copy); // the copy here is fetched again
    await openOptimizer(open(), ref);
    assert.deepEqual(await readFile(copy), contents['__0_0.distcp']);
    for (const [key, read] of [
      ['weights/step_1/model-2-of-2.safetensors', () => verifyVersion(open(), version, { anew: new Map() })],
      [`${prefix}optimizer/__0_0.distcp`, () => openOptimizer(open(), ref)],
    ] as const) {
      await rm(copiesFolder(location), { recursive: true });
      await flipBit(fileOf(key));
      await assert.rejects(read(), hasCode('CheckpointDamaged', key));
      await rm(fileOf(key));
      await assert.rejects(read(), hasCode('CheckpointDamaged', path.basename(key)));
    }
  });

  storeContract('S3Store', async () => {
    const { open, fileOf } = fresh();
    return { store: open(), other: open(), damage: (key) => flipBit(fileOf(key)) };
  });

  describe('a server in trouble', () => {
    const passing: Readonly<Record<string, Fate>> = {
      'answers 503 SlowDown': { status: 503, code: 'SlowDown' },
      'answers 500': { status: 500, code: 'InternalError' },
      'answers 409 to a conditional write': { status: 409, code: 'ConditionalRequestConflict' },
      hangs: 'hang',
      'cuts the connection': 'cut request',
      'loses the connection in the middle of a body': 'cut upload',
      'is slow': { delayMs: 300 },
    };
    for (const [trouble, fate] of Object.entries(passing)) {
      test(`that ${trouble} is asked again until it works`, async () => {
        const { store } = fresh();
        const times = fate === 'hang' ? 1 : 3;
        first(times, 'PutObject', fate);
        assert.equal((await store.putIfAbsent('k', bytes('12'))).stored, true);
        const ofAnswers: Fate = typeof fate === 'string' && fate.startsWith('cut') ? 'cut answer' : fate;
        first(times, 'GetObject', ofAnswers);
        assert.equal(text(await store.read('k')), '12');
        first(1, 'ListObjectsV2', ofAnswers);
        assert.deepEqual(await store.list(''), ['k']);
      });
    }

    test('that refuses connections for a second is waited for', async () => {
      const { store } = fresh();
      await store.put('before', bytes('1'));
      await proxy.refuse();
      const writing = store.put('k', bytes('2'));
      await delay(1_000);
      assert.deepEqual(
        proxy.seen.filter(({ url }) => url.includes('/k')),
        [],
      );
      await proxy.accept();
      await writing;
      assert.deepEqual(await store.list(''), ['before', 'k']);
    });

    test('that is down for a second is waited for', async () => {
      const { store } = fresh();
      await store.put('before', bytes('1'));
      await gateway.stop();
      const writing = store.put('k', bytes('2'));
      await delay(1_000);
      await gateway.start();
      await writing;
      assert.deepEqual(await store.list(''), ['before', 'k']);
    });

    test('that stays down is StoreUnavailable, named, worth asking again, and then works', async () => {
      const { store } = fresh({ limits: { patienceMs: 300 } });
      proxy.decide = () => ({ status: 503, code: 'SlowDown' });
      await assert.rejects(store.put('a/k', bytes('1')), (error: unknown) => {
        hasCode('StoreUnavailable', 'PutObject', 'a/k', `127.0.0.1:${proxy.port}`, 'SlowDown', '503', 'tries')(error);
        assert((error as { isRetryable: boolean }).isRetryable);
        assert(!JSON.stringify(error, Object.getOwnPropertyNames(error)).includes(credentials.secretAccessKey));
        return true;
      });
      proxy.decide = () => 'pass';
      await store.put('a/k', bytes('1'));
      assert.equal(text(await store.read('a/k')), '1');
    });

    test('with no room left is StoreFull', async () => {
      const { store } = fresh({ limits: { patienceMs: 100 } });
      proxy.decide = () => ({ status: 507, code: 'InsufficientStorage' });
      await assert.rejects(store.put('k', bytes('1')), hasCode('StoreFull', 'k', 'Free some space'));
    });

    test('that refuses the credentials is asked once; a run waits for them, a start is refused', async () => {
      const { store, location } = fresh();
      proxy.decide = () => ({ status: 403, code: 'AccessDenied' });
      await assert.rejects(store.put('k', bytes('1')), hasCode('StoreUnavailable', 'AccessDenied', 'credentials'));
      assert.equal(seen('PutObject').length, 1);
      await assert.rejects(checkS3Store(location, limits), hasCode('ConfigInvalid', 'AccessDenied', 'credentials'));
    });

    test('whose answer is lost has stored once, and the writer knows that it won', async () => {
      const { store } = fresh();
      first(1, 'PutObject', 'lose answer');
      assert.equal((await store.putIfAbsent('k', bytes('mine'))).stored, true);
      assert.equal(seen('PutObject').length, 2);
      const second = await store.putIfAbsent('k', bytes('mine'));
      assert.equal(second.stored, false, 'the same bytes by another writer do not win');
    });
  });

  test('a wrong key is told as that: what lies there is not gone', async (t) => {
    t.after(useCredentials);
    const location = gateway.location(`${randomUUID()}/`);
    await new S3Store(location, 'run').put('run.json', bytes('{}'));
    for (const wrong of [{ AWS_ACCESS_KEY_ID: 'nobody' }, { AWS_SECRET_ACCESS_KEY: 'wrong' }]) {
      Object.assign(process.env, wrong);
      // Another name of the server has a client, and so credentials, of its own.
      const endpoint = `http://${Object.keys(wrong)[0] === 'AWS_ACCESS_KEY_ID' ? 'localhost' : '[::ffff:127.0.0.1]'}:${gateway.port}`;
      const store = new S3Store({ ...location, endpoint }, 'run', { limits });
      await assert.rejects(store.read('run.json'), /Expected credentials that may get/, JSON.stringify(wrong));
      useCredentials();
    }
  });

  describe('a wrong answer', () => {
    const wrong: Readonly<Record<string, Fate>> = {
      'with a flipped bit': 'flip answer',
      'of 200 without anything': 'empty answer',
      'of 200 with the right headers and no body': 'empty body',
      'cut to its half, as if that were all': 'half answer',
      'that is another object': 'other answer',
      'of 404 for what is there': { status: 404, code: 'NoSuchKey' },
    };
    for (const [what, fate] of Object.entries(wrong)) {
      test(`${what} is requested again: by key, by reference, after a lost race, in a folder and in a log`, async () => {
        const { store, open } = fresh();
        const ref = await store.put('a/k', bytes('what was stored'));
        await store.put('a/other', bytes('something else altogether'));
        await store.append('metrics.jsonl', 'one\n');
        await store.append('metrics.jsonl', 'two\n');
        const other = async (): Promise<void> => {
          proxy.decide = () => 'pass';
          await store.read('a/other');
          first(2, 'GetObject', fate);
        };
        await other();
        assert.equal(text(await store.read('a/k')), 'what was stored');
        await other();
        assert.equal(text(await store.get(ref)), 'what was stored');
        await other();
        assert.equal(text((await store.putIfAbsent('a/k', bytes('mine'))).bytes), 'what was stored');
        await other();
        const folder = await open().localFolder('a/');
        assert.equal(await readFile(path.join(folder, 'k'), 'utf8'), 'what was stored');
        await store.verify(ref);
        await other();
        assert.equal(text(await store.read('metrics.jsonl')), 'one\ntwo\n');
        assert.equal(seen('GetObject').length > 10, true);
      });
    }

    test('that stays the same is damage, and the error names what was expected and what was found', async () => {
      const { store } = fresh();
      const ref = await store.put('a/k', bytes('what was stored'));
      const flipped = Buffer.from('what was stored');
      flipped[flipped.length >> 1]! ^= 1;
      const found = createHash('sha256').update(flipped).digest('hex').slice(0, 12);
      proxy.decide = ({ operation }) => (operation === 'GetObject' ? 'flip answer' : 'pass');
      const damage = hasCode('CheckpointDamaged', 'a/k', ref.sha256.slice(0, 12), found);
      await assert.rejects(store.get(ref), damage);
      await assert.rejects(store.read('a/k'), damage);
      await assert.rejects(store.putIfAbsent('a/k', bytes('mine')), damage);
      await assert.rejects(store.localFolder('a/'), damage);
      await assert.rejects(store.verify(ref), damage);
    });

    test('to a list, a head or a write does not count: each is asked again', async () => {
      const { store, fileOf } = fresh();
      await store.put('a/k', bytes('1'));
      first(2, 'ListObjectsV2', 'empty answer');
      assert.deepEqual(await store.list('a/'), ['a/k']);
      first(2, 'PutObject', 'pretend');
      await store.put('a/k2', bytes('2'));
      assert.equal(await readFile(fileOf('a/k2'), 'utf8'), '2');
      first(2, 'PutObject', 'pretend');
      assert.equal((await store.putIfAbsent('a/k3', bytes('3'))).stored, true);
      assert.equal(await readFile(fileOf('a/k3'), 'utf8'), '3');
      first(1, 'GetObject', 'empty answer');
      assert.equal(text(await store.readRange('a/k3', 0, 5)), '3');
      first(1, 'GetObject', { status: 404, code: 'NoSuchKey' });
      assert.equal(text(await store.readRange('a/k3', 0, 5)), '3');
    });

    test('about a large object is found in whichever part it is', async () => {
      const { store } = fresh();
      const content = randomBytes(12 * 1024 * 1024);
      const ref = await store.put('weights/model.safetensors', content);
      for (const part of [0, 1, 2]) {
        let gets = 0;
        proxy.decide = ({ operation }) => (operation === 'GetObject' && gets++ === part ? 'flip answer' : 'pass');
        assert.equal(Buffer.compare(await store.get(ref), content), 0);
      }
    });

    test('about objects that others stored without a sha256 is found by ETag', async () => {
      const { store, fileOf } = fresh();
      await store.put('a/ours', bytes('ours'));
      await writeFile(fileOf('a/theirs'), 'copied there by hand');
      first(1, 'GetObject', 'flip answer');
      assert.equal(text(await store.read('a/theirs')), 'copied there by hand');
    });

    test('that an object is missing is asked twice, by two kinds of request, before it is believed', async () => {
      const { store } = fresh();
      assert.equal(await store.read('never'), null);
      assert.deepEqual([seen('GetObject').length, seen('HeadObject').length], [1, 1]);
    });
  });

  describe('a large object', () => {
    const content = randomBytes(16 * 1024 * 1024 + 1);
    const digest = createHash('sha256').update(content).digest('hex');

    test('travels in parts, from memory and from a file, and is the same afterwards', async (t) => {
      const { store, open } = fresh();
      const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-s3-file-'));
      t.after(() => rm(folder, { recursive: true }));
      await writeFile(path.join(folder, 'model'), content);
      const refs = [await store.put('a', content), await store.putFile('b', path.join(folder, 'model'))];
      assert.ok(
        seen('UploadPart').length >= 8,
        'four parts each; one that a busy machine keeps too long is sent again',
      );
      for (const ref of refs) {
        assert.deepEqual([ref.sha256, ref.bytes], [digest, content.byteLength]);
        assert.equal(Buffer.compare(await open().get(ref), content), 0);
        await store.verify(ref);
      }
    });

    const troubles: Readonly<Record<string, readonly [operation: string, fate: Fate]>> = {
      'a connection cut in the middle of a part': ['UploadPart', 'cut request'],
      'a part whose answer is lost': ['UploadPart', 'lose answer'],
      'SlowDown on a part': ['UploadPart', { status: 503, code: 'SlowDown' }],
      'an error when the parts are put together': ['CompleteMultipartUpload', { status: 500, code: 'InternalError' }],
      'the answer to putting together lost': ['CompleteMultipartUpload', 'lose answer'],
      'an answer cut in the middle': ['GetObject', 'cut answer'],
      'a download that hangs': ['GetObject', 'hang'],
    };
    for (const [name, [operation, fate]] of Object.entries(troubles)) {
      test(`survives ${name}`, async () => {
        const { store } = fresh();
        first(fate === 'hang' ? 1 : 2, operation, fate);
        const ref = await store.put('weights/model.safetensors', content);
        assert.equal(Buffer.compare(await store.get(ref), content), 0);
        assert.equal(await uploadsUnderWay(), 0);
      });
    }

    test('whose writer died leaves parts, which are found once nothing came for long, and only those of this run', async () => {
      const { store, location } = fresh();
      const { endpoint, bucket } = gateway.location('');
      const client = new S3Client({ endpoint: endpoint!, region: 'us-east-1', forcePathStyle: true });
      const beginAt = async (run: string) => {
        const at = { Bucket: bucket, Key: `${location.prefix}${run}/weights/model` };
        const { UploadId } = await client.send(new CreateMultipartUploadCommand(at));
        await client.send(new UploadPartCommand({ ...at, UploadId, PartNumber: 1, Body: content.subarray(0, 1000) }));
        return UploadId!;
      };
      const id = await beginAt('run');
      const other = await beginAt('run2');
      const { uploads } = store;
      assert.deepEqual(await uploads.cutOff(3_600_000), [], 'a writer may be alive');
      await delay(1_100); // servers tell seconds
      assert.deepEqual(await uploads.cutOff(1), [{ key: 'weights/model', id, bytes: 1000 }]);
      await uploads.abort({ key: 'weights/model', id });
      await uploads.abort({ key: 'weights/model', id });
      assert.deepEqual(await uploads.cutOff(1), []);
      assert.equal(await uploadsUnderWay(), 1);
      const [left] = (await new S3Store(location, 'run2', { limits }).uploads.cutOff(1)) as readonly {
        readonly id: string;
      }[];
      assert.equal(left?.id, other);
      await new S3Store(location, 'run2', { limits }).uploads.abort({ key: 'weights/model', id: other });
      client.destroy();
    });

    test('is not listed where the server refuses to: the reason is told, and nothing is removed', async () => {
      const { store } = fresh();
      proxy.decide = ({ operation }) =>
        operation === 'ListMultipartUploads' ? { status: 403, code: 'AccessDenied' } : 'pass';
      assert.equal(await store.uploads.cutOff(1), 'HTTP 403 AccessDenied');
    });

    test('that cannot be stored leaves no parts behind', async () => {
      const { store } = fresh({ limits: { patienceMs: 500 } });
      proxy.decide = ({ operation }) => (operation === 'UploadPart' ? { status: 500, code: 'InternalError' } : 'pass');
      await assert.rejects(store.put('k', content), hasCode('StoreUnavailable', 'UploadPart', 'k'));
      assert.equal(await uploadsUnderWay(), 0);
      assert.equal(await store.read('k'), null);
    });
  });

  describe('the check at the start', () => {
    test('passes with a server that keeps to conditional writes, and leaves nothing behind', async () => {
      const { location } = fresh();
      await checkS3Store(location, limits);
      assert.deepEqual(await new S3Store(location, '.ratchet-check', { limits }).list(''), []);
    });

    for (const header of ['if-none-match', 'if-match'] as const) {
      test(`refuses a server that ignores ${header}, and says what was expected and what came`, async () => {
        const { location } = fresh();
        proxy.decide = ({ headers }) => (header in headers ? 'ignore conditions' : 'pass');
        const name = header === 'if-match' ? 'If-Match' : 'If-None-Match';
        await assert.rejects(
          checkS3Store(location, limits),
          hasCode('Unsupported', `127.0.0.1:${proxy.port}`, name, 'expected HTTP 412, came 200'),
        );
      });
    }

    test('refuses a server that does not know them', async () => {
      const { location } = fresh();
      proxy.decide = () => ({ status: 501, code: 'NotImplemented' });
      await assert.rejects(checkS3Store(location, limits), hasCode('Unsupported', '501', 'NotImplemented'));
    });

    test('refuses a bucket that is not there', async () => {
      const { location } = fresh();
      await assert.rejects(
        checkS3Store({ ...location, bucket: 'no-such-bucket' }, limits),
        hasCode('ConfigInvalid', 'no-such-bucket', 'Create the bucket'),
      );
    });
  });

  describe('a log', () => {
    const line = (i: number): string => `${JSON.stringify({ step: i, text: 'x'.repeat(200) })}\n`;
    const lines = (count: number): string => Array.from({ length: count }, (_, i) => line(i)).join('');

    test('of 150 lines costs little more than its lines, and is one key', async () => {
      const { store, open, location } = fresh();
      for (let i = 0; i < 150; i++) await store.append('metrics.jsonl', line(i));
      assert(proxy.seen.length < 2 * 150, `${proxy.seen.length} requests`);
      const ratio = proxy.uploadedBytes / Buffer.byteLength(lines(150));
      assert(ratio < 4, `${ratio.toFixed(1)} times its bytes were uploaded`);
      assert.equal(text(await open().read('metrics.jsonl')), lines(150));
      assert.deepEqual(await store.list(''), ['metrics.jsonl']);
      await store.removeAll('metrics.jsonl');
      assert.deepEqual(
        await readdir(path.join(gateway.bucketFolder), { recursive: true }).then((all) =>
          all.filter((name) => name.includes(`${location.prefix}run/metrics`)),
        ),
        [],
      );
      await store.append('metrics.jsonl', line(0));
      assert.equal(text(await open().read('metrics.jsonl')), line(0));
    });

    test('with two writers holds every line once', async () => {
      const { location } = fresh();
      // Like two processes: clients that share nothing.
      const writers = [9, 10].map(
        (attemptsMax) => new S3Store(location, 'run', { limits: { ...limits, attemptsMax } }),
      );
      await Promise.all(
        writers.map(async (store, writer) => {
          for (let i = 0; i < 40; i++) await store.append('logs/a.log', `${writer} ${i}\n`);
        }),
      );
      const found = text(await writers[0]!.read('logs/a.log'))!
        .trim()
        .split('\n');
      for (const writer of [0, 1]) {
        const own = found.filter((entry) => entry.startsWith(`${writer} `));
        assert.deepEqual(
          own,
          Array.from({ length: 40 }, (_, i) => `${writer} ${i}`),
        );
      }
    });

    test('that was being folded when its writer was killed is whole', async () => {
      const { store, open } = fresh({ limits: { patienceMs: 50 } });
      proxy.decide = ({ operation }) =>
        operation === 'DeleteObjects' ? { status: 500, code: 'InternalError' } : 'pass';
      for (let i = 0; i < 200; i++) await store.append('metrics.jsonl', line(i));
      assert(seen('DeleteObjects').length > 0);
      proxy.decide = () => 'pass';
      assert.equal(text(await open().read('metrics.jsonl')), lines(200));
      await open().append('metrics.jsonl', line(200));
      assert.equal(text(await open().read('metrics.jsonl')), lines(201));
    });

    test('line whose answer is lost stands there once', async () => {
      const { store } = fresh();
      await store.append('metrics.jsonl', line(0));
      first(1, 'PutObject', 'lose answer');
      await store.append('metrics.jsonl', line(1));
      assert.equal(text(await store.read('metrics.jsonl')), lines(2));
    });
  });

  describe('a local folder', () => {
    const files = { 'config.json': '{}', 'model.safetensors': 'weights', 'deep/x': 'x' };
    const fill = async (store: Store, prefix = 'weights/step_1/'): Promise<void> => {
      for (const [name, content] of Object.entries(files)) await store.put(prefix + name, bytes(content));
    };

    test('holds the objects below a prefix, is below the allowed root, and is kept', async () => {
      const { store, location, open } = fresh();
      await fill(store);
      await fill(store, 'weights/step_10/');
      const folder = await store.localFolder('weights/step_1/');
      assert.equal(folder, path.join(copiesFolder(location), 'run/weights/step_1'));
      for (const [name, content] of Object.entries(files))
        assert.equal(await readFile(path.join(folder, name), 'utf8'), content);
      assert.deepEqual((await readdir(path.dirname(folder))).sort(), ['step_1', 'step_1.copied.json']);
      proxy.seen.length = 0;
      assert.equal(await open().localFolder('weights/step_1'), folder);
      assert.deepEqual([seen('GetObject').length, proxy.seen.length], [0, 1]);
    });

    test('follows what changes in the store', async () => {
      const { store } = fresh();
      await fill(store);
      const folder = await store.localFolder('weights/step_1/');
      await store.put('weights/step_1/config.json', bytes('{"new":1}'));
      await store.removeAll('weights/step_1/deep/');
      await store.localFolder('weights/step_1/');
      assert.equal(await readFile(path.join(folder, 'config.json'), 'utf8'), '{"new":1}');
      await assert.rejects(stat(path.join(folder, 'deep/x')), { code: 'ENOENT' });
    });

    test('is safe when several ask for it at once', async () => {
      const { location, store } = fresh();
      await fill(store);
      const others = [9, 10, 11].map(
        (attemptsMax) => new S3Store(location, 'run', { limits: { ...limits, attemptsMax } }),
      );
      const [folder] = await Promise.all([store, ...others].map((one) => one.localFolder('weights/step_1/')));
      assert.deepEqual((await readdir(folder!, { recursive: true })).sort(), [
        'config.json',
        'deep',
        'deep/x',
        'model.safetensors',
      ]);
    });

    test('with a damaged object is refused by its name', async () => {
      const { store, fileOf } = fresh();
      await fill(store);
      await flipBit(fileOf('weights/step_1/model.safetensors'));
      await assert.rejects(
        store.localFolder('weights/step_1/'),
        hasCode('CheckpointDamaged', 'model.safetensors', 'sha256'),
      );
    });

    test('whose copy was damaged on this machine is fetched again when it is verified', async () => {
      const { store } = fresh();
      const ref = await store.put('weights/step_1/model.safetensors', bytes('weights'));
      const folder = await store.localFolder('weights/step_1/');
      await flipBit(path.join(folder, 'model.safetensors'));
      await store.verify(ref);
      assert.equal(await readFile(path.join(folder, 'model.safetensors'), 'utf8'), 'weights');
    });

    test('of an adapter has its base where the adapter looks for it', async () => {
      const { store } = fresh();
      await store.put('weights/step_0/config.json', bytes('{}'));
      await store.put('weights/step_3/adapter_config.json', bytes('{"base_model_name_or_path":"../step_0"}'));
      const folder = await weightsFolder(store, 'weights/step_3/');
      assert.equal(await readFile(path.join(folder, '../step_0/config.json'), 'utf8'), '{}');
    });

    test('goes when others were used since and there are too many, but never right after its use', async () => {
      const { store } = fresh({ copies: { foldersMax: 2, graceMs: 60_000 } });
      const folders = [];
      for (const step of [1, 2, 3]) {
        await fill(store, `weights/step_${step}/`);
        folders.push(await store.localFolder(`weights/step_${step}/`));
      }
      for (const folder of folders) assert((await stat(folder)).isDirectory());
      const long = new Date(Date.now() - 3_600_000);
      await utimes(`${folders[0]}.copied.json`, long, long);
      await store.localFolder('weights/step_3/');
      await assert.rejects(stat(folders[0]!), { code: 'ENOENT' });
      assert((await stat(folders[1]!)).isDirectory());
      assert.equal(await readFile(path.join(await store.localFolder('weights/step_1/'), 'config.json'), 'utf8'), '{}');
    });
  });

  test('a run copied from S3 to a folder and back is the same run, and its log continues', async (t) => {
    const { store } = fresh();
    const { store: back } = fresh();
    const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-s3-copy-'));
    t.after(() => rm(folder, { recursive: true }));
    const onDisk = new FileStore(path.join(folder, 'run'));
    await store.put('run.json', bytes('{"schemaVersion":1}'));
    await store.putIfAbsent('lineages/main/steps/step_0.json', bytes('{"step":0}'));
    await store.put('weights/step_0/model.safetensors', randomBytes(6 * 1024 * 1024));
    for (let i = 0; i < 70; i++) await store.append('metrics.jsonl', `{"step":${i}}\n`);

    const copy = async (from: Store, to: Store): Promise<void> => {
      for (const key of await from.list('')) await to.put(key, (await from.read(key))!);
    };
    const contents = async (of: Store): Promise<[string, string][]> => {
      const keys = await of.list('');
      return Promise.all(
        keys.map(async (key) => [
          key,
          createHash('sha256')
            .update((await of.read(key))!)
            .digest('hex'),
        ]),
      );
    };
    await copy(store, onDisk);
    await copy(onDisk, back);
    assert.deepEqual(await contents(onDisk), await contents(store));
    assert.deepEqual(await contents(back), await contents(store));
    for (const one of [onDisk, back]) {
      assert.equal((await one.putIfAbsent('lineages/main/steps/step_0.json', bytes('other'))).stored, false);
      await one.append('metrics.jsonl', '{"step":70}\n');
      assert.equal(text(await one.read('metrics.jsonl'))!.split('\n').length, 72);
    }
  });
});
