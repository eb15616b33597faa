import { present } from '../../present.ts';
import type { Rollout, ScoredRollout } from './rollout.ts';

/**
 * A rollout without its score. One whose judge failed has lost its own outcome, which is read from its last turn:
 * `truncated` or `ok`.
 */
export function withoutScore(scored: ScoredRollout): Rollout {
  const { group, index, exampleId, turns, prompt, record, playedAgain, isTimedOut } = scored;
  const played = { group, index, exampleId, turns, ...present({ prompt, record, playedAgain, isTimedOut }) };
  const { outcome, error } = scored;
  if (outcome !== 'judge_failure') return { ...played, outcome, ...present({ error }) };
  const isCut = isTimedOut === true || turns.at(-1)?.finishReason === 'length' || record?.['is_truncated'] === true;
  return { ...played, outcome: isCut ? 'truncated' : 'ok' };
}
