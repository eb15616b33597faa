import type { StoredRescore } from '../../core/eval/rescore.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { groupsOfEvaluation } from './evaluation-groups.ts';
import { groupsOfRun } from './run-groups.ts';
import type { StoredGroup } from './stored-group.ts';

/** The groups of one chunk of a rescore, in their order. `open`: opens an environment by its name, where it is needed. */
export function storedGroups(
  { input, of }: Pick<StoredRescore, 'input' | 'of'>,
  chunk: number,
  open: (environment: string) => Promise<Environment>,
): AsyncIterable<StoredGroup> {
  return of.kind === 'run' ? groupsOfRun({ input, of }, chunk, open) : groupsOfEvaluation({ input, of }, chunk, open);
}
