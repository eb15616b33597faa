import { InvalidArgumentError } from '@commander-js/extra-typings';
import type { WorkerRole } from '../../core/names.ts';

/** Upper limit of a grace: a step of a large model takes minutes, hardly ever more than an hour. */
const graceSecondsMax = 24 * 3_600;

/** `--grace 120`: seconds. */
export function readGrace(text: string): number {
  const seconds = text.trim() === '' ? Number.NaN : Number(text);
  if (seconds >= 0 && seconds <= graceSecondsMax) return seconds;
  throw new InvalidArgumentError(`Expected seconds from 0 to ${graceSecondsMax}.`);
}

/**
 * Default seconds in which work under way may finish. Another rollout worker continues unfinished rollouts, so an early
 * handover is better.
 */
export const graceSecondsDefault: Readonly<Record<WorkerRole, number>> = { orchestrator: 20, rollout: 0.5, train: 20 };
