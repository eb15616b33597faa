export { evaluate } from './evaluate.ts';
export { trainRun } from './train-run.ts';
