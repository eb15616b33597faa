import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { rename, rm } from 'node:fs/promises';
import type { BasicType, ColumnSource } from 'hyparquet-writer';
import type { ChatMessage, ScoredGroup, ScoredRollout } from '../core/rl/rollout/rollout.ts';

/** A rollout as a row of a table. */
export interface RolloutTableRow {
  readonly run: string;
  readonly lineage: string;
  readonly step: number;
  readonly group: number;
  readonly index: number;
  readonly environment: string;
  readonly example_id: number;
  /** The version that its group began from. */
  readonly policy_step: number;
  readonly outcome: string;
  readonly reward: number | null;
  /** Mean advantage over its trained tokens; null when it was not trained, or its batch is no longer stored. */
  readonly advantage: number | null;
  /** How its group ended: `trained`, `filtered:too_easy`, `stale`, …; null while that is open. */
  readonly end: string | null;
  /** Step at which its group ended. */
  readonly end_step: number | null;
  readonly turns: number;
  /** Sampled tokens of all turns. */
  readonly tokens: number;
  /** null when the environment writes its own rows. */
  readonly prompt: readonly ChatMessage[] | null;
  /** Messages of the policy and, between them, of the environment. */
  readonly completion: readonly object[];
  /** Reward functions by name, unweighted. */
  readonly metrics: Readonly<Record<string, number>>;
  readonly error: string | null;
}

/** Parquet types. Structured values are JSON text, so that any reader takes them. */
const columnTypes: Readonly<Record<keyof RolloutTableRow, BasicType>> = {
  run: 'STRING',
  lineage: 'STRING',
  step: 'INT32',
  group: 'INT32',
  index: 'INT32',
  environment: 'STRING',
  example_id: 'INT32',
  policy_step: 'INT32',
  outcome: 'STRING',
  reward: 'DOUBLE',
  advantage: 'DOUBLE',
  end: 'STRING',
  end_step: 'INT32',
  turns: 'INT32',
  tokens: 'INT32',
  prompt: 'STRING',
  completion: 'STRING',
  metrics: 'STRING',
  error: 'STRING',
};
const mayBeMissing: readonly (keyof RolloutTableRow)[] = ['reward', 'advantage', 'end', 'end_step', 'prompt', 'error'];

/** Rows in a row group of Parquet: a reader holds at least one group in memory. */
const rowsOfRowGroup = 5_000;

export type TableFormat = 'jsonl' | 'parquet';

/** Writes rows as they come, with bounded memory. The file appears once it is complete. Returns the number of rows. */
export async function writeTable(
  file: string,
  format: TableFormat,
  parts: AsyncIterable<readonly RolloutTableRow[]>,
): Promise<number> {
  const unfinished = `${file}.${process.pid}.part`;
  const table = format === 'jsonl' ? jsonlTable(unfinished) : await parquetTable(unfinished);
  let count = 0;
  try {
    for await (const rows of parts) {
      count += rows.length;
      await table.write(rows);
    }
    await table.end();
    await rename(unfinished, file);
  } finally {
    await rm(unfinished, { force: true });
  }
  return count;
}

export function tableRow(
  of: Pick<RolloutTableRow, 'run' | 'lineage' | 'step'>,
  { ordinal, environment, exampleId, policyStep, example }: ScoredGroup,
  { index, outcome, reward, turns, metrics, error }: ScoredRollout,
  became: Pick<RolloutTableRow, 'advantage' | 'end' | 'end_step'>,
): RolloutTableRow {
  const said = turns.flatMap(({ heard = [], text, toolCalls }) => [
    ...heard,
    { role: 'assistant', content: text, ...(toolCalls && { tool_calls: toolCalls }) },
  ]);
  return {
    ...of,
    group: ordinal,
    index,
    environment,
    example_id: exampleId,
    policy_step: policyStep,
    outcome,
    reward,
    ...became,
    turns: turns.length,
    tokens: turns.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0),
    prompt: example?.prompt ?? null,
    completion: said,
    metrics,
    error: error ?? null,
  };
}

interface Table {
  write(rows: readonly RolloutTableRow[]): Promise<void>;
  end(): Promise<void>;
}

/** One JSON object per line. */
function jsonlTable(file: string): Table {
  const stream = createWriteStream(file, { flags: 'wx', mode: 0o600 });
  const failed = once(stream, 'close').then(() => undefined);
  failed.catch(() => undefined); // thrown by the next write
  return {
    async write(rows) {
      const lines = rows.map((row) => `${JSON.stringify(row)}\n`);
      if (!stream.write(lines.join(''))) await Promise.race([once(stream, 'drain'), failed]);
    },
    async end() {
      stream.end();
      await failed;
    },
  };
}

async function parquetTable(file: string): Promise<Table> {
  const { fileWriter, ParquetWriter, schemaFromColumnData } = await import('hyparquet-writer');
  const names = Object.keys(columnTypes) as (keyof RolloutTableRow)[];
  const columns = (rows: readonly RolloutTableRow[]): ColumnSource[] =>
    names.map((name) => ({
      name,
      type: columnTypes[name],
      data: rows.map(({ [name]: value }) =>
        value !== null && typeof value === 'object' ? JSON.stringify(value) : value,
      ),
      nullable: mayBeMissing.includes(name),
    }));
  const writer = fileWriter(file);
  const parquet = new ParquetWriter({
    writer,
    schema: schemaFromColumnData({ columnData: columns([]) }),
    createdBy: 'ratchet',
  });
  let waiting: RolloutTableRow[] = [];
  const flush = async (): Promise<void> => {
    await parquet.write({ columnData: columns(waiting), rowGroupSize: rowsOfRowGroup });
    waiting = [];
  };
  return {
    async write(rows) {
      waiting.push(...rows);
      if (waiting.length >= rowsOfRowGroup) await flush();
    },
    async end() {
      if (waiting.length > 0) await flush();
      await parquet.finish();
    },
  };
}
