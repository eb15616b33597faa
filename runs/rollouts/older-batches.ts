import { jsonOrNull } from '../../core/json-or-null.ts';
import type { PackedRow } from '../../core/rl/learning/batch.ts';
import type { ObjectRef, PackedBatch } from '../../core/rl/run-state.ts';
import { damaged, isRecord, type Shape } from '../../store/objects.ts';
import type { OpenedPart } from './batch-parts.ts';
import { decodeStoredRows } from '../forms/stored-forms.ts';

/** Batches in the form used until 26 November 2026: one object of JSON lines, one row per line. */

/** Version 1 of a packed batch, which refers to the object with all rows. */
export interface OlderPacked extends Omit<PackedBatch, 'rows'> {
  readonly batch: ObjectRef;
}

/** Each row names its rollout. Log probabilities of the policy were always present. */
type OlderRow = Omit<PackedRow, 'behaviorLogprobs'> & Required<Pick<PackedRow, 'behaviorLogprobs'>>;

const rowShape: Shape = ({ tokenIds, lossMask, behaviorLogprobs, advantages, rollout }) => ({
  'token ids, a mask, log probabilities and advantages of equal length': areEquallyLong([
    tokenIds,
    lossMask,
    behaviorLogprobs,
    advantages,
  ]),
  'its rollout, or nothing': rollout === undefined || isRecord(rollout),
});

function areEquallyLong(columns: readonly unknown[]): boolean {
  const [first] = columns;
  return (
    Array.isArray(first) &&
    columns.every((column) => Array.isArray(column) && column.length === first.length && column.every(Number.isFinite))
  );
}

/** Converts to the present version, with all rows as one part. */
export function olderPacked({ batch, ...packed }: OlderPacked, rows: readonly unknown[]): PackedBatch {
  const own = rows as readonly OlderRow[];
  const of = own.find(({ rollout }) => rollout !== undefined)?.rollout?.of;
  return {
    ...packed,
    rows: {
      parts: [{ ...batch, count: own.length }],
      tokens: own.map(({ tokenIds }) => tokenIds.length),
      counted: own.map(countedIn),
      ...(of === undefined ? {} : { rollouts: { indices: own.map(({ rollout }, row) => rollout?.index ?? row), of } }),
    },
  };
}

export function decodeOlderPart(bytes: Uint8Array, where: string): OpenedPart {
  const rows = decodeStoredRows<OlderRow>(bytes, where, rowShape);
  const heads = rows.map((row, rollout) => {
    return {
      tokens: row.tokenIds.length,
      counted: countedIn(row),
      rollout: row.rollout?.index ?? rollout,
      advantage: null,
    };
  });
  return {
    heads,
    row(place) {
      const { rollout: _, ...row } = rows[place]!;
      return row;
    },
  };
}

/** Decodes a teacher's rows, which have one number per token: 0 for tokens that do not count. */
export function decodeOlderTaught(bytes: Uint8Array, where: string): readonly Float64Array[] {
  const lines = Buffer.from(bytes).toString('utf8').split('\n');
  return lines
    .filter((line) => line !== '')
    .map((line, i) => {
      const row = jsonOrNull(line);
      if (Array.isArray(row) && row.every(Number.isFinite)) return Float64Array.from(row as readonly number[]);
      throw damaged(`${where}, line ${i + 1}`, 'expected a list of log probabilities, found none');
    });
}

function countedIn({ lossMask }: Pick<PackedRow, 'lossMask'>): number {
  return lossMask.filter((mask) => mask !== 0).length;
}
