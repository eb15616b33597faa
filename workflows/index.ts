export { evaluate } from './evaluate.ts';
export { evaluateNewest } from './evaluate-newest.ts';
export { trainRun } from './train-run.ts';
