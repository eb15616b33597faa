/** Micro-batches as prime-rl packs them, byte for byte. test/data/prime-rl/packing.json.gz was recorded with its own packer (README there). */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { gunzipSync } from 'node:zlib';
import fc from 'fast-check';
import { randomStream } from '../../../core/random.ts';
import type { BatchColumns } from '../../../backends/prime-rl/batch-columns.ts';
import { writeMicroBatches } from '../../../backends/prime-rl/micro-batch-wire.ts';
import { MsgpackWriter } from '../../../backends/prime-rl/msgpack.ts';
import { packRows } from '../../../backends/prime-rl/packing.ts';
import { packingCost } from '../../../backends/prime-rl/packing-cost.ts';
import { mainMicroBatch } from '../../../backends/prime-rl/micro-batch-wire.ts';

interface Recorded {
  readonly seq_len: number;
  readonly num_train_workers: number;
  readonly pad_to_multiple_of: number;
  readonly samples: readonly {
    readonly token_ids: number[];
    readonly mask: boolean[];
    readonly logprobs: number[];
    readonly temperatures: number[];
    readonly advantages: number[];
    readonly env_name: string;
  }[];
  readonly rank_bin_b64: readonly string[];
}

const recorded = JSON.parse(
  gunzipSync(readFileSync(new URL('../../data/prime-rl/packing.json.gz', import.meta.url))).toString(),
) as Recorded[];

for (const { seq_len: seqLen, num_train_workers: ranks, pad_to_multiple_of: padToMultipleOf, ...one } of recorded) {
  test(`${one.samples.length} rows for ${ranks} ranks of ${seqLen} tokens are the bytes that prime-rl writes`, async () => {
    const columns = columnsOf(one.samples, seqLen);
    const grid = packRows(columns.lengths, { seqLen, ranks, padToMultipleOf });
    for (const [rank, batches] of grid.entries()) {
      const pieces: Buffer[] = [];
      const out = new MsgpackWriter((bytes) => void pieces.push(Buffer.from(bytes)));
      await writeMicroBatches(out, columns, batches, mainMicroBatch);
      assert.equal(Buffer.concat(pieces).toString('base64'), one.rank_bin_b64[rank], `rank ${rank}`);
    }
  });
}

const costs = JSON.parse(readFileSync(new URL('../../data/prime-rl/packing-cost.json', import.meta.url), 'utf8')) as {
  readonly name: string;
  readonly config: Readonly<Record<string, unknown>>;
  readonly cost: readonly [number, number];
}[];

for (const { name, config, cost } of costs)
  test(`a row costs what prime-rl says: a model with ${name}`, () => {
    const { linear, quadratic } = packingCost(config);
    assert.deepEqual([linear, quadratic], cost);
    assert.deepEqual(packingCost({ text_config: config }), { linear, quadratic });
  });

test('rows of a config in other words cost their tokens', () =>
  assert.deepEqual(packingCost({ d_model: 512 }), { linear: 1, quadratic: 0 }));

test('each row is in one micro-batch, none is too long, and every rank has equally many', () => {
  const lengths = fc.array(fc.integer({ min: 1, max: 64 }), { minLength: 1, maxLength: 60 });
  fc.assert(
    fc.property(lengths, fc.integer({ min: 1, max: 5 }), fc.integer({ min: 1, max: 4 }), (rows, ranks, multiple) => {
      const grid = packRows(rows, { seqLen: 64, ranks, padToMultipleOf: multiple });
      assert.equal(grid.length, ranks);
      assert.equal(new Set(grid.map(({ length }) => length)).size, 1);
      const packed = grid.flat().filter(({ isDummy }) => !isDummy);
      const seen = packed.flatMap((batch) => batch.rows).sort((a, b) => a - b);
      assert.deepEqual(seen, [...rows.keys()]);
      for (const batch of grid.flat()) {
        const tokens = batch.rows.reduce((sum, row) => sum + rows[row]!, 0);
        assert.ok(tokens <= 64 && (tokens + batch.padding) % multiple === 0);
      }
    }),
  );
});

test('thousands of micro-batches are packed in seconds, and evenly', () => {
  const stream = randomStream(7);
  const lengths = Array.from({ length: 20_000 }, () => 1 + Math.floor(stream() * 400));
  const cost = { linear: 1, quadratic: 1e-4 };
  const before = process.cpuUsage();
  const grid = packRows(lengths, { seqLen: 512, ranks: 8, cost });
  const { user, system } = process.cpuUsage(before);
  assert.ok(user + system < 20e6, `it took ${(user + system) / 1e6} s of the processor; each swap looks at all pairs`);
  const loads = grid.map((batches) =>
    batches.flatMap(({ rows }) => rows).reduce((sum, row) => sum + lengths[row]! + 1e-4 * lengths[row]! ** 2, 0),
  );
  assert.ok(Math.min(...loads) / Math.max(...loads) > 0.99, `the loads of the ranks are ${loads.join(', ')}`);
});

/** Rows that are too long are cut, as prime-rl does it: Ratchet refuses them before. */
function columnsOf(samples: Recorded['samples'], seqLen: number): BatchColumns {
  const cut = samples.map((sample) => ({
    ...sample,
    token_ids: sample.token_ids.slice(0, seqLen),
    mask: sample.mask.slice(0, seqLen),
    logprobs: sample.logprobs.slice(0, seqLen),
    advantages: sample.advantages.slice(0, seqLen),
  }));
  const starts = [0];
  for (const { token_ids } of cut) starts.push(starts.at(-1)! + token_ids.length);
  return {
    lengths: cut.map(({ token_ids }) => token_ids.length),
    starts,
    tokenIds: Int32Array.from(cut.flatMap(({ token_ids }) => token_ids)),
    mask: Uint8Array.from(cut.flatMap(({ mask }) => mask.map(Number))),
    advantages: Float64Array.from(cut.flatMap(({ advantages }) => advantages)),
    logprobs: Float64Array.from(cut.flatMap(({ logprobs }) => logprobs)),
    temperatures: cut.map(({ temperatures }) => temperatures[0]!),
    environments: cut.map(({ env_name }) => env_name),
    streams: {},
  };
}
