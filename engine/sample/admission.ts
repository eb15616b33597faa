import { prefillPositionsMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import { rowBytes } from './row-bytes.ts';
import type { SamplingLimits } from './sampling-limits.ts';
import { rowsMin } from './sequence-request.ts';

interface WaitingRow {
  /** Grows with the order of arrival. */
  readonly id: number;
  readonly request: { readonly promptTokenIds: readonly number[]; readonly maxTokens: number };
}

/** The rows of one policy version: those that run, and those that wait in the order of their arrival. */
export interface VersionQueue {
  readonly running: BatchSize;
  readonly waiting: readonly WaitingRow[];
}

export interface BatchSize {
  readonly rows: number;
  /** The most positions a row of it may come to. */
  readonly length: number;
}

/** Keys and values that a batch may come to need: every row is as long as the longest may become. */
export function batchBytes(config: ModelConfig, { rows, length }: BatchSize): number {
  return rows === 0 ? 0 : Math.max(rows, rowsMin) * rowBytes(config, length);
}

export function rowLengthMax({ promptTokenIds, maxTokens }: WaitingRow['request']): number {
  return promptTokenIds.length + maxTokens;
}

/**
 * How many waiting rows of each queue may start now, in order of arrival. A queue that has used up its share of memory
 * waits for its own rows to end. A queue without running rows that finds no room holds back all later arrivals.
 */
export function admit(config: ModelConfig, limits: AdmissionLimits, lines: readonly VersionQueue[]): number[] {
  const progress = lines.map((line) => ({ ...line, size: line.running, taken: 0, positions: 0 }));
  const open = new Set(progress.filter(({ waiting }) => waiting.length > 0));
  let bytes = progress.reduce((sum, { size }) => sum + batchBytes(config, size), 0);
  while (open.size > 0) {
    const line = [...open].reduce((first, each) => (headOf(each).id < headOf(first).id ? each : first));
    const { request } = headOf(line);
    const size = { rows: line.size.rows + 1, length: Math.max(line.size.length, rowLengthMax(request)) };
    const othersBytes = bytes - batchBytes(config, line.size);
    if (!mayGrow(size, { bytes: batchBytes(config, size), othersBytes, ...limits })) {
      if (line.size.rows === 0) break;
      open.delete(line);
      continue;
    }
    line.size = size;
    line.taken++;
    line.positions += request.promptTokenIds.length;
    bytes = othersBytes + batchBytes(config, size);
    // The rest of a long queue waits for a step, so that running rows are not delayed.
    if (line.positions >= prefillPositionsMax || line.taken === line.waiting.length) open.delete(line);
  }
  return progress.map(({ taken }) => taken);
}

/**
 * A batch may take three times the memory that it leaves free (dynamic thresholds, Choudhury & Hahne 1998): a single
 * version fills three quarters, so that another can begin. A batch that starts alone may take the bound for the
 * smallest batch; larger requests were refused earlier.
 */
function mayGrow(
  { rows }: BatchSize,
  { bytes, othersBytes, ...limits }: { bytes: number; othersBytes: number } & AdmissionLimits,
): boolean {
  if (othersBytes === 0 && rows <= rowsMin) return bytes <= limits.aloneBytesMax;
  const free = limits.keyValueBytesMax - othersBytes - bytes;
  return rows <= limits.rowsMax && free >= 0 && bytes <= shareOfFree * free;
}

type AdmissionLimits = Pick<SamplingLimits, 'keyValueBytesMax' | 'aloneBytesMax' | 'rowsMax'>;

const shareOfFree = 3;

function headOf({ waiting, taken }: { waiting: readonly WaitingRow[]; taken: number }): WaitingRow {
  return waiting[taken]!;
}
