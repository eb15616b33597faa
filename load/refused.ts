import { RatchetError } from '../core/errors.ts';
import type { KeyPath } from '../config/toml/positions.ts';
import type { Place, Problem } from '../config/toml/problems.ts';

/** An unsuitable file that a config names; the caller knows which field names it. */
export class Refused extends RatchetError {
  readonly said: Pick<Problem, 'expected' | 'received' | 'suggestion'>;

  constructor(said: Pick<Problem, 'expected' | 'received' | 'suggestion'>, cause?: unknown) {
    super('ConfigInvalid', `expected ${said.expected}; got ${said.received}`, { cause });
    this.said = said;
  }
}

export function trying(placeOf: (...names: KeyPath[]) => Place): {
  readonly tried: Tried;
  /** Problems of all files that the config names, reported together. */
  readonly problems: ReadonlyMap<string, Problem>;
} {
  const problems = new Map<string, Problem>();
  const tried: Tried = async (names, look) => {
    try {
      return await look();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      const problem = { ...placeOf(...names), ...error.said };
      problems.set(JSON.stringify(problem), problem);
      return null;
    }
  };
  return { tried, problems };
}

/** Examines something that a field names; null for a refusal, which is reported with the others. */
export type Tried = <T>(names: readonly KeyPath[], look: () => Promise<T>) => Promise<T | null>;
