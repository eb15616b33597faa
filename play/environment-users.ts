import type { EvaluationHandle } from '../core/eval/evaluation.ts';
import type { RescoreHandle } from '../core/eval/rescore.ts';
import type { PromptSearchHandle } from '../core/gepa/prompt-search.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import { environments as ofThisProcess, type Environments, environmentsFor } from '../backends/environments/index.ts';

/**
 * Environments as used by one run, evaluation, search or rescore; this process's own by default. Each start counts as another
 * user, since other packages may be installed in between.
 */

export function environmentsOfEvaluation(
  environments: Environments | undefined,
  { place, attempt }: Pick<EvaluationHandle, 'place' | 'attempt'>,
): Environments {
  return environmentsFor(environments ?? ofThisProcess, JSON.stringify(['evaluation', place, attempt]));
}

export function environmentsOfSearch(
  environments: Environments | undefined,
  { place }: Pick<PromptSearchHandle, 'place'>,
): Environments {
  return environmentsFor(environments ?? ofThisProcess, JSON.stringify(['search', place]));
}

export function environmentsOfRescore(
  environments: Environments | undefined,
  { place }: Pick<RescoreHandle, 'place'>,
): Environments {
  return environmentsFor(environments ?? ofThisProcess, JSON.stringify(['rescore', place]));
}

export function environmentsOfRun(
  environments: Environments | undefined,
  { store, name, lineage, attempt }: RunHandle,
): Environments {
  return environmentsFor(environments ?? ofThisProcess, JSON.stringify(['run', store, name, lineage, attempt]));
}
