import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { RunSpec } from '../../config/run-spec.ts';
import { WindowSize } from '../../workflows/step/window-size.ts';
import { specWith } from './fake-run.ts';

test('the first chunks of programs have few groups: one that dies takes few others along', () => {
  const spec = specWith('sized', { maxAsyncLevel: 0, batchSize: 64 });
  const program = {} as NonNullable<RunSpec['environments'][number]['program']>;
  const agents = specWith('sized', {
    ...spec,
    environments: spec.environments.map((entry) => ({ ...entry, program })),
  });
  assert.equal(new WindowSize(spec, null).chunkGroups(16), 8);
  assert.equal(new WindowSize(agents, null).chunkGroups(16), 1);
  assert(!new WindowSize(agents, null).isQuick);
  assert(new WindowSize(agents, 0.5).isQuick, 'what was measured counts');
});
