import { createAskTeacher } from './ask-teacher.ts';
import { createDrawRows } from './draw-rows.ts';
import type { AskDependencies } from '../backends/rollouts/asked-model.ts';
import { createEvaluateChunk } from './evaluation/evaluate-chunk.ts';
import { createPlayGroups } from './play-groups.ts';
import { createEvaluatePrompt, createReflectOnPrompt } from './prompt-search/lease-search.ts';
import { createComparePrompts, createSearchPrompts } from './prompt-search/search-prompts.ts';
import { createTryPrompt } from './prompt-search/try-prompt.ts';

/** Queue `ratchet-rollout`: environments and rubrics, and rows that are drawn without them. */
export const createRolloutActivities = (dependencies: AskDependencies) => ({
  playGroups: createPlayGroups(dependencies),
  askTeacher: createAskTeacher(dependencies),
  drawRows: createDrawRows(dependencies),
  evaluateChunk: createEvaluateChunk(dependencies),
  evaluatePrompt: createEvaluatePrompt(dependencies),
  reflectOnPrompt: createReflectOnPrompt(dependencies),
  searchPrompts: createSearchPrompts(dependencies),
  comparePrompts: createComparePrompts(dependencies),
  tryPrompt: createTryPrompt(dependencies),
});
export type RolloutActivities = ReturnType<typeof createRolloutActivities>;
