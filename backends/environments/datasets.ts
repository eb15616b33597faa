import { lazily } from '../../core/lazily.ts';
import { present } from '../../core/present.ts';
import { otherPart, readMessage, type WrittenMessage } from '../../core/rl/rollout/message-parts.ts';
import type { Dataset } from './types.ts';

/** A dataset from rows in memory, or from a function that makes them on first use; an example's id is its index. */
export function listDataset(given: readonly DatasetRow[] | (() => readonly DatasetRow[])): Dataset {
  const rows = typeof given === 'function' ? lazily(given) : () => given;
  return {
    get length() {
      return rows().length;
    },
    at(index) {
      const row = rows()[index];
      if (row === undefined) throw new RangeError(`Example ${index} of a dataset of ${rows().length}.`);
      const prompt =
        typeof row.prompt === 'string' ? [{ role: 'user' as const, content: row.prompt }] : row.prompt.map(readMessage);
      return { id: index, prompt, answer: row.answer, ...present({ info: row.info }) };
    },
    unlikeText() {
      for (const [index, { prompt }] of rows().entries()) {
        const type = typeof prompt === 'string' ? undefined : otherPart(prompt);
        if (type !== undefined) return { index, type };
      }
      return null;
    },
  };
}

/**
 * One row in its author's form: a prompt that is plain text is one user message. A message's content may be parts,
 * pictures among them.
 */
export interface DatasetRow {
  readonly prompt: string | readonly WrittenMessage[];
  readonly answer: string;
  readonly info?: Readonly<Record<string, unknown>>;
}
