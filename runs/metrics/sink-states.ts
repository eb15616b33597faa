import { isRecord } from '../../store/objects.ts';
import type { SinkState, SinkStates } from '../../core/rl/metric-rows.ts';
import { decodeStored } from '../forms/stored-forms.ts';

/** `wandb: 12 of 40 rows sent; failing: …` for people; null where there is nothing to tell. */
export function describeSink(name: string, { next, rows, failing, place }: SinkState): string | null {
  if (failing !== null) return `${name}: ${next} of ${rows} rows sent; failing: ${failing}`;
  if (next < rows) return `${name}: ${next} of ${rows} rows sent${place === null ? '' : `, ${place}`}`;
  return place === null ? null : `${name}: ${place}`;
}

export function sinkStatesIn(bytes: Uint8Array, key: string): SinkStates {
  return decodeStored(bytes, key, (states) => ({
    'how far each sink is: next, rows, place and failing': Object.values(states).every(isSinkState),
  }));
}

function isSinkState(state: unknown): boolean {
  if (!isRecord(state)) return false;
  const { next, rows, place, failing } = state;
  return (
    [next, rows].every(Number.isSafeInteger) &&
    [place, failing].every((text) => text === null || typeof text === 'string')
  );
}
