import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import { readOverrides } from '../../cli/typed/overrides.ts';
import { goOnWith } from '../../cli/stored/stored-runs.ts';
import { trainAgain, withMaxSteps } from '../../cli/typed/typed-command.ts';

test('a command is given back as it was typed, quoted for a shell', () => {
  const overrides = { 'max-steps': '5', 'env.0.args': '{text="it\'s $HOME"}', 'eval.num_examples': '-1', note: '' };
  const typed = trainAgain({ file: 'my runs/a.toml', name: 'b', overrides });
  const printed = execFileSync('sh', ['-c', typed.replace(/^npx ratchet-rl/, `printf '%s\\0'`)]).toString();
  const [train, file, name, run, ...rest] = printed.split('\0').slice(0, -1);
  assert.deepEqual([train, file, name, run], ['train', 'my runs/a.toml', '--name', 'b']);
  assert.deepEqual(readOverrides(rest), overrides);
});

test('a simple command stays simple, and another number of steps takes the place of the first', () => {
  const command = { file: 'configs/rl/a.toml', name: null, overrides: { max_steps: '5', seed: '1' } };
  assert.equal(trainAgain(command), 'npx ratchet-rl train configs/rl/a.toml --max_steps 5 --seed 1');
  assert.equal(trainAgain(withMaxSteps(command, 10)), 'npx ratchet-rl train configs/rl/a.toml --seed 1 --max-steps 10');
});

test('what was switched off is given back as it is typed, also inside a table', () => {
  const overrides = { eval: 'false', 'trainer.use_liger': 'false', 'max-steps': '5' };
  const typed = trainAgain({ file: 'a.toml', name: null, overrides });
  assert.equal(typed, 'npx ratchet-rl train a.toml --no-eval --trainer.no-use_liger --max-steps 5');
  assert.deepEqual(readOverrides(typed.split(' ').slice(4)), overrides);
});

test('a run that finished is typed again with twice its steps, and one that was stopped as it was', () => {
  const command = { file: 'a.toml', name: null, overrides: { 'max-steps': '60' } };
  assert.equal(
    goOnWith(command, { maxSteps: 50, state: 'finished' }),
    'npx ratchet-rl train a.toml --max-steps 100',
    'of the steps that it was set to',
  );
  assert.equal(goOnWith(command, { maxSteps: 60, state: 'stopped' }), 'npx ratchet-rl train a.toml --max-steps 60');
});
