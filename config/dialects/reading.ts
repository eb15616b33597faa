import type { KeyPath } from '../positions.ts';
import type { Reading } from '../read-table.ts';
import { RatchetConfig } from '../settings/index.ts';
import { type Dialect, refusedFields, schemaOf } from './dialect.ts';
import { knownUnsupported, synonyms } from './ratchet-words.ts';

/** How a file in our own words is read. */
export const ratchetReading: Reading = {
  schema: RatchetConfig,
  refused: knownUnsupported,
  synonyms,
  keysIn: 'docs/guide/keys/',
  placeholder: (path: KeyPath) => {
    const key = path.at(-1);
    if (key === 'model' || key === 'id') return 'x';
    return key === 'env' && path.length === 1 ? [{ id: 'x' }] : undefined;
  },
};

/** How a file of a dialect is read: its suggestions know our words as well. */
export function readingOf(dialect: Dialect): Reading {
  if (dialect.schema) return ratchetReading;
  return {
    ...ratchetReading,
    schema: schemaOf(dialect),
    own: RatchetConfig,
    refused: refusedFields(dialect),
    synonyms: { ...synonyms, ...dialect.synonyms },
    keysIn: 'docs/guide/dialects/',
    ...(dialect.hints === undefined ? {} : { hints: dialect.hints }),
  };
}
