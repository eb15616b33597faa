import { present } from '../../core/present.ts';
import type { KeyPath } from '../toml/positions.ts';
import type { Reading } from '../toml/read-table.ts';
import { RatchetConfig } from '../settings/index.ts';
import { ratchet } from './ratchet-dialect.ts';
import { type Dialect, refusedFields, schemaOf } from './dialect.ts';
import { synonyms } from './ratchet-words.ts';

/** Reading of a file in our own words. */
export const ratchetReading: Reading = {
  schema: RatchetConfig,
  refused: refusedFields(ratchet),
  synonyms,
  keysIn: 'docs/guide/keys/',
  placeholder: (path: KeyPath) => {
    const key = path.at(-1);
    if (key === 'model' || key === 'id') return 'x';
    return key === 'env' && path.length === 1 ? [{ id: 'x' }] : undefined;
  },
};

/** Reading of a dialect's file: its suggestions include our words. */
export function readingOf(dialect: Dialect): Reading {
  if (dialect.schema) return ratchetReading;
  return {
    ...ratchetReading,
    schema: schemaOf(dialect),
    own: RatchetConfig,
    refused: refusedFields(dialect),
    synonyms: { ...synonyms, ...dialect.synonyms },
    keysIn: 'docs/guide/dialects/',
    ...present({ hints: dialect.hints }),
  };
}
