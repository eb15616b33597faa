/** Subject of a page, as typed; impossible input is answered with what was expected and what to do. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { findPagePlace } from '../../cli/page/page-place.ts';

test('a whole bucket is no run, and its name is told as it was typed', async () => {
  await assert.rejects(findPagePlace('s3://nob', undefined), {
    code: 'RunNotFound',
    message: /^Expected the address of a run.*got s3:\/\/nob, which holds none.*Name one: s3:\/\/nob\/RUN$/,
  });
});

test('a bucket at AWS without a region says where one is named', async (t) => {
  const names = ['AWS_REGION', 'AWS_DEFAULT_REGION', 'AWS_CONFIG_FILE', 'AWS_PROFILE'];
  const before = names.map((name) => [name, process.env[name]] as const);
  t.after(() => {
    for (const [name, value] of before) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  });
  for (const name of names) delete process.env[name];
  process.env['AWS_CONFIG_FILE'] = '/dev/null';
  await assert.rejects(findPagePlace('s3://nobucket/runs/x', undefined), {
    code: 'ConfigInvalid',
    message: /^GetObject of runs\/x\/run\.json in nobucket at AWS failed: .*AWS_REGION, region in \[store\]/,
  });
});
