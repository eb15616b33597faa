import type { z } from 'zod';
import { whole } from '../values.ts';

/**
 * Fields whose feature is still to come. They are read, checked and kept in the run's spec (`later`), and `ratchet check`
 * lists those that a file has. By path, as in a dialect's table of fields.
 */
export interface LaterField {
  readonly schema: z.ZodType;
  /** What will honour it. */
  readonly feature: string;
  /** What it means, for the documentation. */
  readonly meaning: string;
}

export const laterFields: Readonly<Record<string, LaterField>> = {
  seq_len: {
    schema: whole(1),
    feature: 'trainers on GPUs',
    meaning: 'tokens of the longest row that is trained on',
  },
};

/** The fields of one table, as a shape for its schema: all of them may be left out. */
export function laterShape(table: string): Record<string, z.ZodOptional> {
  const prefix = table === '' ? '' : `${table}.`;
  return Object.fromEntries(
    Object.entries(laterFields)
      .filter(([path]) => path.startsWith(prefix) && !path.slice(prefix.length).includes('.'))
      .map(([path, { schema }]) => [path.slice(prefix.length), schema.optional()]),
  );
}
