import { z } from 'zod';
import { batchRolloutsMax } from '../../core/limits.ts';
import { flag, text, whole } from '../toml/values.ts';
import type { RatchetConfig } from './index.ts';
import { tokensBound } from './run.ts';
import { inSpec, optionalTable, required, setting, specFields } from './setting.ts';
import { dataName, DataRef, dataRef, type SftSpec } from './sft.ts';

export { sft, SftSpec, sftSpec } from './sft.ts';

/** `[data]`: conversations that a run's steps train on, in place of rollouts. */

const packing = {
  seq_len: setting(
    whole(1),
    'tokens of a sequence. Rows are put one after the other into a sequence while they fit; a row that is longer by itself is cut. A token does not see those of another row',
    { default: 2048, most: tokensBound },
  ),
  batch_size: setting(whole(1), 'sequences per step', {
    default: 64,
    most: [batchRolloutsMax, 'its rows are packed together', 'a smaller batch and more steps (max_steps)'],
  }),
  shuffle: setting(flag(), 'whether each pass over the rows has an order of its own, drawn by (`seed` + pass)', {
    default: true,
  }),
};

export const data = optionalTable({
  name: required(
    dataName(),
    'the rows: a `.jsonl` or `.parquet` file, or a dataset of the Hugging Face Hub by its name (`ratchet model get --dataset OWNER/NAME`). The run then plays no rollouts: each of its `max_steps` steps learns by heart what the assistant says in them',
  ),
  subset: setting(text(), 'of a dataset of the Hub with several: which one'),
  split: setting(text(), 'of a dataset of the Hub; "train" when missing'),
  ...packing,
});

export const RowsSpec = z.strictObject({ rows: DataRef, ...specFields(packing) });
export type RowsSpec = z.infer<typeof RowsSpec>;

/** The rows that a run stores: those of its steps, or of its warm-up. */
export function keptRows({
  data,
  sft,
}: {
  readonly data?: RowsSpec | undefined;
  readonly sft: SftSpec | null;
}): DataRef | null {
  return data?.rows ?? sft?.data ?? null;
}

export function rowsSpec({ data: written }: RatchetConfig): { data?: RowsSpec } {
  return written === undefined ? {} : { data: { rows: dataRef(written.name, written), ...inSpec(packing, written) } };
}
