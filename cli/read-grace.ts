import { InvalidArgumentError } from 'commander';
import type { WorkerRole } from '../core/names.ts';

/** A step of a large model takes minutes, hardly ever more than an hour. */
const graceSecondsMax = 24 * 3_600;

/** `--grace 120`: seconds. */
export function readGrace(text: string): number {
  const seconds = text.trim() === '' ? Number.NaN : Number(text);
  if (seconds >= 0 && seconds <= graceSecondsMax) return seconds;
  throw new InvalidArgumentError(`Expected seconds from 0 to ${graceSecondsMax}.`);
}

/**
 * Seconds that work under way has to finish where nobody says how long. What a rollout worker has not finished another one continues with: the
 * sooner it hands it over the better.
 */
export const graceSecondsUsual: Readonly<Record<WorkerRole, number>> = { orchestrator: 20, rollout: 0.5, train: 20 };
