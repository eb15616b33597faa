import type { ConfigLayer } from '../../core/config-layer.ts';
import { isRecord } from '../../store/objects.ts';
import { decodeStored } from './stored-forms.ts';

/** Source of a stored spec, stored beside it for commands that start the run again. */
export interface SpecSource {
  /** Absolute path. */
  readonly config: string;
  /** Absolute paths. */
  readonly over?: readonly ConfigLayer[];
  readonly dialect?: string;
  readonly overrides: Readonly<Record<string, string>>;
  /** The newest attempt that was started with it; missing before the first. */
  readonly attempt?: number;
}

export function specSourceIn(bytes: Uint8Array, key: string): SpecSource {
  return decodeStored<SpecSource>(bytes, key, ({ config, over, dialect, overrides, attempt }) => ({
    'the absolute path of a run file': typeof config === 'string',
    'files that were laid over it, or nothing':
      over === undefined ||
      (Array.isArray(over) && over.every((layer) => isRecord(layer) && typeof layer['file'] === 'string')),
    'the name of a dialect, or nothing': dialect === undefined || typeof dialect === 'string',
    'what was typed besides, as texts':
      isRecord(overrides) && Object.values(overrides).every((value) => typeof value === 'string'),
    'the number of an attempt, or nothing': attempt === undefined || Number.isSafeInteger(attempt),
  }));
}
