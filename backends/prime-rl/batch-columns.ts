import { type PackedRow, type RowSource, windowsOf } from '../../core/rl/learning/batch.ts';
import { RatchetError } from '../../core/errors.ts';

/** A batch in columns: one value a token, the rows one after the other. Beside the columns, only a window of the rows is in memory. */
export interface BatchColumns {
  readonly lengths: readonly number[];
  /** Index of each row’s first token; the last entry is the number of tokens. */
  readonly starts: readonly number[];
  readonly tokenIds: Int32Array;
  readonly mask: Uint8Array;
  readonly advantages: Floats;
  readonly logprobs: Floats;
  /** One value for each row, as `environments`. */
  readonly temperatures: readonly number[];
  readonly environments: readonly string[];
  readonly streams: Readonly<Partial<Record<StreamName, Stream>>>;
}

export type Floats = Float32Array | Float64Array;

/** prime-rl’s own names. */
export type StreamName = 'ref_logprobs' | 'rl_weights' | 'ce_weights' | 'ref_kl_weights';

export interface Stream {
  readonly values: Floats;
  /** 1 for each row that has this stream; the values of other rows are the stream’s fill. */
  readonly has: Uint8Array;
}

/** Values of one row, each list as long as its tokens. A missing list counts as zeros. */
export interface RowValues {
  readonly mask?: ArrayLike<number>;
  readonly advantages?: ArrayLike<number>;
  readonly logprobs?: ArrayLike<number>;
  readonly temperature: number;
  readonly streams?: Readonly<Partial<Record<StreamName, ArrayLike<number>>>>;
}

/** The value of a stream for rows that do not have it, in a batch where others do. */
const fills: Readonly<Record<StreamName, number>> = {
  ref_logprobs: 0,
  rl_weights: 1,
  ce_weights: 0,
  ref_kl_weights: 0,
};

/** Tokens of the rows that are in memory at once beside the columns: some 2 MB of numbers. */
const windowTokens = 1 << 16;

/** prime-rl names metrics by environment. Our rows do not say theirs, so all have one name. */
const environment = 'run';

export async function readColumns<Row extends Pick<PackedRow, 'tokenIds' | 'lossMask'>>(
  source: Pick<RowSource<Row & PackedRow>, 'rows'> & { read(places: readonly number[]): Promise<readonly Row[]> },
  valuesOf: (row: Row, place: number) => RowValues,
): Promise<BatchColumns> {
  const lengths = source.rows.map(({ tokens }) => tokens);
  const starts = [0];
  for (const length of lengths) starts.push(starts.at(-1)! + length);
  const total = starts.at(-1)!;
  const columns = {
    lengths,
    starts,
    tokenIds: new Int32Array(total),
    mask: new Uint8Array(total),
    advantages: new Float32Array(total),
    logprobs: new Float32Array(total),
    temperatures: Array.from(lengths, () => 1),
    environments: Array.from(lengths, () => environment),
    streams: {} as Partial<Record<StreamName, Stream>>,
  };
  for (const places of windowsOf(source.rows, windowTokens)) {
    const rows = await source.read(places);
    for (const [i, row] of rows.entries()) {
      const place = places[i]!;
      const { temperature, streams = {}, ...values } = valuesOf(row, place);
      const put = (name: string, target: Floats | Int32Array | Uint8Array, given: ArrayLike<number>): void => {
        if (given.length !== lengths[place])
          throw malformed(`${lengths[place]} values of ${name} in row ${place}, one per token`, String(given.length));
        target.set(given, starts[place]);
      };
      put('tokens', columns.tokenIds, row.tokenIds);
      for (const name of ['mask', 'advantages', 'logprobs'] as const)
        if (values[name]) put(name, columns[name], values[name]);
      columns.temperatures[place] = temperature;
      for (const [name, given] of Object.entries(streams) as [StreamName, ArrayLike<number>][]) {
        const stream = (columns.streams[name] ??= {
          values: new Float32Array(total).fill(fills[name]),
          has: new Uint8Array(lengths.length),
        });
        put(name, stream.values, given);
        stream.has[place] = 1;
      }
    }
  }
  return columns;
}

function malformed(expected: string, received: string): RatchetError {
  return new RatchetError('Unsupported', `The training batch is malformed: expected ${expected}, got ${received}.`);
}
