export { evaluate } from './evaluate.ts';
export { optimizePrompt } from './optimize-prompt.ts';
export { trainRun } from './train-run.ts';
