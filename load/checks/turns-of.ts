import type { RunSpec } from '../../config/run-spec.ts';
import type { TurnsOf } from '../../config/step-cost.ts';
import type { Environment } from '../../backends/environments/types.ts';

/** Most turns of the policy in a rollout, from the run file, the environment, or an argument. */
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
