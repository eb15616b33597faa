import { createAskTeacher } from './ask-teacher.ts';
import { createDrawRows } from './draw-rows.ts';
import type { AskDependencies } from '../play/policy/asked-model.ts';
import { createEvaluateChunk } from './evaluation/evaluate-chunk.ts';
import { createPlayGroups } from './play-groups.ts';
import { createRescoreChunk } from './rescore/rescore-chunk.ts';
import { createAnswerSearch } from './prompt-search/answer-search.ts';

/** Queue `ratchet-rollout`: environments and rubrics, and rows that are drawn without them. */
export const createRolloutActivities = (dependencies: AskDependencies) => ({
  playGroups: createPlayGroups(dependencies),
  askTeacher: createAskTeacher(dependencies),
  drawRows: createDrawRows(dependencies),
  evaluateChunk: createEvaluateChunk(dependencies),
  rescoreChunk: createRescoreChunk(dependencies),
  answerSearch: createAnswerSearch(dependencies),
});
export type RolloutActivities = ReturnType<typeof createRolloutActivities>;
