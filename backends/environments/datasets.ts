import type { ChatMessage } from '../../core/rl/rollout.ts';
import type { Dataset } from './types.ts';

/** A dataset from rows in memory; an example's id is its position. */
export function listDataset(rows: readonly DatasetRow[]): Dataset {
  return {
    length: rows.length,
    at(index) {
      const row = rows[index];
      if (row === undefined) throw new RangeError(`Example ${index} of a dataset of ${rows.length}.`);
      const prompt = typeof row.prompt === 'string' ? [{ role: 'user' as const, content: row.prompt }] : row.prompt;
      return { id: index, prompt, answer: row.answer, ...(row.info === undefined ? {} : { info: row.info }) };
    },
  };
}

/** One row as its author writes it: a prompt that is plain text is one user message. */
export interface DatasetRow {
  readonly prompt: string | readonly ChatMessage[];
  readonly answer: string;
  readonly info?: Readonly<Record<string, unknown>>;
}
