import type { RunSpec } from '../../config/run-spec.ts';
import type { TurnsOf } from '../../config/step-cost.ts';
import type { Environment } from '../environments/types.ts';

/** How often the policy is asked in a rollout at most: by the run file, its environment, or an argument that says so. */
export function turnsOf(
  { environments }: Pick<RunSpec, 'environments'>,
  opened: ReadonlyMap<string, Environment>,
): TurnsOf {
  const turns = environments.flatMap(({ name, limits, args }): [string, number][] => {
    const said = limits?.maxTurns ?? opened.get(name)?.maxTurns ?? args['max_turns'];
    return typeof said === 'number' && said >= 1 ? [[name, said]] : [];
  });
  return new Map(turns);
}
