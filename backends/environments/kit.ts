/** `ratchet-rl/environments`: everything that an environment's author imports. */
export { z } from 'zod';
export { hash32, permutation, randomStream, uniform } from '../../core/random.ts';
export type { ContentPart, WrittenMessage } from '../../core/rl/rollout/message-parts.ts';
export {
  type AgentTrace,
  type ChatMessage,
  contentOf,
  type Example,
  type ToolCall,
  type ToolSchema,
  type Turn,
} from '../../core/rl/rollout/rollout.ts';
export type { EffectKind } from '../../core/rl/rollout/effects.ts';
export type { RolloutNotes } from '../../core/rl/rollout/notes.ts';
export { makeEffect } from './effects.ts';
export { parseArgs } from './args.ts';
export { type DatasetRow, listDataset } from './datasets.ts';
export { type Judge, judgeArgs, type JudgeArgs, openJudge } from './judge.ts';
export { judgeReward } from './judge-reward.ts';
export {
  boxed,
  lastNumber,
  numberAfterHashes,
  numbersIn,
  withoutThinking,
  type XmlParser,
  xmlParser,
} from './parsers.ts';
export { judgeAgents } from './several-agents.ts';
export {
  type Conversation,
  multiTurn,
  type MultiTurnOptions,
  type Reply,
  singleTurn,
  type SingleTurnOptions,
} from './shapes.ts';
export { hadNoEffect, openPython, type Python, pythonDefaults, type PythonOptions } from './python/sandbox.ts';
export { demonstratingPolicy, playAndScore, scriptedPolicy } from './scripted.ts';
export {
  type AnsweredCall,
  answeredCallsOf,
  callText,
  effect,
  type Tool,
  tool,
  type ToolContext,
  toolCallsOf,
  toolEnvironment,
  type ToolEnvironmentOptions,
  ToolError,
} from './tools.ts';
export { combineRubrics, rubric, type RubricPart } from './rubrics.ts';
export type {
  Dataset,
  Demonstration,
  Environment,
  Policy,
  RewardFunction,
  RewardInput,
  RolloutRecord,
  Rubric,
  SampleOptions,
} from './types.ts';
