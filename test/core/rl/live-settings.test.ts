import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  describeSettings,
  overridesThatStay,
  refuseSettings,
  type SettingsContext,
  unknownSetting,
  withSettings,
} from '../../../core/rl/live-settings.ts';

const context: SettingsContext = {
  run: 'words',
  spec: {
    learningRate: 1e-3,
    maxSteps: 100,
    maxMismatchKl: null,
    optimizer: { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 },
    eval: null,
    checkpoints: { interval: 10 },
  },
  overrides: {},
  underWay: 41,
};

test('settings are taken all or none, and what was before is told beside what is now', () => {
  const asked = { learning_rate: 5e-4, max_steps: 200, 'checkpoints.interval': 5 };
  assert.equal(refuseSettings(asked, context), null);
  assert.deepEqual(describeSettings(asked, context), [
    'learning_rate 0.001 → 0.0005',
    'max_steps 100 → 200 (until it is trained again with its file)',
    'checkpoints.interval 10 → 5',
  ]);
  const overrides = withSettings({}, asked);
  assert.deepEqual(overrides, { learningRate: 5e-4, maxSteps: 200, checkpointInterval: 5 });
  assert.deepEqual(describeSettings({ learning_rate: 1e-4 }, { ...context, overrides }), [
    'learning_rate 0.0005 → 0.0001',
  ]);
  assert.match(
    refuseSettings({ ...asked, max_grad_norm: 0 }, context)!,
    /^max_grad_norm: expected a number above 0; got 0/,
  );
});

test('a last step may be the one under way and none before it', () => {
  assert.equal(refuseSettings({ max_steps: 41 }, context), null);
  assert.match(
    refuseSettings({ stop_after: 40 }, context)!,
    /expected a whole number after.*\(41 is under way\); got 40/,
  );
  assert.match(refuseSettings({ max_steps: 50.5 }, context)!, /got 50\.5/);
});

test('values of another kind, a setting the run has no use for, and nothing at all are refused', () => {
  assert.match(refuseSettings({ learning_rate: 'x' as unknown as number }, context)!, /got "x"/);
  assert.match(refuseSettings({ 'eval.interval': 5 }, context)!, /has no \[eval\]/);
  assert.match(refuseSettings({}, context)!, /^Nothing to set/);
});

test('what cannot be changed is refused by name, with what to do instead', () => {
  assert.match(unknownSetting('batch_size', 'words'), /ratchet-rl fork words --step N --name NEW --batch-size VALUE/);
  assert.match(
    unknownSetting('sampling.temperature', 'words'),
    /ratchet-rl fork words .* --sampling\.temperature VALUE/,
  );
  assert.match(unknownSetting('model', 'words'), /ratchet-rl train FILE --name NEW/);
  assert.match(unknownSetting('kl_penalty.beta', 'words'), /Stop it \(npx ratchet-rl stop words\), change its file/);
  assert.match(
    unknownSetting('foo', 'words', false),
    /^"foo": there is no such setting\. What can be changed .*max_steps/,
  );
  assert.match(unknownSetting('learnin_rate', 'words'), /Did you mean learning_rate\?/);
});

test('when to stop is a wish for this time only; what else was set stays', () => {
  assert.deepEqual(overridesThatStay({ learningRate: 1e-4, maxSteps: 7, stopAfter: 5, evalInterval: 3 }), {
    learningRate: 1e-4,
    evalInterval: 3,
  });
});
