/** Many more of what `dialects.test.ts` tries. */
import { test } from 'node:test';
import { answerSpoiled, runFiles } from './run-files.ts';

test('10,000 spoiled run files are answered, not stumbled over', () => {
  answerSpoiled([...runFiles('seeds'), ...runFiles('runs')], 10_000);
});
