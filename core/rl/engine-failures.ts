import { asRatchetError, RatchetError } from '../errors.ts';
import { engineFailuresMax } from '../limits.ts';
import type { StepPlan } from './run-state.ts';
import { memoryRemedies, ncclRemedy, saysNcclFailed, saysOnlyKilled, saysOutOfMemory } from './failures.ts';

/**
 * Translates a trainer's failure into ours: by its message, or the way its process ended, `OutOfMemory` or
 * `NcclFailed`, each with a remedy.
 */
export function trainerFailure(given: unknown): unknown {
  const error = asRatchetError(given);
  if (!(error instanceof Error) || (error instanceof RatchetError && error.code !== 'EngineDied')) return error;
  // Comes first: if one GPU ran out of memory, the others cannot talk to it either.
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
 * Counts deaths of the engine in a row on one piece of work, in this process. One death is chance; several are refused
 * as `TrainerFailing`, for a person to look at.
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
      this.#count = 0; // a later call means that something was done about it
      throw new RatchetError(
        'TrainerFailing',
        `${what}: the trainer failed ${engineFailuresMax} times in a row, the last time with ${error.code}: ${error.message}`,
        { cause: error },
      );
    }
  }
}

/** Most rows that an engine computes at once by default: halved if the plan has no number. */
const rowsAtOnceDefault = 64;

/**
 * Rows at once for the retry of a step that ran out of memory: half of the number before. Null if it cannot be halved,
 * or was already. A process that was killed once is no proof, and half the rows give other bits: the step is first
 * repeated unchanged.
 */
export function halvedRows(
  { microBatchSize, isHalved, packed }: StepPlan,
  error: unknown,
  { diedBefore }: { readonly diedBefore: boolean },
): number | null {
  if (!(error instanceof RatchetError) || error.code !== 'OutOfMemory' || isHalved === true) return null;
  const { message } = error.cause instanceof Error ? error.cause : error;
  if (saysOnlyKilled(message) && !diedBefore) return null;
  const rows = Math.min(microBatchSize ?? rowsAtOnceDefault, packed.count ?? rowsAtOnceDefault);
  return rows < 2 ? null : Math.floor(rows / 2);
}
