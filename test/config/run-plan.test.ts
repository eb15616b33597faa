import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { type PlanInput, planRun } from '../../config/run-plan.ts';

const text = `model = "preset:reverse-text-0.2m"
max_steps = 25
batch_size = 16
rollouts_per_example = 4
oversampling_factor = 1.3
[sampling]
max_tokens = 100
[checkpoints]
interval = 10
keep_last = 2
[eval]
interval = 10
num_examples = 50
rollouts_per_example = 2
[[env]]
id = "reverse-text"
`;
const model = { parameterCount: 1000, adapterCount: null };

function plan(overrides: Readonly<Record<string, string>> = {}, input: PlanInput = { model, heldOut: [null] }) {
  const parsed = parseRunConfig(text, { file: 'run.toml', overrides });
  assert(parsed.ok, JSON.stringify(parsed));
  return planRun(parsed.spec, input);
}

describe('what a run will sample and store', () => {
  test('rollouts: whole groups, and more of them where they are oversampled', () => {
    const { groupsPerStep, rolloutsPerStep, sampledPerStep } = plan();
    assert.deepEqual([groupsPerStep, rolloutsPerStep, sampledPerStep], [4, 16, 6 * 4]);
  });

  test('tokens: as many as max_tokens allows', () => {
    assert.deepEqual(plan().tokens, { perTurn: 100, perStep: 2400, perRun: 60_000 });
  });

  test('evaluations: of v0, every interval, and of the last version', () => {
    assert.equal(plan().evaluations, 1 + 2 + 1);
    assert.equal(plan({ 'max-steps': '20' }).evaluations, 1 + 2);
    assert.equal(plan({ 'eval.skip-first-step': 'true' }).evaluations, 2 + 1);
    assert.equal(plan().evalRollouts, 100);
    assert.equal(plan({}, { model, heldOut: [30] }).evalRollouts, 60);
    assert.equal(plan({ 'eval.num-examples': '-1' }).evalRollouts, null);
  });

  test('checkpoints: step 0 and the newest; of adapters their base once', () => {
    const { checkpointCount, checkpoints } = plan().disk;
    assert.deepEqual([checkpointCount, checkpoints], [3, 3 * 12 * 1000]); // steps 0, 20, 25
    const adapters = plan({}, { model: { parameterCount: 1000, adapterCount: 10 }, heldOut: [null] });
    assert.equal(adapters.disk.checkpoints, 3 * 12 * 10 + 4 * 1000);
    assert.equal(plan({ 'checkpoints.keep-interval': '10' }).disk.checkpointCount, 4);
    assert.equal(plan({}, { model: null, heldOut: [null] }).disk.checkpoints, null);
  });

  test('a supervised run samples nothing', () => {
    const { rolloutsPerStep, tokens, disk } = plan({ 'max-steps': '0', 'sft.steps': '50' });
    assert.deepEqual([rolloutsPerStep, tokens.perRun, disk.rollouts, disk.batches], [0, 0, 0, 0]);
  });
});
