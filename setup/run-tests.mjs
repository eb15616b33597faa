/**
 * Runs test files in the order given, which `node --test` would sort by name. Called by `setup/test.mjs` with a JSON file; prints Node's report,
 * writes the counts to another file, and exits with 1 if a test failed.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import countTests from './test-counts-reporter.mjs';

/** @type {{ files: string[], atOnce: number, timeout: number, countsFile: string }} */
const { files, atOnce, timeout, countsFile } = JSON.parse(readFileSync(process.argv[2] ?? '', 'utf8'));
const events = run({ files, concurrency: atOnce, timeout });
events.on('test:fail', ({ todo }) => {
  if (!todo) process.exitCode = 1;
});
events.compose(new spec()).pipe(process.stdout);
let counts = '';
for await (const part of countTests(events)) counts += part;
writeFileSync(countsFile, counts);
