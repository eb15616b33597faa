import { layout } from '../layout.ts';
import { isRecord } from '../../store/objects.ts';
import type { MetricsRow } from '../../core/rl/metric-rows.ts';
import type { Store } from '../../store/types.ts';

/** Keys of existing rows, by store. Read once and updated as this process appends; read again when a run is opened. */
const written = new Map<string, Set<string>>();

/** Appends a row unless there is one with the same lineage, step and kind. The file can be rebuilt from the commits. */
export async function appendMetrics(store: Store, row: MetricsRow): Promise<void> {
  const known = await rowKeysIn(store);
  const key = rowKey(row);
  if (known.has(key)) return;
  try {
    await store.append(layout.metrics(), `${JSON.stringify(row)}\n`);
  } catch (error) {
    written.delete(store.uri); // a partial line may be there: checked before the next row
    throw error;
  }
  known.add(key);
}

/** Forces a fresh read of the rows: another process may have removed the file or started the whole run over. */
export function forgetMetrics({ uri }: Pick<Store, 'uri'>): void {
  written.delete(uri);
}

/** Whether a committed step, or an evaluation of it, has a row. */
export async function hasMetrics(store: Store, row: Pick<MetricsRow, 'lineage' | 'step'>): Promise<boolean> {
  return (await rowKeysIn(store)).has(rowKey(row));
}

/** All complete rows, in the order they were written; empty without a file. */
export async function readMetrics(store: Store): Promise<MetricsRow[]> {
  const bytes = await store.read(layout.metrics());
  return bytes ? wholeRows(bytes) : [];
}

/** Number of lines that are not rows, except a last one that is still being written after complete ones. */
export async function unreadableRows(store: Store): Promise<number> {
  const bytes = (await store.read(layout.metrics())) ?? Buffer.of();
  if (wholeRows(bytes).length === 0) return linesOf(bytes).length;
  const ended = bytes.subarray(0, bytes.lastIndexOf(0x0a) + 1);
  return linesOf(ended).length - wholeRows(ended).length;
}

/**
 * Keeps the rows that can be read, to be put back once the damaged file has been moved away. No other process may use
 * the run meanwhile.
 */
export async function keepWholeRows(store: Store): Promise<{ readonly putBack: () => Promise<void> }> {
  const rows = await readMetrics(store).catch(() => []); // no file at all: the commits have their rows
  return {
    putBack: async () => {
      written.delete(store.uri);
      if (rows.length > 0) await store.append(layout.metrics(), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
    },
  };
}

async function rowKeysIn(store: Store): Promise<Set<string>> {
  const known = written.get(store.uri) ?? (await readKeys(store));
  written.set(store.uri, known);
  return known;
}

/** Terminates a partial line left by a full disk or a killed writer, so that it spoils no other line. */
async function closeLastLine(store: Store, bytes: Uint8Array): Promise<void> {
  if (bytes.length > 0 && bytes.at(-1) !== 0x0a) await store.append(layout.metrics(), '\n');
}

async function readKeys(store: Store): Promise<Set<string>> {
  const bytes = await store.read(layout.metrics());
  if (!bytes) return new Set();
  await closeLastLine(store, bytes);
  return new Set(wholeRows(bytes).map(rowKey));
}

function wholeRows(bytes: Uint8Array): MetricsRow[] {
  return linesOf(bytes).flatMap((line) => {
    try {
      const row: unknown = JSON.parse(line);
      return isMetricsRow(row) ? [row] : []; // skipped: it is written again from its commit
    } catch {
      return []; // also a partial line
    }
  });
}

function linesOf(bytes: Uint8Array): string[] {
  return Buffer.from(bytes)
    .toString('utf8')
    .split('\n')
    .filter((line) => line !== '');
}

export function isMetricsRow(row: unknown): row is MetricsRow {
  return isRecord(row) && Number.isSafeInteger(row['step']) && typeof row['lineage'] === 'string';
}

/** Key that distinguishes a row. */
export function rowKey(row: Pick<MetricsRow, 'lineage' | 'step'>): string {
  const beside = Object.keys(row)
    .find((name) => /^(?:eval|search|trial)\//.test(name))
    ?.split('/');
  const kind = beside === undefined ? 'train' : beside[0] === 'eval' ? beside[1] : `${beside[0]} ${beside[1]}`;
  return `${row.lineage}/${row.step}/${kind}`;
}
