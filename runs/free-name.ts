import { RatchetError } from '../core/errors.ts';
import { namesBesideRuns } from '../core/names.ts';

/** Throws where a run is about to begin under a name that is not free for runs. */
export function requireFreeName(run: string): void {
  if (!namesBesideRuns.some((name) => name === run)) return;
  throw new RatchetError(
    'ConfigInvalid',
    `expected another name for a run than ${namesBesideRuns.join(', ')}, got ${run}: beside the runs, a folder of this name holds something else. Give it another one: --name NAME.`,
  );
}
