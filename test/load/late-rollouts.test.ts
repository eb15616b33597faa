/** Warnings of `check` about rollouts that would be dropped instead of truncated. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { lateRolloutWarnings } from '../../load/late-rollouts.ts';
import type { EnvironmentSpec } from '../../config/run-spec.ts';

const python = { api: 'v0' } as unknown as EnvironmentSpec['python'];
const entry = (name: string, of: object = {}) => ({ id: name, name, args: {}, ...of }) as unknown as EnvironmentSpec;

test('late rollouts of a verifiers environment are dropped, unless its own timeout ends them', () => {
  const spec = { onTimeout: 'truncate', generationTimeoutS: 600 } as const;
  const limited = entry('limited', { python, limits: { timeoutS: 60 } });
  const dropped = entry('dropped', { python, limits: { onTimeout: 'drop' } });
  const [said, ...more] = lateRolloutWarnings(spec, [entry('words'), entry('wordle', { python }), limited, dropped]);
  assert.match(said!, /^on_timeout = "truncate": of wordle a rollout is dropped .* generation_timeout = 600 s/);
  assert.deepEqual(more, []);
  assert.deepEqual(lateRolloutWarnings({ ...spec, onTimeout: 'drop' }, [entry('wordle', { python })]), []);
});
