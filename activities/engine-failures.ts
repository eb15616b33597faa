import { RatchetError } from '../core/errors.ts';
import { engineFailuresMax } from '../core/limits.ts';
import { memoryRemedies, saysOutOfMemory } from '../core/rl/failures.ts';

/**
 * The trainer's failure as one of ours: where its words, or the way its process ended, say that memory ran out, it is
 * `OutOfMemory` with what may be done about it.
 */
export function trainerFailure(error: unknown): unknown {
  if (!(error instanceof Error) || (error instanceof RatchetError && error.code !== 'EngineDied')) return error;
  if (!saysOutOfMemory(error.message)) return error;
  return new RatchetError(
    'OutOfMemory',
    `The trainer seems to have run out of memory: ${error.message} Remedies: ${memoryRemedies.trainer}.`,
    { cause: error },
  );
}

/**
 * Counts how often in a row the engine died of one piece of work, in this process. A death is weather; several of the same
 * work are not, and are refused as `TrainerFailing`, for a person to look at.
 */
export class EngineFailures {
  #work: string | null = null;
  #count = 0;

  async during<T>(work: string, what: string, attempt: () => Promise<T>): Promise<T> {
    try {
      const result = await attempt();
      if (this.#work === work) this.#count = 0;
      return result;
    } catch (error) {
      if (!(error instanceof RatchetError) || (error.code !== 'EngineDied' && error.code !== 'OutOfMemory'))
        throw error;
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
