/** The transport of two versions of prime-rl, as their own code encodes it: test/data/prime-rl-trainer/wire.json (README there). */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import type { BatchColumns, StreamName } from '../../../backends/prime-rl/batch-columns.ts';
import { writeMicroBatches } from '../../../backends/prime-rl/micro-batch-wire.ts';
import { MsgpackWriter } from '../../../backends/prime-rl/msgpack.ts';
import { packRows } from '../../../backends/prime-rl/packing.ts';
import { mainMicroBatch } from '../../../backends/prime-rl/micro-batch-wire.ts';
import { profileOf } from '../../../backends/prime-rl/profiles.ts';

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

interface OlderSample {
  readonly prompt_ids: number[];
  readonly completion_ids: number[];
  readonly completion_mask: boolean[];
  readonly completion_logprobs: number[];
  readonly completion_temperatures: number[];
  readonly advantage: number;
  readonly reward: number | null;
}

interface OlderVersion {
  readonly structs: Version['structs'];
  readonly cases: readonly {
    readonly examples: readonly OlderSample[];
    readonly step: number;
    readonly bytes: string;
  }[];
}

const recorded = JSON.parse(
  readFileSync(new URL('../../data/prime-rl-trainer/wire.json', import.meta.url), 'utf8'),
) as { readonly head: Version; readonly 'v0.4.0': OlderVersion };
const namesOf = ({ structs }: Pick<Version, 'structs'>): Record<string, string[]> =>
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

test('samples of the version whose trainer packs them are the bytes that it reads', async () => {
  const { cases } = recorded['v0.4.0'];
  const whole = cases.filter(({ examples }) => examples.every(({ reward }) => reward === null)); // Ratchet says no rewards
  assert.ok(whole.length > 0);
  const settings = { RLTrainerConfig: ['loss', 'rollout_transport', 'weight_broadcast', 'ckpt', 'scheduler'] };
  const installation = {
    version: null,
    missing: [],
    structs: namesOf(recorded['v0.4.0']),
    markers: ['STABLE'],
    settings,
    types: {},
    mentioned: [],
  };
  for (const { examples, step, bytes } of whole) {
    const { fields, form } = profileOf(installation, 'python');
    const columns = columnsOf(examples.map(rowOf));
    const { files } = form.batch(columns, { fields, seqLen: 64, ranks: 1, cp: 1, step: step + 1 });
    const [written] = await Promise.all(files.map(({ write }) => collected(write)));
    assert.equal(written, bytes);
  }
});

function bytesOf(columns: BatchColumns, batches: Parameters<typeof writeMicroBatches>[2]): Promise<string> {
  return collected((out) => writeMicroBatches(out, columns, batches, mainMicroBatch));
}

async function collected(write: (out: MsgpackWriter) => Promise<void>): Promise<string> {
  const pieces: Buffer[] = [];
  await write(new MsgpackWriter((bytes) => void pieces.push(Buffer.from(bytes))));
  return Buffer.concat(pieces).toString('base64');
}

/** Both halves of a sample as one row, as it comes from a batch. */
function rowOf(sample: OlderSample): Sample {
  const { prompt_ids, completion_ids, completion_mask, completion_logprobs, completion_temperatures, advantage } =
    sample;
  const before = <T>(value: T): T[] => prompt_ids.map(() => value);
  return {
    token_ids: [...prompt_ids, ...completion_ids],
    mask: [...before(false), ...completion_mask],
    logprobs: [...before(0), ...completion_logprobs],
    temperatures: [...before(1), ...completion_temperatures],
    env_name: 'env',
    advantages: [...before(0), ...completion_mask.map((mask) => (mask ? advantage : 0))],
    routed_experts: null,
    ref_logprobs: null,
    rl_weights: null,
    ce_weights: null,
    ref_kl_weights: null,
  };
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
    const values = has.flatMap((given, row) => given ?? Array.from({ length: lengths[row]! }, () => fill));
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
