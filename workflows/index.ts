export { evaluate } from './evaluate.ts';
export { optimizePrompt } from './optimize-prompt.ts';
export { evaluateNewest } from './evaluate-newest.ts';
export { pool } from './pool.ts';
export { playRounds } from './play-rounds.ts';
export { recordScheduleChange } from './record-schedule-change.ts';
export { rescore } from './rescore.ts';
export { sweep } from './sweep.ts';
export { sweepSandboxes } from './sweep-sandboxes.ts';
export { trainRun } from './train-run.ts';
export { unknownWorkflow as default } from './unknown-workflow.ts';
/** Exported here so that the digest of the workflows' code includes it (`workers/program/workflow-bundle.ts`). */
export { payloadConverter } from './payload-converter.ts';
