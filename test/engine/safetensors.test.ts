import assert from 'node:assert/strict';
import { test } from 'node:test';
import { decodeSafetensors, encodeSafetensors } from '../../engine/index.ts';

const tensors = {
  weights: { shape: [2, 3], data: Float32Array.of(1, -2, 3.5, 0, NaN, Infinity) },
  ids: { shape: [3], data: Int32Array.of(-1, 0, 7) },
  counts: { shape: [], data: BigInt64Array.of(-(2n ** 40n)) },
  empty: { shape: [0, 4], data: new Float32Array(0) },
};

/** A file with a header of our choice over `data`. */
function fileOf(header: unknown, data: Uint8Array = new Uint8Array(0)): Uint8Array {
  const text = new TextEncoder().encode(typeof header === 'string' ? header : JSON.stringify(header));
  const file = new Uint8Array(8 + text.length + data.length);
  new DataView(file.buffer).setBigUint64(0, BigInt(text.length), true);
  file.set(text, 8);
  file.set(data, 8 + text.length);
  return file;
}

test('tensors come back as they were saved, with their metadata', () => {
  const decoded = decodeSafetensors(encodeSafetensors(tensors, { step: '3' }), 'file');
  assert.deepEqual(Object.fromEntries(decoded.tensors), tensors);
  assert.deepEqual(decoded.metadata, { step: '3' });
});

test('the same content gives the same bytes, whatever the order it was given in', () => {
  const reversed = Object.fromEntries(Object.entries(tensors).toReversed());
  assert.deepEqual(encodeSafetensors(tensors, { a: '1', b: '2' }), encodeSafetensors(reversed, { b: '2', a: '1' }));
});

test('half precision comes back as 32-bit floats', () => {
  const halves = new Uint8Array(Uint16Array.of(0x3f80, 0xc000, 0x3c00, 0x0001, 0xfc00, 0x7e00).buffer);
  const header = {
    b: { dtype: 'BF16', shape: [2], data_offsets: [0, 4] },
    h: { dtype: 'F16', shape: [4], data_offsets: [4, 12] },
  };
  const decoded = decodeSafetensors(fileOf(header, halves), 'file').tensors;
  assert.deepEqual(decoded.get('b')?.data, Float32Array.of(1, -2));
  assert.deepEqual(decoded.get('h')?.data, Float32Array.of(1, 2 ** -24, -Infinity, NaN));
});

test('a file cut at any byte, or with bytes too many, is reported as damaged', () => {
  const file = encodeSafetensors(tensors);
  for (let length = 0; length < file.length; length++) {
    assert.throws(() => decodeSafetensors(file.slice(0, length), 'cut'), {
      code: 'CheckpointDamaged',
      message: /^cut is damaged/,
    });
  }
  const longer = new Uint8Array(file.length + 1);
  longer.set(file);
  assert.throws(() => decodeSafetensors(longer, 'long'), { code: 'CheckpointDamaged' });
});

test('a header that is false is reported as damaged', () => {
  const data = new Uint8Array(8);
  const entry = (over: object): object => ({ a: { dtype: 'F32', shape: [2], data_offsets: [0, 8], ...over } });
  const lies = [
    'not json',
    [1, 2],
    entry({ shape: [3] }),
    entry({ data_offsets: [0, 4] }),
    entry({ data_offsets: [4, 8] }),
    entry({ data_offsets: [8, 0] }),
    entry({ data_offsets: [0, 80] }),
    entry({ shape: [-2] }),
    entry({ shape: 'x' }),
  ];
  for (const header of lies) {
    assert.throws(
      () => decodeSafetensors(fileOf(header, data), 'file'),
      { code: 'CheckpointDamaged' },
      JSON.stringify(header),
    );
  }
  const huge = fileOf(entry({}), data);
  new DataView(huge.buffer).setBigUint64(0, 2n ** 63n, true);
  assert.throws(() => decodeSafetensors(huge, 'file'), { code: 'CheckpointDamaged' });
});

test('an element type the engine does not read is refused by name', () => {
  const header = { a: { dtype: 'F8_E4M3', shape: [8], data_offsets: [0, 8] } };
  assert.throws(() => decodeSafetensors(fileOf(header, new Uint8Array(8)), 'file'), {
    code: 'ModelUnsupported',
    message: /F8_E4M3/,
  });
});
