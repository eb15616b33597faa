import type { BatchColumns, Floats, StreamName } from './batch-columns.ts';
import type { MsgpackWriter } from './msgpack.ts';
import type { MicroBatch } from './packing.ts';

/** Writes micro-batches as prime-rl’s transport has them: arrays, whose positions are fields of a struct in its source. */

type WriteField = (out: MsgpackWriter, parts: Parts) => Promise<void>;

interface Parts {
  readonly columns: BatchColumns;
  readonly batch: MicroBatch;
  readonly length: number;
}

/** Writes each field of prime-rl’s MicroBatch. Images and replayed expert routes are nil: no row here has them. */
const fields: Readonly<Record<string, WriteField>> = {
  input_ids: (out, parts) =>
    perToken(
      out,
      parts,
      (start, end) => out.wholes(parts.columns.tokenIds.subarray(start, end)),
      filler(out).wholes(1),
    ),
  loss_mask: (out, parts) => {
    const { columns, batch } = parts;
    const of = (start: number, end: number): Uint8Array =>
      batch.isDummy ? new Uint8Array(end - start) : columns.mask.subarray(start, end);
    return perToken(out, parts, (start, end) => out.flags(of(start, end)), filler(out).flags(0));
  },
  advantages: (out, parts) => {
    const { columns, batch } = parts;
    const of = (start: number, end: number): Floats =>
      batch.isDummy ? new Float32Array(end - start) : columns.advantages.subarray(start, end);
    return perToken(out, parts, (start, end) => out.floats(of(start, end)), filler(out).floats(0));
  },
  inference_logprobs: (out, parts) =>
    perToken(
      out,
      parts,
      (start, end) => out.floats(parts.columns.logprobs.subarray(start, end)),
      filler(out).floats(0),
    ),
  position_ids: (out, parts) =>
    perToken(
      out,
      parts,
      (start, end) => out.wholes(countingTo(end - start)),
      (padding) => out.wholes(countingTo(padding)),
    ),
  sequence_lengths: (out, parts) => documents(out, parts),
  temperatures: (out, parts) =>
    perToken(
      out,
      parts,
      (start, end, row) => out.floats(new Float64Array(end - start).fill(parts.columns.temperatures[row]!)),
      filler(out).floats(1),
    ),
  env_names: (out, parts) =>
    perToken(
      out,
      parts,
      (start, end, row) => out.texts(parts.columns.environments[row]!, end - start),
      (padding) => out.texts('', padding),
    ),
  seq_lens: (out, parts) => documents(out, parts),
  ref_logprobs: (out, parts) => stream(out, parts, 'ref_logprobs'),
  routed_experts: (out) => out.nil(),
  mm_kwargs: (out) => out.nil(),
  mm_token_type_ids: (out) => out.nil(),
  rl_weights: (out, parts) => (parts.batch.isDummy ? out.nil() : stream(out, parts, 'rl_weights')),
  ce_weights: (out, parts) => (parts.batch.isDummy ? out.nil() : stream(out, parts, 'ce_weights')),
  ref_kl_weights: (out, parts) => (parts.batch.isDummy ? out.nil() : stream(out, parts, 'ref_kl_weights')),
};

/** The MicroBatch fields of prime-rl’s main branch since August 2026, in which batches come packed for each rank. */
export const mainMicroBatch: readonly string[] = Object.keys(fields);

/** Writes the micro-batches of one rank. `order`: the names of the fields, as the installation’s struct has them. */
export async function writeMicroBatches(
  out: MsgpackWriter,
  columns: BatchColumns,
  batches: readonly MicroBatch[],
  order: readonly string[],
): Promise<void> {
  await out.arrayHeader(batches.length);
  for (const batch of batches) {
    const length = batch.rows.reduce((sum, row) => sum + columns.lengths[row]!, batch.padding);
    await out.arrayHeader(order.length);
    for (const name of order) await fields[name]!(out, { columns, batch, length });
  }
  await out.end();
}

async function perToken(
  out: MsgpackWriter,
  { columns, batch, length }: Parts,
  write: (start: number, end: number, row: number) => Promise<void>,
  pad: (padding: number) => Promise<void>,
): Promise<void> {
  await out.arrayHeader(length);
  for (const row of batch.rows) await write(columns.starts[row]!, columns.starts[row + 1]!, row);
  await pad(batch.padding);
}

function filler(out: MsgpackWriter) {
  return {
    wholes: (value: number) => (count: number) => out.wholes(new Uint8Array(count).fill(value)),
    floats: (value: number) => (count: number) => out.floats(new Float32Array(count).fill(value)),
    flags: (value: number) => (count: number) => out.flags(new Uint8Array(count).fill(value)),
  };
}

async function documents(out: MsgpackWriter, { columns, batch: { rows, padding } }: Parts): Promise<void> {
  await out.arrayHeader(rows.length);
  await out.wholes(rows.map((row, i) => columns.lengths[row]! + (i === rows.length - 1 ? padding : 0)));
}

/** Writes a stream if a row of the micro-batch has it, else nil. Padding has weight 0, so it is no part of any loss. */
async function stream(out: MsgpackWriter, parts: Parts, name: StreamName): Promise<void> {
  const found = parts.columns.streams[name];
  if (!found || !parts.batch.rows.some((row) => found.has[row] === 1)) return out.nil();
  await perToken(out, parts, (start, end) => out.floats(found.values.subarray(start, end)), filler(out).floats(0));
}

let counted = new Int32Array(0);

function countingTo(count: number): Int32Array {
  if (counted.length < count) counted = Int32Array.from({ length: count }, (_, i) => i);
  return counted.subarray(0, count);
}
