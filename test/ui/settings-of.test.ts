/** Settings of a run as the page compares them: what was steered is another experiment than what was left alone. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { layout } from '../../runs/layout.ts';
import { RunSource } from '../../ui/run-source.ts';
import { advance, commitFirst, makeRun, openRoles } from '../activities/runs.ts';

test('a setting that was changed under way is shown with both values, where it changes what the run learns', async (t) => {
  const made = await makeRun(t);
  await made.store.put(layout.run(), encodeStored(layout.run(), { spec: made.spec, begunAt: '2026-12-01T00:00' }));
  const roles = openRoles();
  const settings = () => new RunSource(made.run, async () => null).settings();
  const first = await commitFirst(made, roles);
  const before = await settings();
  const overrides = { learningRate: 0.0007, maxGradNorm: 0.5, maxSteps: 40, stopAfter: 9, evalInterval: 3 };
  await advance(made, roles, { ...first, state: { ...first.state, overrides } });
  assert.deepEqual(await settings(), {
    ...before,
    learning_rate: `${before['learning_rate']} → 0.0007`,
    max_steps: `${before['max_steps']} → 40`,
    'trainer.max_grad_norm': `${before['trainer.max_grad_norm']} → 0.5`,
  });
});
