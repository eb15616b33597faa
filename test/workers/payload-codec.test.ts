import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { defaultPayloadConverter, type Payload } from '@temporalio/common';
import { AesPayloadCodec, readPayloadKeys } from '../../workers/temporal/payload-codec.ts';
import { temporaryFolder } from './fixtures/processes.ts';

const newKey = () => randomBytes(32).toString('base64');
const codecOf = (RATCHET_PAYLOAD_KEY: string) => new AesPayloadCodec(readPayloadKeys({ RATCHET_PAYLOAD_KEY }));
const plain = (): Payload => defaultPayloadConverter.toPayload({ model: 'a text that must not be read' });

test('an encrypted payload shows neither its text nor what kind it was, and comes back whole', async () => {
  const codec = codecOf(newKey());
  const [first, second] = await codec.encode([plain(), plain()]);
  const seen = Buffer.from(first!.data!).toString('latin1') + JSON.stringify(Object.entries(first!.metadata!));
  assert.doesNotMatch(seen, /must not be read|json\/plain/);
  assert.notDeepEqual(first!.data, second!.data, 'a nonce of its own each time');
  const back = await codec.decode([first!, second!]);
  for (const one of back) assert.deepEqual(Buffer.from(one.data!), Buffer.from(plain().data!));
});

test('a payload of an old key is still read, by whoever has that key as a later one', async () => {
  const [old, next] = [newKey(), newKey()];
  const encoded = await codecOf(old).encode([plain()]);
  const rotated = codecOf(`${next}\n${old}`);
  assert.deepEqual(Buffer.from((await rotated.decode(encoded))[0]!.data!), Buffer.from(plain().data!));
  await assert.rejects(codecOf(old).decode(await rotated.encode([plain()])), /encrypted with the key [0-9a-f]{12}/);
});

test('without the key one is told which one is missing and where it goes; what is not encrypted is read as it is', async () => {
  const encoded = await codecOf(newKey()).encode([plain()]);
  await assert.rejects(new AesPayloadCodec([]).decode(encoded), /none is set\. Put that key into RATCHET_PAYLOAD_KEY/);
  assert.deepEqual(await new AesPayloadCodec([]).decode([plain()]), [plain()]);
  assert.deepEqual(await codecOf(newKey()).decode([plain()]), [plain()]);
});

test('an encrypted payload of another program is said to be one, and no key is asked for', async () => {
  const [{ data }] = (await codecOf(newKey()).encode([plain()])) as [Payload];
  const foreign = { data: data!, metadata: { encoding: Buffer.from('binary/encrypted') } };
  for (const codec of [codecOf(newKey()), new AesPayloadCodec([])])
    await assert.rejects(codec.decode([foreign]), {
      message: /^A payload is encrypted and names no key: it is of another/,
    });
});

test('a payload that was changed, cut, or given another key name is refused, not read', async () => {
  const [first, second] = [newKey(), newKey()];
  const codec = codecOf(`${first} ${second}`);
  const [good] = await codec.encode([plain()]);
  const data = Buffer.from(good!.data!);
  const changed = Buffer.from(data);
  changed[20]! ^= 1;
  const otherName = (await codecOf(second).encode([plain()]))[0]!.metadata!;
  for (const bad of [
    { ...good, data: changed },
    { ...good, data: data.subarray(0, 20) },
    { ...good, data: Buffer.alloc(0) },
  ]) {
    await assert.rejects(codec.decode([bad]), /changed or cut/);
  }
  await assert.rejects(codec.decode([{ ...good, metadata: otherName }]), /changed or cut/);
});

test('a key is 32 bytes in base64 or hex, from the variable or a file; a passphrase is refused without being repeated', (t) => {
  const bytes = randomBytes(32);
  const file = join(temporaryFolder(t), 'keys');
  writeFileSync(file, `${bytes.toString('hex')}\n${newKey()}\n`);
  const ids = [
    readPayloadKeys({ RATCHET_PAYLOAD_KEY: bytes.toString('base64') }),
    readPayloadKeys({ RATCHET_PAYLOAD_KEY: bytes.toString('base64url') }),
    readPayloadKeys({ RATCHET_PAYLOAD_KEY_FILE: file }),
  ].map((keys) => keys[0]?.id);
  assert.equal(new Set(ids).size, 1);
  assert.equal(readPayloadKeys({ RATCHET_PAYLOAD_KEY_FILE: file }).length, 2);
  assert.deepEqual(readPayloadKeys({}), []);

  const phrase = 'correct horse';
  const refusal = (error: Error) =>
    /32 bytes in base64 or hex.*openssl rand/.test(error.message) && !error.message.includes('horse');
  assert.throws(() => readPayloadKeys({ RATCHET_PAYLOAD_KEY: phrase }), refusal);
  assert.throws(() => readPayloadKeys({ RATCHET_PAYLOAD_KEY: 'x'.repeat(44) }), refusal);
  assert.throws(() => readPayloadKeys({ RATCHET_PAYLOAD_KEY: ' ' }), /got nothing/);
  assert.throws(
    () => readPayloadKeys({ RATCHET_PAYLOAD_KEY_FILE: '/no/such' }),
    /RATCHET_PAYLOAD_KEY_FILE: .*no such file/,
  );
  assert.throws(() => readPayloadKeys({ RATCHET_PAYLOAD_KEY: newKey(), RATCHET_PAYLOAD_KEY_FILE: file }), /both set/);
});
