import { RatchetError } from '../../core/errors.ts';
import type { Problem } from '../../config/problems.ts';

/** A file that a config names and that will not do; which field names it is known to whoever asked. */
export class Refused extends RatchetError {
  readonly said: Pick<Problem, 'expected' | 'received' | 'suggestion'>;

  constructor(said: Pick<Problem, 'expected' | 'received' | 'suggestion'>, cause?: unknown) {
    super('ConfigInvalid', `expected ${said.expected}; got ${said.received}`, { cause });
    this.said = said;
  }
}
