import { RatchetError } from '../../core/errors.ts';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import type { Store } from './types.ts';

/** JSON and JSON lines as objects. Canonical by construction: the same value gives the same bytes. */
export async function putJson(store: Store, key: string, value: unknown): Promise<ObjectRef> {
  return store.put(key, encodeJson(value));
}

export function encodeJson(value: unknown): Uint8Array {
  return Buffer.from(`${JSON.stringify(value)}\n`);
}

/** `key` names the object in the refusal when its bytes have not been compared with a sha256 before. */
export function decodeJson<T>(bytes: Uint8Array, key?: string): T {
  return parse(textOf(bytes), key);
}

export async function putRows(store: Store, key: string, rows: readonly unknown[]): Promise<ObjectRef> {
  return { ...(await store.put(key, encodeRows(rows))), count: rows.length };
}

export function encodeRows(rows: readonly unknown[]): Uint8Array {
  return Buffer.from(rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
}

export function decodeRows<T>(bytes: Uint8Array, key?: string): T[] {
  return textOf(bytes)
    .split('\n')
    .filter((line) => line.length > 0)
    .map((line) => parse(line, key));
}

function textOf(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8');
}

function parse<T>(text: string, key: string | undefined): T {
  try {
    return JSON.parse(text) as T;
  } catch (cause) {
    if (key === undefined) throw cause;
    throw new RatchetError(
      'CheckpointDamaged',
      `${key} is not JSON: a byte of it changed. Restore the file from a copy, or start over with --fresh.`,
      { cause },
    );
  }
}

/** How many rows JSON lines hold, without parsing them. */
export function countRows(bytes: Uint8Array): number {
  let count = 0;
  for (let at = bytes.indexOf(0x0a); at >= 0; at = bytes.indexOf(0x0a, at + 1)) count += 1;
  return count;
}

/** Whether the object that a reference names is there with its sha256. */
export async function isSound(store: Store, ref: ObjectRef): Promise<boolean> {
  try {
    await store.verify(ref);
    return true;
  } catch (error) {
    if (error instanceof RatchetError && error.code === 'CheckpointDamaged') return false;
    throw error;
  }
}
