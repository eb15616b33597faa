import { RatchetError } from '../../core/errors.ts';
import type { BatchColumns } from './batch-columns.ts';
import type { MsgpackWriter } from './msgpack.ts';

/** A batch of samples in the form of prime-rl 0.4, whose trainer packs them. */

type WriteField = (out: MsgpackWriter, row: Row) => Promise<void>;

/** One row: its prompt ends before the first token that counts. */
interface Row {
  readonly columns: BatchColumns;
  readonly at: number;
  readonly start: number;
  readonly middle: number;
  readonly end: number;
}

const fields: Readonly<Record<string, WriteField>> = {
  prompt_ids: (out, { columns, start, middle }) =>
    list(out, (values) => out.wholes(values), columns.tokenIds.subarray(start, middle)),
  prompt_mask: (out, { columns, start, middle }) =>
    list(out, (values) => out.flags(values), columns.mask.subarray(start, middle)),
  completion_ids: (out, { columns, middle, end }) =>
    list(out, (values) => out.wholes(values), columns.tokenIds.subarray(middle, end)),
  completion_mask: (out, { columns, middle, end }) =>
    list(out, (values) => out.flags(values), columns.mask.subarray(middle, end)),
  completion_logprobs: (out, { columns, middle, end }) =>
    list(out, (values) => out.floats(values), columns.logprobs.subarray(middle, end)),
  completion_temperatures: (out, { columns, at, middle, end }) =>
    list(out, (values) => out.floats(values), new Float64Array(end - middle).fill(columns.temperatures[at]!)),
  teacher_logprobs: (out) => out.nil(),
  advantage: (out, row) => out.floats([advantageOf(row)]),
  reward: (out) => out.nil(),
  pixel_values: (out) => out.nil(),
  image_grid_thw: (out) => out.nil(),
};

export const olderSample: readonly string[] = Object.keys(fields);
export const olderBatch: readonly string[] = ['examples', 'step', 'run_idx'];

export async function writeTrainingBatch(
  out: MsgpackWriter,
  columns: BatchColumns,
  { fields: order, step }: { readonly fields: readonly string[]; readonly step: number },
): Promise<void> {
  await out.arrayHeader(olderBatch.length);
  await out.arrayHeader(columns.lengths.length);
  for (const at of columns.lengths.keys()) {
    const [start, end] = [columns.starts[at]!, columns.starts[at + 1]!];
    const first = columns.mask.subarray(start, end).indexOf(1);
    const row = { columns, at, start, middle: first < 0 ? end : start + first, end };
    await out.arrayHeader(order.length);
    for (const name of order) await fields[name]!(out, row);
  }
  await out.wholes([step]);
  await out.nil();
  await out.end();
}

/** Every token of a row has the same there. */
function advantageOf({ columns: { advantages, mask }, at, middle, end }: Row): number {
  const advantage = middle < end ? advantages[middle]! : 0;
  for (let t = middle; t < end; t++) {
    if (mask[t] === 0 || advantages[t] === advantage) continue;
    throw new RatchetError(
      'Unsupported',
      `prime-rl’s trainer of that release has one advantage for all tokens of a row: expected ${advantage} in row ${at}, got ${advantages[t]} (a correction, or credit by turns). prime-rl’s main branch has one for each.`,
    );
  }
  return advantage;
}

async function list<T>(
  out: MsgpackWriter,
  write: (values: T) => Promise<void>,
  values: T & { readonly length: number },
): Promise<void> {
  await out.arrayHeader(values.length);
  await write(values);
}
