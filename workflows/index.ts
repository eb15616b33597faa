export { evaluate } from './evaluate.ts';
export { optimizePrompt } from './optimize-prompt.ts';
export { evaluateNewest } from './evaluate-newest.ts';
export { playRounds } from './play-rounds.ts';
export { trainRun } from './train-run.ts';
