/** The transport of two versions of prime-rl, as their own code encodes it: test/data/prime-rl-trainer/wire.json (README there). */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import type { BatchColumns, StreamName } from '../../../backends/prime-rl/batch-columns.ts';
import { writeMicroBatches } from '../../../backends/prime-rl/micro-batch-wire.ts';
import { MsgpackWriter } from '../../../backends/prime-rl/msgpack.ts';
import { packRows } from '../../../backends/prime-rl/packing.ts';
import { mainMicroBatch, profileOf } from '../../../backends/prime-rl/profiles.ts';

type Sample = {
  readonly token_ids: number[];
  readonly mask: boolean[];
  readonly logprobs: number[];
  readonly temperatures: number[];
  readonly env_name: string;
  readonly advantages: number[];
  readonly routed_experts: unknown;
} & Readonly<Record<StreamName, number[] | null>>;

interface Version {
  readonly structs: Readonly<Record<string, readonly { readonly name: string }[]>>;
  readonly cases: readonly {
    readonly name: string;
    readonly seq_len: number;
    readonly num_train_workers: number;
    readonly pad_to_multiple_of: number;
    readonly samples: readonly Sample[];
    readonly bytes: readonly string[];
  }[];
}

const recorded = JSON.parse(
  readFileSync(new URL('../../data/prime-rl-trainer/wire.json', import.meta.url), 'utf8'),
) as Readonly<Record<'head' | 'v0.4.0', Version>>;
const namesOf = ({ structs }: Version): Record<string, string[]> =>
  Object.fromEntries(Object.entries(structs).map(([name, fields]) => [name, fields.map((field) => field.name)]));

// Ratchet refuses rows that are too long, and replays no routes.
for (const one of recorded.head.cases) {
  const { name, seq_len: seqLen, num_train_workers: ranks, pad_to_multiple_of: padToMultipleOf, samples } = one;
  if (samples.some(({ token_ids, routed_experts }) => token_ids.length > seqLen || routed_experts !== null)) continue;
  test(`${name}: its bytes are those that prime-rl writes`, async () => {
    const columns = columnsOf(samples);
    const grid = packRows(columns.lengths, { seqLen, ranks, padToMultipleOf });
    const written = await Promise.all(grid.map((batches) => bytesOf(columns, batches)));
    assert.deepEqual(written, one.bytes);
  });
}

test('the fields that are known are those of the version that is driven, in its order', () => {
  assert.deepEqual(mainMicroBatch, namesOf(recorded.head)['MicroBatch']);
});

test('a version whose trainer packs by itself is refused, and told from one that does not', () => {
  const installation = {
    version: '0.4.0',
    missing: [],
    structs: namesOf(recorded['v0.4.0']),
    markers: ['STABLE'],
    settings: {},
  };
  assert.throws(() => profileOf(installation, 'python'), {
    code: 'Unsupported',
    message: /its trainer packs batches itself/,
  });
});

async function bytesOf(columns: BatchColumns, batches: Parameters<typeof writeMicroBatches>[2]): Promise<string> {
  const pieces: Buffer[] = [];
  const out = new MsgpackWriter((bytes) => void pieces.push(Buffer.from(bytes)));
  await writeMicroBatches(out, columns, batches, mainMicroBatch);
  return Buffer.concat(pieces).toString('base64');
}

/** What stands for a stream in rows without it, beside others that have it. */
const fills: Readonly<Record<StreamName, number>> = {
  ref_logprobs: 0,
  rl_weights: 1,
  ce_weights: 0,
  ref_kl_weights: 0,
};

function columnsOf(samples: readonly Sample[]): BatchColumns {
  const lengths = samples.map(({ token_ids }) => token_ids.length);
  const starts = [0];
  for (const length of lengths) starts.push(starts.at(-1)! + length);
  const streams = Object.entries(fills).flatMap(([name, fill]) => {
    const has = samples.map((sample) => sample[name as StreamName]);
    if (has.every((values) => values === null)) return [];
    const values = has.flatMap((given, row) => given ?? new Array<number>(lengths[row]!).fill(fill));
    return [
      [name, { values: Float64Array.from(values), has: Uint8Array.from(has, (given) => Number(given !== null)) }],
    ];
  });
  return {
    lengths,
    starts,
    tokenIds: Int32Array.from(samples.flatMap(({ token_ids }) => token_ids)),
    mask: Uint8Array.from(samples.flatMap(({ mask }) => mask.map(Number))),
    advantages: Float64Array.from(samples.flatMap(({ advantages }) => advantages)),
    logprobs: Float64Array.from(samples.flatMap(({ logprobs }) => logprobs)),
    temperatures: samples.map(({ temperatures }) => temperatures[0]!),
    environments: samples.map(({ env_name }) => env_name),
    streams: Object.fromEntries(streams) as BatchColumns['streams'],
  };
}
