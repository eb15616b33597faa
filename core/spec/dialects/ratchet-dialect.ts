import { isTable } from '../tables.ts';
import type { Dialect } from './dialect.ts';
import { RatchetConfig } from './ratchet.ts';
import { writeOutShorthands } from './ratchet-words.ts';

/** Our own: what all others become. */
export const ratchet: Dialect = {
  name: 'ratchet',
  title: 'Ratchet',
  fields: {},
  schema: RatchetConfig,
  defaults: {},
  prepare: writeOutShorthands,
  proof: ({ model, store, trainer }) => {
    if (typeof model === 'string' && model.startsWith('preset:')) return `model = "${model}"`;
    if (isTable(store)) return '[store]';
    return isTable(trainer) && 'kind' in trainer ? '[trainer] kind' : undefined;
  },
};
