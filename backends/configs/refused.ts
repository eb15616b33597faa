import { RatchetError } from '../../core/errors.ts';
import type { KeyPath } from '../../config/positions.ts';
import type { Place, Problem } from '../../config/problems.ts';

/** A file that a config names and that will not do; which field names it is known to whoever asked. */
export class Refused extends RatchetError {
  readonly said: Pick<Problem, 'expected' | 'received' | 'suggestion'>;

  constructor(said: Pick<Problem, 'expected' | 'received' | 'suggestion'>, cause?: unknown) {
    super('ConfigInvalid', `expected ${said.expected}; got ${said.received}`, { cause });
    this.said = said;
  }
}

export function trying(placeOf: (...names: KeyPath[]) => Place): {
  readonly tried: Tried;
  /** All that is wrong with files that the config names, to be said at once. */
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

/** Looks at something that a field names; null where that was refused, which is said with the others. */
export type Tried = <T>(names: readonly KeyPath[], look: () => Promise<T>) => Promise<T | null>;
