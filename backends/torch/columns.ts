import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { createHash } from 'node:crypto';
import { rowsAtOnceTokensMax } from '../../core/limits.ts';
import { RatchetError } from '../../core/errors.ts';
import {
  type ObservedSpan,
  type PackedRow,
  type RowSource,
  type TrainSample,
  windowsOf,
} from '../../core/rl/learning/batch.ts';
import type { LossSettings } from '../../config/run-spec.ts';
import { correctedAdvantages, encodeSafetensors, type NamedTensor, samplingWeights } from '../../engine/index.ts';

/** A batch for the ranks: files of columns, one value a token, row after row. A window of rows is in memory at a time. */

export interface ColumnPart {
  readonly path: string;
  readonly sha256: string;
}

/** Columns of a row, each as long as its tokens. All rows of a batch have the same columns. */
type RowColumns = Readonly<Record<string, ArrayLike<number>>>;

type AnyRow = Pick<PackedRow, 'tokenIds' | 'lossMask' | 'rollout' | 'temperature' | 'objective' | 'observed'>;

export async function writeColumns<Row extends AnyRow>(
  folder: string,
  source: Pick<RowSource<Row>, 'rows' | 'read'>,
  columnsOf: (row: Row, place: number) => RowColumns,
): Promise<ColumnPart[]> {
  const parts: ColumnPart[] = [];
  for (const places of windowsOf(source.rows, rowsAtOnceTokensMax)) {
    const rows = await source.read(places);
    const bytes = encodePart(rows, (row, i) => columnsOf(row, places[i]!), places[0]!);
    const file = path.join(folder, `rows-${parts.length}.safetensors`);
    await writeFile(file, bytes, { mode: 0o600 });
    parts.push({ path: file, sha256: createHash('sha256').update(bytes).digest('hex') });
  }
  return parts;
}

function encodePart<Row extends AnyRow>(
  rows: readonly Row[],
  columnsOf: (row: Row, i: number) => RowColumns,
  first: number,
): Uint8Array {
  const total = rows.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
  const tokens = new Int32Array(total);
  const columns = new Map<string, Float32Array>();
  let start = 0;
  for (const [i, row] of rows.entries()) {
    tokens.set(row.tokenIds, start);
    for (const [name, values] of Object.entries({ mask: row.lossMask, ...columnsOf(row, i) })) {
      if (values.length !== row.tokenIds.length)
        throw malformed(
          `${row.tokenIds.length} values of ${name} in row ${first + i}, one per token`,
          `${values.length}`,
        );
      if (!columns.has(name)) columns.set(name, new Float32Array(total));
      columns.get(name)!.set(values, start);
    }
    start += row.tokenIds.length;
  }
  const ofRows = (value: (row: Row) => number): NamedTensor => vector(Int32Array.from(rows, value));
  return encodeSafetensors({
    tokens: vector(tokens),
    ...Object.fromEntries([...columns].map(([name, values]) => [name, vector(values)])),
    'row.length': ofRows(({ tokenIds }) => tokenIds.length),
    'row.distilled': ofRows(({ objective }) => Number(objective === 'ref_kl')),
    'row.rollout': ofRows(({ rollout }) => rollout?.index ?? -1),
    'row.rollouts': ofRows(({ rollout }) => rollout?.of ?? -1),
    'row.temperature': vector(Float32Array.from(rows, ({ temperature }) => temperature ?? Number.NaN)),
  });
}

function vector(data: NamedTensor['data']): NamedTensor {
  return { shape: [data.length], data };
}

/** Columns that a policy loss reads. Advantages have their coefficient and the correction for the sampler already. */
export function policyColumns(
  loss: LossSettings,
  distillation: LossSettings | undefined,
  { hasObserved }: { readonly hasObserved: boolean },
): (row: TrainSample, place: number) => RowColumns {
  const hasTeacher = [loss, distillation].some((one) => (one?.teacherTau ?? 0) !== 0);
  return (row, place) => {
    const own = row.objective === 'ref_kl' ? distillation : loss;
    if (!own)
      throw new RatchetError(
        'Unsupported',
        'Rows of the batch are learned from a teacher alone: expected the loss of distillation beside that of the plan, got none.',
      );
    const { behaviorLogprobs: behavior, sampledLogprobs, lossMask } = row;
    const tau = own.teacherTau ?? 0;
    if (tau !== 0 && row.teacherLogprobs === undefined)
      throw malformed(`teacher logprobs in row ${place}, one per token`, 'none');
    return {
      behavior,
      sampled: sampledLogprobs ?? behavior,
      advantages: correctedAdvantages(row, own.advantageTau ?? 1),
      ...(hasTeacher && {
        teacher_logprobs: row.teacherLogprobs ?? lossMask.map(() => 0),
        teacher_weights: tau === 0 ? lossMask.map(() => 0) : samplingWeights(row).map((weight) => tau * weight),
      }),
      ...(hasObserved && { observed: observedWeights(row.observed ?? [], lossMask.length) }),
    };
  };
}

function observedWeights(spans: readonly ObservedSpan[], tokens: number): Float32Array {
  const weights = new Float32Array(tokens);
  for (const { from, to, weight } of spans) weights.fill(weight, from, to);
  return weights;
}

/** Cuts values that are aligned with the tokens of all rows, row by row. */
export function cutByRows(values: Float32Array, rows: readonly { readonly tokens: number }[]): Float32Array[] {
  let start = 0;
  return rows.map(({ tokens }) => values.slice(start, (start += tokens)));
}

function malformed(expected: string, received: string): RatchetError {
  return new RatchetError('Unsupported', `The training batch is malformed: expected ${expected}, got ${received}.`);
}
