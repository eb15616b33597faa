import {
  addCounts,
  decodeRanges,
  encodeRanges,
  recordOutcomes,
  type EndState,
  type StepOutcomes,
} from '../../core/rl/ledger.ts';
import { effectsIn, timeoutsIn } from '../../core/rl/metrics.ts';
import { addEffects } from '../../core/rl/rollout/effects.ts';
import type { CollectedStep } from './collect-step.ts';

/**
 * Fates of the groups that a step issued or trained. All attempts but the last were refused. Groups in
 * flight for later steps are not included: the commit of the step they are collected for issues them.
 */
export function stepOutcomes(step: number, attempts: readonly CollectedStep[]): StepOutcomes {
  const ended: { ordinal: number; state: EndState }[] = [];
  const add = (state: EndState, ranges: string): void => {
    for (const ordinal of decodeRanges(ranges)) ended.push({ ordinal, state });
  };
  const issued: number[] = [];
  for (const [i, attempt] of attempts.entries()) {
    for (const [first, last] of attempt.issued) for (let n = first; n <= last; n++) issued.push(n);
    for (const ranges of attempt.ended) {
      for (const [state, ordinals] of Object.entries(ranges)) add(state as EndState, ordinals ?? '');
    }
    const end: EndState = i === attempts.length - 1 ? 'trained' : 'refused';
    for (const { ordinals } of attempt.trained) add(end, ordinals);
  }
  const { surplus = [], inPlay = '' } = attempts.at(-1) ?? {};
  const timedOut = attempts.map(({ figures }) => timeoutsIn(figures)).reduce(addCounts, {});
  const effects = addEffects(attempts.map(({ figures }) => effectsIn(figures)));
  return {
    ...recordOutcomes({ step, pendingBefore: [], issued, ended }),
    ...(Object.keys(timedOut).length === 0 ? {} : { timedOut }),
    ...(Object.keys(effects).length === 0 ? {} : { effects }),
    pending: encodeRanges([...surplus.flatMap(({ ordinals }) => decodeRanges(ordinals)), ...decodeRanges(inPlay)]),
  };
}
