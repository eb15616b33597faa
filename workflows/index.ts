export { trainRun } from './train-run.ts';
