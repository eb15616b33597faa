import type { Environment } from '../backends/environments/types.ts';

type Resuming = Pick<Environment, 'isDeterministic' | 'saysState' | 'isSingleTurn'>;

/**
 * How an unfinished rollout continues after a death: its turns are given again and its environment does the same again
 * (`replay`), its environment goes on from what it wrote down (`state`), or it is played again from the start (`anew`).
 */
export function resumeOf({
  isDeterministic,
  saysState = false,
  isSingleTurn = false,
}: Resuming): 'replay' | 'state' | 'anew' {
  if (isSingleTurn) return 'anew'; // its only turn ends it
  return saysState ? 'state' : isDeterministic ? 'replay' : 'anew';
}

/** Whether finished turns of an unfinished rollout are stored, and given again. */
export function keepsTurns(environment: Resuming): boolean {
  return resumeOf(environment) !== 'anew';
}

/** How a rollout continues after a death and what the death costs, in a sentence. */
export function saysResume(environment: Resuming): string {
  if (environment.isSingleTurn === true) return 'begins anew: its one turn is sampled again';
  const says = {
    replay:
      'replay of calls: its finished turns are given again, and replies and tool calls are made again for each; it costs their time, and the turn under way',
    state: 'goes on from its state: nothing that was finished is done again; it costs the turn under way',
    anew: 'begins anew: all of its turns are sampled again',
  };
  return says[resumeOf(environment)];
}
