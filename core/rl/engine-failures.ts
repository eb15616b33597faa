import { asRatchetError, RatchetError } from '../errors.ts';
import { engineFailuresMax } from '../limits.ts';
import type { StepPlan } from './run-state.ts';
import { memoryRemedies, ncclRemedy, saysNcclFailed, saysOnlyKilled, saysOutOfMemory } from './failures.ts';

/**
 * The trainer's failure as one of ours: where its words, or the way its process ended, say that memory ran out, it is
 * `OutOfMemory`, where they speak of NCCL `NcclFailed`, each with what may be done about it.
 */
export function trainerFailure(given: unknown): unknown {
  const error = asRatchetError(given);
  if (!(error instanceof Error) || (error instanceof RatchetError && error.code !== 'EngineDied')) return error;
  // First: GPUs of whom one ran out of memory cannot talk to that one either.
  if (saysOutOfMemory(error.message)) {
    return new RatchetError(
      'OutOfMemory',
      `The trainer seems to have run out of memory: ${error.message} Remedies: ${memoryRemedies.trainer}.`,
      { cause: error },
    );
  }
  if (!saysNcclFailed(error.message)) return error;
  return new RatchetError(
    'NcclFailed',
    `The trainer's GPUs could not talk to one another: ${error.message} Remedies: ${ncclRemedy}.`,
    { cause: error },
  );
}

/** How an engine ends in the middle of its work. */
const deaths: ReadonlySet<string> = new Set<RatchetError['code']>(['EngineDied', 'OutOfMemory', 'NcclFailed']);

/**
 * Counts how often in a row the engine died of one piece of work, in this process. A death is weather; several of the same
 * work are not, and are refused as `TrainerFailing`, for a person to look at.
 */
export class EngineFailures {
  #work: string | null = null;
  #count = 0;

  /** Whether the last attempt at this work died here. */
  diedOf(work: string): boolean {
    return this.#work === work && this.#count > 0;
  }

  async during<T>(work: string, what: string, attempt: () => Promise<T>): Promise<T> {
    try {
      const result = await attempt();
      if (this.#work === work) this.#count = 0;
      return result;
    } catch (error) {
      if (!(error instanceof RatchetError) || !deaths.has(error.code)) throw error;
      this.#count = this.#work === work ? this.#count + 1 : 1;
      this.#work = work;
      if (this.#count < engineFailuresMax) throw error;
      this.#count = 0; // whoever asks again after this has done something about it
      throw new RatchetError(
        'TrainerFailing',
        `${what}: the trainer failed ${engineFailuresMax} times in a row, the last time with ${error.code}: ${error.message}`,
        { cause: error },
      );
    }
  }
}

/** Rows that an engine which chooses itself computes at once, at most: what is halved where the plan names no number. */
const rowsAtOnceUsual = 64;

/**
 * Rows at once for the one more try that a step gets which ran out of memory: half of what they were. Null where there is nothing to
 * halve, or it has been. A process that was killed once is no proof, and half the rows give other bits: the same is done again first.
 */
export function halvedRows(
  { microBatchSize, isHalved, packed }: StepPlan,
  error: unknown,
  { diedBefore }: { readonly diedBefore: boolean },
): number | null {
  if (!(error instanceof RatchetError) || error.code !== 'OutOfMemory' || isHalved === true) return null;
  const { message } = error.cause instanceof Error ? error.cause : error;
  if (saysOnlyKilled(message) && !diedBefore) return null;
  const rows = Math.min(microBatchSize ?? rowsAtOnceUsual, packed.count ?? rowsAtOnceUsual);
  return rows < 2 ? null : Math.floor(rows / 2);
}
