/** The contract of every store, as tests. An adapter's test file calls this with a way to open fresh, empty stores. */
import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import fc from 'fast-check';
import { RatchetError } from '../../core/errors.ts';
import type { Store } from '../../store/index.ts';

export interface StoreUnderTest {
  readonly store: Store;
  /** Another client of the same place, as another process would have. */
  readonly other: Store;
  /** Flips one bit of what is stored, behind the store's back. */
  readonly damage: (key: string) => Promise<void>;
}

export const bytes = (text: string): Uint8Array => Buffer.from(text);
export const text = (found: Uint8Array | null): string | null => found && Buffer.from(found).toString();

export function hasCode(code: RatchetError['code'], ...words: string[]) {
  return (error: unknown): boolean => {
    assert(error instanceof RatchetError, `expected a RatchetError, got ${String(error)}`);
    assert.equal(error.code, code, error.message);
    for (const word of words) assert(error.message.includes(word), `"${error.message}" does not name ${word}`);
    return true;
  };
}

export function storeContract(name: string, open: (context: TestContext) => Promise<StoreUnderTest>): void {
  describe(`${name} keeps the promises of a store`, () => {
    test('what was put is found again, by its reference and by its key, also by another client', async (t) => {
      const { store, other } = await open(t);
      await fc.assert(
        fc.asyncProperty(
          fc.uint8Array({ maxLength: 2_000 }),
          fc.stringMatching(/^[a-z0-9_]{1,8}(\/[a-z0-9_]{1,8}){0,3}\.x$/),
          async (content, key) => {
            const ref = await store.put(key, content);
            assert.deepEqual([ref.key, ref.bytes], [key, content.byteLength]);
            assert.deepEqual(Buffer.from(await other.get(ref)), Buffer.from(content));
            assert.deepEqual(Buffer.from((await other.read(key))!), Buffer.from(content));
          },
        ),
        { numRuns: 25 },
      );
    });

    test('sizes and streams of objects and logs are those of what is stored', async (t) => {
      const { store, other } = await open(t);
      const large = Buffer.alloc(9 * 1024 * 1024 + 7, 'abcdefg');
      await store.put('weights/step_1/model.safetensors', large);
      await store.put('run.json', bytes('{}'));
      await store.put('none.json', bytes(''));
      for (const line of ['one', 'two', 'three']) await store.append('metrics.jsonl', `${line}\n`);
      const sizes = new Map<string, number>();
      for await (const { key, bytes: size } of other.sizes('')) sizes.set(key, size);
      assert.equal(sizes.get('run.json'), 2);
      assert.equal(sizes.get('weights/step_1/model.safetensors'), large.length);
      const below: string[] = [];
      for await (const { key } of other.sizes('weights/')) below.push(key);
      assert.deepEqual(below, ['weights/step_1/model.safetensors']);
      for await (const { key } of other.sizes('nothing/')) assert.fail(key);

      const streamed = async (key: string): Promise<Buffer | null> => {
        const found = await other.stream(key);
        if (found === null) return null;
        const pieces: Uint8Array[] = [];
        for await (const piece of found.content) pieces.push(piece);
        const whole = Buffer.concat(pieces);
        assert.equal(whole.length, found.bytes);
        return whole;
      };
      assert.deepEqual(await streamed('weights/step_1/model.safetensors'), large);
      assert.equal(String(await streamed('metrics.jsonl')), 'one\ntwo\nthree\n');
      assert.equal(String(await streamed('none.json')), '');
      assert.equal(await streamed('nothing.json'), null);
    });

    test('a key that was never written reads as nothing, and a reference to it is a damaged checkpoint', async (t) => {
      const { store } = await open(t);
      assert.equal(await store.read('weights/step_1/model.safetensors'), null);
      const ref = { key: 'weights/step_1/model.safetensors', sha256: '0'.repeat(64), bytes: 7 };
      await assert.rejects(store.get(ref), hasCode('CheckpointDamaged', ref.key, 'missing'));
    });

    test('below a key that holds an object there is nothing', async (t) => {
      const { store } = await open(t);
      await store.put('a', bytes('1'));
      assert.equal(await store.read('a/b'), null);
      assert.deepEqual(await store.list('a/'), []);
    });

    test('damaged bytes are noticed and named', async (t) => {
      const { store, damage } = await open(t);
      const ref = await store.put('checkpoints/step_3/optimizer.safetensors', bytes('moments'));
      await damage(ref.key);
      await assert.rejects(store.get(ref), hasCode('CheckpointDamaged', ref.key, ref.sha256.slice(0, 12)));
    });

    test('of twenty writers of one key one wins, and all see its bytes', async (t) => {
      const { store, other } = await open(t);
      const results = await Promise.all(
        Array.from({ length: 20 }, (_, i) =>
          [store, other][i % 2]!.putIfAbsent('lineages/main/steps/step_1.json', bytes(`writer ${i}`)),
        ),
      );
      const winners = results.flatMap(({ stored }, i) => (stored ? [i] : []));
      assert.equal(winners.length, 1);
      for (const found of results) assert.equal(text(found.bytes), `writer ${winners[0]}`);
      assert.equal(text(await store.read('lineages/main/steps/step_1.json')), `writer ${winners[0]}`);
      assert.deepEqual(await store.list(''), ['lineages/main/steps/step_1.json']);
    });

    test('a key that is put again holds the newer bytes', async (t) => {
      const { store } = await open(t);
      const before = await store.put('k', bytes('one'));
      const after = await store.put('k', bytes('two'));
      assert.equal(text(await store.get(after)), 'two');
      await assert.rejects(store.get(before), hasCode('CheckpointDamaged', 'k'));
    });

    test('a list holds the keys below a prefix, sorted, and no others', async (t) => {
      const { store } = await open(t);
      for (const key of ['b/step_2/x', 'b/step_10/x', 'b/step_1/y/z', 'b/step_1/a', 'a/x', 'bb/x'])
        await store.put(key, bytes(key));
      assert.deepEqual(await store.list('b/'), ['b/step_1/a', 'b/step_1/y/z', 'b/step_10/x', 'b/step_2/x']);
      assert.deepEqual(await store.list('b/step_1'), ['b/step_1/a', 'b/step_1/y/z', 'b/step_10/x']);
      assert.deepEqual(await store.list('nothing/'), []);
      assert.equal((await store.list('')).length, 6);
    });

    test('removing a folder leaves its neighbours, and removing nothing is fine', async (t) => {
      const { store } = await open(t);
      for (const key of ['w/step_1/x', 'w/step_1/y', 'w/step_10/x']) await store.put(key, bytes(key));
      await store.removeAll('w/step_1/');
      await store.removeAll('w/step_1/');
      await store.removeAll('never/');
      assert.deepEqual(await store.list(''), ['w/step_10/x']);
    });

    test('a list taken while other keys are being removed holds all that stays', async (t) => {
      const { store, other } = await open(t);
      await store.put('c/step_0/manifest.json', bytes('stays'));
      for (let round = 0; round < 10; round++) {
        const leaving = Array.from({ length: 8 }, (_, i) => `c/step_${i + 1}/`);
        await Promise.all(leaving.map((prefix) => store.put(`${prefix}manifest.json`, bytes('goes'))));
        const removing = Promise.all(leaving.map((prefix) => store.removeAll(prefix)));
        for (let i = 0; i < 10; i++) assert.equal((await other.list('c/'))[0], 'c/step_0/manifest.json');
        await removing;
      }
    });

    test('lines that are appended stand one after another', async (t) => {
      const { store } = await open(t);
      for (let i = 0; i < 3; i++) await store.append('logs/attempt_1/train.log', `line ${i}\n`);
      assert.equal(text(await store.read('logs/attempt_1/train.log')), 'line 0\nline 1\nline 2\n');
    });

    test('a log is read from a byte on; beyond its end there is none', async (t) => {
      const { store } = await open(t);
      assert.equal(await store.readFrom('metrics.jsonl', 0), null);
      await store.append('metrics.jsonl', 'one\n');
      await store.append('metrics.jsonl', Uint8Array.of(0xff, 0x0a));
      assert.deepEqual([...(await store.readFrom('metrics.jsonl', 4))!], [0xff, 0x0a]);
      assert.equal((await store.readFrom('metrics.jsonl', 6))?.length, 0);
      assert.equal(await store.readFrom('metrics.jsonl', 7), null);
    });

    test('a range of an object is read by itself, and ends where the object does', async (t) => {
      const { store } = await open(t);
      await store.put('o', bytes('0123456789'));
      assert.equal(text(await store.readRange('o', 2, 3)), '234');
      assert.equal(text(await store.readRange('o', 8, 30)), '89');
      assert.equal((await store.readRange('o', 10, 5))?.length, 0);
      assert.equal(await store.readRange('never', 0, 5), null);
    });

    for (const key of ['../x', 'a/../../x', '/etc/x', '..']) {
      test(`the key ${key} leads out of the run and is refused by every operation`, async (t) => {
        const { store } = await open(t);
        const refused = hasCode('Unsupported', JSON.stringify(key));
        await assert.rejects(store.put(key, bytes('')), refused);
        await assert.rejects(store.putIfAbsent(key, bytes('')), refused);
        await assert.rejects(store.read(key), refused);
        await assert.rejects(store.get({ key, sha256: '', bytes: 0 }), refused);
        await assert.rejects(store.append(key, ''), refused);
        await assert.rejects(store.readRange(key, 0, 1), refused);
        await assert.rejects(store.list(`${key}/`), hasCode('Unsupported'));
        await assert.rejects(store.removeAll(key), refused);
        await assert.rejects(store.localFolder(key), refused);
      });
    }
  });
}
