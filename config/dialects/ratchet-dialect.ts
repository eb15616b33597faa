import { isEnvironmentFile } from '../../core/names.ts';
import { isTable, valueAt } from '../toml/tables.ts';
import type { Dialect } from './dialect.ts';
import { RatchetConfig } from '../settings/index.ts';
import { ratchetFields, writeOutShorthands } from './ratchet-words.ts';

/** Our own dialect, which all others are translated into. */
export const ratchet: Dialect = {
  name: 'ratchet',
  title: 'Ratchet',
  fields: ratchetFields,
  schema: RatchetConfig,
  defaults: {},
  prepare: writeOutShorthands,
  proof: ({ model, store, trainer, env }) => {
    if (typeof model === 'string' && /^(?:preset:|\.{0,2}\/)/.test(model)) return `model = "${model}"`;
    const file = Array.isArray(env) && env.map((entry) => valueAt(entry, ['id'])).find(isFile);
    if (typeof file === 'string') return `[[env]] id = "${file}"`;
    if (Array.isArray(env) && env.some((entry) => valueAt(entry, ['kind']) === 'agent'))
      return '[[env]] kind = "agent"';
    if (isTable(store)) return '[store]';
    return isTable(trainer) && 'kind' in trainer ? '[trainer] kind' : undefined;
  },
};

function isFile(id: unknown): boolean {
  return typeof id === 'string' && isEnvironmentFile(id);
}
