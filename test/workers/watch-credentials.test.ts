import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { takeCredentials } from '../../workers/temporal/credentials.ts';
import type { TemporalSettings } from '../../workers/temporal/temporal-settings.ts';
import { watchCredentials } from '../../workers/temporal/watch-credentials.ts';
import { eventually, temporaryFolder } from './fixtures/processes.ts';

test('an API key that is changed in its file is taken in use; while there is none the one before stays', async (t) => {
  const file = join(temporaryFolder(t), 'api-key');
  writeFileSync(file, 'first\n');
  const credentials = takeCredentials({ TEMPORAL_ADDRESS: 'temporal.test:7233', TEMPORAL_API_KEY_FILE: file });
  const taken: TemporalSettings[] = [];
  const said: string[] = [];
  const say = (line: string): void => void said.push(line);
  const take = async (settings: TemporalSettings): Promise<void> => {
    if (settings.apiKey === 'refused' && said.every((line) => !line.includes('not yet'))) throw new Error('not yet');
    taken.push(settings);
  };
  const watching = watchCredentials(credentials.temporal, take, { say, everyMs: 5 });
  t.after(() => watching.stop());

  rmSync(file);
  await eventually('the missing file is told of', () => said.length > 0);
  assert.match(said[0]!, /there is no such file/);
  writeFileSync(file, 'second\n');
  await eventually('the second key is in use', () => taken.length === 1);
  writeFileSync(file, 'refused\n');
  await eventually('what could not be connected with is tried again', () => taken.length === 2);
  assert.deepEqual(
    taken.map(({ address, apiKey }) => [address, apiKey]),
    [
      ['temporal.test:7233', 'second'],
      ['temporal.test:7233', 'refused'],
    ],
  );
});

test('where the environment names no file, nothing is looked at', () => {
  assert.equal(takeCredentials({ TEMPORAL_API_KEY: 'a-key' }).temporal.reread, null);
});
