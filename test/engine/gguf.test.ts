/** Models from GGUF files, beside what the package gguf makes of the same bytes (`test/data/gguf/record.py`). */
import assert from 'node:assert/strict';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { decodeGgufHeader } from '../../engine/gguf/header.ts';
import { textsOfGguf } from '../../engine/gguf/hugging-face.ts';
import { readGguf } from '../../engine/gguf/import-gguf.ts';
import { packings } from '../../engine/gguf/quants.ts';
import { loadModelFolder, saveModelFolder } from '../../engine/index.ts';

const data = fileURLToPath(new URL('../data/gguf/', import.meta.url));
const tiny = path.join(data, 'tiny-llama.gguf');

test('packed blocks are unpacked to the bits that gguf gives', () => {
  const { packings: recorded } = JSON.parse(readFileSync(path.join(data, 'blocks.json'), 'utf8')) as {
    readonly packings: readonly { type: number; name: string; packed: string; values: string }[];
  };
  assert.equal(recorded.length, Object.keys(packings).length - 1, 'all but F32');
  for (const { type, name, packed, values } of recorded) {
    const packing = packings[type]!;
    assert.equal(packing.name, name);
    const bytes = Uint8Array.from(Buffer.from(packed, 'base64'));
    const expected = new Float32Array(Uint8Array.from(Buffer.from(values, 'base64')).buffer);
    const unpacked = new Float32Array((bytes.length / packing.bytes) * packing.weights);
    packing.unpack(bytes, unpacked);
    assert.deepEqual(unpacked, expected, name);
  }
});

describe('a GGUF file', () => {
  let folder: string;
  before(async () => void (folder = await mkdtemp(path.join(tmpdir(), 'gguf-'))));
  after(() => rm(folder, { recursive: true }));

  /** The i-th weight of a tensor in record.py; a half holds it exactly. */
  const number = (name: string, i: number): number => (((i * 7919 + 31 * name.length) % 255) - 127) / 128;

  test('has the weights under the names and in the order of a Hugging Face folder', async () => {
    const { parameters, config } = await readGguf(tiny);
    for (const { name, shape } of parameters.layout) {
      const count = shape.reduce((product, size) => product * size, 1);
      const expected = Float32Array.from({ length: count }, (_, i) => number(name, i));
      assert.deepEqual(parameters.view(name), expected, name);
    }
    const { family, layerCount, headCount, keyValueHeadCount, headSize } = config;
    assert.deepEqual([family, layerCount, headCount, keyValueHeadCount, headSize], ['llama', 2, 4, 2, 16]);
  });

  test('is saved as a folder that is read as any other', async () => {
    const model = await readGguf(tiny);
    const out = path.join(folder, 'saved');
    await mkdir(out);
    await saveModelFolder(model, out);
    const loaded = await loadModelFolder(out);
    assert.equal(loaded.parameters.digest(), model.parameters.digest());
    const { tokenizer } = loaded;
    assert.deepEqual(tokenizer.encode('the'), [260]); // merged twice
    assert.equal(tokenizer.decode(tokenizer.encode('Über 7 + 5 = 12, the')), 'Über 7 + 5 = 12, the');
    const prompt = tokenizer.renderChat([{ role: 'user', content: 'hi' }]);
    assert.deepEqual(prompt.slice(0, 1), [1]);
    assert.deepEqual(
      loaded.tokenizer.renderChatText([{ role: 'user', content: 'hi' }], { addGenerationPrompt: true }),
      '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n',
    );
  });

  test('that is cut off, or none, is refused with what was expected', async () => {
    const bytes = readFileSync(tiny);
    for (const [what, content, expected] of [
      ['another file', Buffer.from('{"a": 1}'.repeat(40)), /expected a GGUF file, which begins with "GGUF"/],
      ['nothing', Buffer.alloc(0), /expected a whole file, got 0 bytes/],
      ['half a header', bytes.subarray(0, 1000), /expected a whole file, got 1000 bytes, and its header goes on/],
      [
        'half of the weights',
        bytes.subarray(0, bytes.length / 2),
        /expected a file of at least \d+ bytes, got \d+ bytes/,
      ],
      ['too many tensors', withCount(bytes, 8, 2n ** 40n), /expected at most 65536 tensors, got 1099511627776/],
      ['a length beyond all files', withCount(bytes, 24, 2n ** 60n), /expected a size below 2\^53/],
    ] as const) {
      const file = path.join(folder, 'bad.gguf');
      writeFileSync(file, content);
      await assert.rejects(readGguf(file), { code: 'CheckpointDamaged', message: expected }, what);
    }
  });

  test('whose header takes more memory than bytes, or repeats a key, is refused', () => {
    const lists = Array.from({ length: 9 }, (_, i) => ({ name: `list.${i}`, length: 1_000_000 }));
    assert.throws(
      () => decodeGgufHeader(headerOf(lists, []), 'x'),
      /expected at most 8000000 entries of all lists, got 9000000 and more/,
    );
    assert.equal(decodeGgufHeader(headerOf(lists.slice(0, 2), []), 'x').values.size, 2);
    const nested = { name: 'nested', length: 3, of: 3_000_000 };
    assert.throws(() => decodeGgufHeader(headerOf([nested], []), 'x'), /entries of all lists, got 9000003 and more/);
    const one = { name: 'a', length: 1 };
    assert.throws(() => decodeGgufHeader(headerOf([one, one], []), 'x'), /expected one value "a", got two/);
    assert.throws(() => decodeGgufHeader(headerOf([one], ['w', 'v', 'w']), 'x'), /expected one tensor "w", got two/);
    assert.deepEqual([...decodeGgufHeader(headerOf([one], ['w', 'v']), 'x').tensors.keys()], ['w', 'v']);
  });

  test('of a family, a tokenizer or a packing that is not held is refused by name, before any weight is read', async () => {
    const bytes = readFileSync(tiny);
    for (const [from, to, expected] of [
      ['llama', 'gemma', /expected one of the families llama, qwen2, qwen3, smollm3, gemma3, qwen3moe, got "gemma"/],
      ['smollm', 'tekken', /expected tokenizer.ggml.pre as one of .*smollm.*, got "tekken"/],
    ] as const) {
      const file = path.join(folder, 'other.gguf');
      copyFileSync(tiny, file);
      const at = bytes.indexOf(from, bytes.indexOf(from === 'llama' ? 'general.architecture' : 'tokenizer.ggml.pre'));
      writeFileSync(file, Buffer.concat([bytes.subarray(0, at), Buffer.from(to), bytes.subarray(at + from.length)]));
      await assert.rejects(readGguf(file), { code: 'ModelUnsupported', message: expected });
    }
  });

  test('with one tensor in a packing that is not read is refused with its name, before any weight is read', async () => {
    const bytes = Buffer.from(readFileSync(tiny));
    const name = 'blk.1.ffn_down.weight';
    bytes.writeUInt32LE(16, bytes.indexOf(name) + name.length + 4 + 2 * 8);
    const file = path.join(folder, 'iq2.gguf');
    writeFileSync(file, bytes);
    const message =
      /"blk\.1\.ffn_down\.weight": expected weights as F32, .*, got IQ2_XXS\. Take a file of the same model/;
    const tensors: number[] = [];
    await assert.rejects(
      readGguf(file, (done) => tensors.push(done)),
      { code: 'ModelUnsupported', message },
    );
    assert.deepEqual(tensors, []);
  });

  test('of which there are more parts is refused with what makes one of them', () => {
    const { values, tensors } = decodeGgufHeader(readFileSync(tiny), 'tiny');
    const first = { values: new Map([...values, ['split.count', 3]]), tensors };
    assert.throws(
      () => textsOfGguf(first, 'model-00001-of-00003.gguf', null),
      /llama-gguf-split --merge.*, got the first of 3/,
    );
  });

  test('names each tensor with where it lies, rows first', () => {
    const { tensors, values } = decodeGgufHeader(readFileSync(tiny), 'tiny');
    assert.deepEqual(tensors.get('blk.0.ffn_gate.weight')?.shape, [96, 64]);
    assert.equal(values.get('llama.context_length'), 128);
  });
});

function withCount(bytes: Buffer, at: number, count: bigint): Buffer {
  const changed = Buffer.from(bytes);
  changed.writeBigUInt64LE(count, at);
  return changed;
}

/** A header with lists of booleans, with lists of lists where `of` gives their lengths, and with tensors of one number each. */
function headerOf(
  lists: readonly { readonly name: string; readonly length: number; readonly of?: number }[],
  tensors: readonly string[],
): Buffer {
  const u32 = (value: number): Buffer => Buffer.from(Uint32Array.of(value).buffer);
  const u64 = (value: number): Buffer => Buffer.from(BigUint64Array.of(BigInt(value)).buffer);
  const text = (value: string): Buffer => Buffer.concat([u64(value.length), Buffer.from(value)]);
  const truths = (length: number): Buffer => Buffer.concat([u32(7), u64(length), Buffer.alloc(length, 1)]);
  const said = lists.map(({ name, length, of }) => {
    const inside =
      of === undefined ? [truths(length)] : [u32(9), u64(length), ...Array.from({ length }, () => truths(of))];
    return Buffer.concat([text(name), u32(9), ...inside]);
  });
  const described = tensors.map((name, i) => Buffer.concat([text(name), u32(1), u64(1), u32(0), u64(i * 32)]));
  return Buffer.concat([Buffer.from('GGUF'), u32(3), u64(tensors.length), u64(lists.length), ...said, ...described]);
}
