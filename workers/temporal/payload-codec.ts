import { createCipheriv, createDecipheriv, createHash, randomBytes } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import type { DataConverter, Payload, PayloadCodec } from '@temporalio/common';
import proto from '@temporalio/proto';
import { RatchetError } from '../../core/errors.ts';
import { readNamedFile } from './temporal-settings.ts';

/** A key of 256 bits, and the name by which payloads refer to it: the first bits of its hash. */
export interface PayloadKey {
  readonly id: string;
  readonly bytes: Buffer;
}

/** Encodes messages and stack traces of failures too; needed by the workflow bundle as well as by workers and clients. */
export const failureConverterPath = fileURLToPath(new URL('./failure-converter.cjs', import.meta.url));

const encoding = 'binary/encrypted';
const cipherName = 'aes-256-gcm';
const keyBytes = 32;
const nonceBytes = 12;
const tagBytes = 16;

/**
 * RATCHET_PAYLOAD_KEY, or the file that RATCHET_PAYLOAD_KEY_FILE names: keys of 32 bytes in base64 or hex, separated by white space or
 * commas. The first encrypts; all decrypt. Empty when neither is set.
 */
export function readPayloadKeys(env: Readonly<NodeJS.ProcessEnv> = process.env): readonly PayloadKey[] {
  const [given, file] = [env['RATCHET_PAYLOAD_KEY'], env['RATCHET_PAYLOAD_KEY_FILE']];
  if (given && file) {
    throw new RatchetError(
      'ConfigInvalid',
      'RATCHET_PAYLOAD_KEY and RATCHET_PAYLOAD_KEY_FILE are both set; unset one of them.',
    );
  }
  const from = file ? `RATCHET_PAYLOAD_KEY_FILE (${file})` : 'RATCHET_PAYLOAD_KEY';
  const text = file ? readNamedFile('RATCHET_PAYLOAD_KEY_FILE', file).toString('utf8') : (given ?? '');
  const words = text.split(/[\s,]+/).filter((word) => word !== '');
  if (words.length === 0 && (file || given)) throw noKey(from, 'nothing');
  return words.map((word) => parseKey(word, from));
}

/**
 * Data converter of clients and workers. Without keys nothing is encrypted, and encrypted payloads are refused with
 * advice.
 */
export function dataConverterFor(keys: readonly PayloadKey[]): DataConverter {
  const payloadCodecs = [new AesPayloadCodec(keys)];
  return keys.length > 0 ? { payloadCodecs, failureConverterPath } : { payloadCodecs };
}

/** AES-256-GCM: each payload whole, metadata included, under a nonce of its own. `data` is nonce, ciphertext, tag. */
export class AesPayloadCodec implements PayloadCodec {
  readonly #keys: ReadonlyMap<string, PayloadKey>;
  readonly #current: PayloadKey | undefined;

  constructor(keys: readonly PayloadKey[]) {
    this.#keys = new Map(keys.map((key) => [key.id, key]));
    this.#current = keys[0];
  }

  async encode(payloads: Payload[]): Promise<Payload[]> {
    const key = this.#current;
    return key ? payloads.map((payload) => encrypt(payload, key)) : payloads;
  }

  async decode(payloads: Payload[]): Promise<Payload[]> {
    return payloads.map((payload) =>
      metadataText(payload, 'encoding') === encoding ? this.#decrypt(payload) : payload,
    );
  }

  #decrypt(payload: Payload): Payload {
    const id = metadataText(payload, 'encryption-key-id');
    const key = this.#keys.get(id);
    if (key) return decrypt(payload, key);
    // Other programs encrypt under the same encoding.
    if (id === '')
      throw new RatchetError('Unsupported', 'A payload is encrypted and names no key: it is of another program.');
    const have = this.#keys.size === 0 ? 'none is set' : `this process has ${[...this.#keys.keys()].join(', ')}`;
    throw new RatchetError(
      'ConfigInvalid',
      `This run's history is encrypted with the key ${id}, and ${have}. Put that key into RATCHET_PAYLOAD_KEY, ` +
        'or into the file that RATCHET_PAYLOAD_KEY_FILE names (after the newest one, if it is an old key).',
    );
  }
}

function encrypt(payload: Payload, { id, bytes }: PayloadKey): Payload {
  const nonce = randomBytes(nonceBytes);
  const cipher = createCipheriv(cipherName, bytes, nonce).setAAD(Buffer.from(id));
  const plain = proto.temporal.api.common.v1.Payload.encode(payload).finish();
  const data = Buffer.concat([nonce, cipher.update(plain), cipher.final(), cipher.getAuthTag()]);
  return { metadata: { encoding: Buffer.from(encoding), 'encryption-key-id': Buffer.from(id) }, data };
}

function decrypt({ data }: Payload, { id, bytes }: PayloadKey): Payload {
  const all = Buffer.from(data ?? []);
  try {
    const decipher = createDecipheriv(cipherName, bytes, all.subarray(0, nonceBytes), { authTagLength: tagBytes });
    decipher.setAAD(Buffer.from(id)).setAuthTag(all.subarray(-tagBytes));
    const plain = Buffer.concat([decipher.update(all.subarray(nonceBytes, -tagBytes)), decipher.final()]);
    return proto.temporal.api.common.v1.Payload.decode(plain);
  } catch (cause) {
    throw new RatchetError(
      'Unsupported',
      `A payload in the history that names the key ${id} was changed or cut (${all.length} bytes); it is not decrypted.`,
      { cause },
    );
  }
}

function parseKey(word: string, from: string): PayloadKey {
  const isHex = /^[0-9a-f]{64}$/i.test(word);
  const bytes = Buffer.from(word, isHex ? 'hex' : 'base64');
  if ((!isHex && !/^[\w+/-]{43}=?$/.test(word)) || bytes.length !== keyBytes)
    throw noKey(from, `a word of ${word.length} characters`);
  const id = createHash('sha256').update('ratchet payload key\n').update(bytes).digest('hex').slice(0, 12);
  return { id, bytes };
}

/** Reveals only the length of what it received. */
function noKey(from: string, received: string): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `${from}: expected keys of ${keyBytes} bytes in base64 or hex, got ${received}. One is made by: openssl rand -base64 ${keyBytes}`,
  );
}

function metadataText({ metadata }: Payload, key: string): string {
  return Buffer.from(metadata?.[key] ?? []).toString('utf8');
}
