import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { slowStepRefusal, slowStepWarning } from '../../config/step-cost.ts';

const text = `model = "models/small"
max_steps = 100
batch_size = 128
rollouts_per_example = 8
oversampling_factor = 1
[sampling]
max_tokens = 512
[[env]]
id = "gsm8k"
`;
const small = { parameterCount: 596_000_000, adapterCount: null };

function warn(overrides: Readonly<Record<string, string>> = {}, model: Parameters<typeof slowStepWarning>[1] = small) {
  const parsed = parseRunConfig(text, { file: 'run.toml', overrides });
  assert(parsed.ok, JSON.stringify(parsed));
  return slowStepWarning(parsed.spec, model);
}

test('a model of 0.6B on a processor: what a step takes is said before it begins; a toy is not spoken of', () => {
  assert.match(warn() ?? '', /^training and sampling on this machine's processor: a step may take about 3 hours, /);
  assert.match(warn({}, { ...small, adapterCount: 1_000_000 }) ?? '', /about 2 hours/);
  assert.match(warn({ 'trainer.threads': '4' }) ?? '', /about 76 minutes/);
  assert.equal(warn({}, { parameterCount: 206_176, adapterCount: null }), null);
});

test('all turns of a rollout are counted, of each environment by its weight', () => {
  const parsed = parseRunConfig(`${text}[[env]]\nid = "wiki"\nweight = 3\n`, { file: 'run.toml' });
  assert(parsed.ok, JSON.stringify(parsed));
  const quick = { parameterCount: 10_000_000, adapterCount: null };
  assert.match(
    slowStepWarning(parsed.spec, quick) ?? '',
    /about 3 minutes, .*\(128 rollouts of 512 tokens, 10 million/,
  );
  // 1 part of one turn, 3 parts of ten: 7.75 times as long.
  const turns = new Map([['wiki', 10]]);
  assert.match(slowStepWarning(parsed.spec, quick, turns) ?? '', /about 23 minutes, .*\(128 rollouts of up to 10 turns of 512 tokens, .* what tools answer not counted\)/); // prettier-ignore
});

test('steps of hours are refused, with what makes them less; an hour is only told', () => {
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  assert(parsed.ok);
  assert.equal(slowStepRefusal(parsed.spec, small), null);
  assert.match(slowStepRefusal(parsed.spec, { ...small, parameterCount: 4e9 }) ?? '', /about 19 hours, .*or GPUs \(/);
});

test('what is computed elsewhere is not counted', () => {
  assert.match(warn({ 'trainer.provider': 'cuda' }) ?? '', /^sampling on this machine's processor/);
  assert.match(warn({ 'inference.provider': 'cuda' }) ?? '', /^training on this machine's processor/);
  assert.equal(warn({ 'trainer.provider': 'cuda', 'inference.provider': 'cuda' }), null);
});
