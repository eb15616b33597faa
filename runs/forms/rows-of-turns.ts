import { sharePrompts, type SharedTurn, wholePrompts } from '../../core/rl/rollout/shared-prompts.ts';
import type { Turn } from '../../core/rl/rollout/rollout.ts';
import { damaged } from '../../store/objects.ts';

/** A row with the turns of one rollout, with a rollout, or with several. */
interface RowOf<One> {
  readonly turns?: readonly One[];
  readonly rollout?: RowOf<One>;
  readonly rollouts?: readonly RowOf<One>[];
}

/** The row as it is stored: its turns share their prompts. */
export function sharingPrompts(row: object): object {
  return mapTurns(row as RowOf<Turn>, sharePrompts);
}

/** A stored row with whole prompts; `where` names it in errors. */
export function withPrompts<Row>(row: Row, where: string): Row {
  return mapTurns(row as RowOf<SharedTurn>, (turns) => {
    const whole = wholePrompts(turns);
    if (whole) return whole;
    throw damaged(where, 'expected turns whose prompts begin as an earlier one, found one that refers to no such turn');
  }) as Row;
}

function mapTurns<From, To>(row: RowOf<From>, map: (turns: readonly From[]) => readonly To[]): RowOf<To> {
  const { turns, rollout, rollouts } = row;
  const mapped: RowOf<To> = {
    ...(turns ? { turns: map(turns) } : {}),
    ...(rollout ? { rollout: mapTurns(rollout, map) } : {}),
    ...(rollouts ? { rollouts: rollouts.map((one) => mapTurns(one, map)) } : {}),
  };
  return Object.assign({ ...row }, mapped);
}
