import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { Advice } from '../../config/run-config.ts';

const usual = {
  model: '"./qwen"',
  learning_rate: '5e-5',
  batch_size: '128',
  rollouts_per_example: '16',
  warmup_steps: '10',
};

function adviceOn(top: Readonly<Record<string, string>>, tables = '[lora]\nr = 16\nalpha = 32\n'): readonly Advice[] {
  const keys = Object.entries({ ...usual, ...top }).map(([key, value]) => `${key} = ${value}`);
  const text = `${keys.join('\n')}\n${tables}[[env]]\nid = "reverse-text"\n`;
  const parsed = parseRunConfig(text, { file: 'run.toml', dialect: 'ratchet' });
  assert(parsed.ok, JSON.stringify(parsed));
  return parsed.advice;
}

const paths = (advice: readonly Advice[]) => advice.map(({ path }) => path);
const lora = (more: string) => `[lora]\nr = 16\nalpha = 32\n${more}`;

describe('advice on settings', () => {
  test('a run within the rules of thumb is given none', () => assert.deepEqual(adviceOn({}), []));

  test('it names value, range and source, and where the setting stands', () => {
    const [advice] = adviceOn({ learning_rate: '1e-3' });
    assert.deepEqual([advice!.value, advice!.line, advice!.column], [1e-3, 2, 1]);
    assert.equal(advice!.range, 'from 1e-5 to 1e-4 for LoRA');
    assert.match(advice!.source, /RL Rules of Thumb/);
  });

  test('mini-batches raise the effective rate, and what to set is said', () => {
    const [advice] = adviceOn({}, lora('[trainer]\nnum_mini_batches = 4\n'));
    assert.match(advice!.range, /learning_rate for 4 steps per batch: 0\.0000125, if 0\.00005 was tuned for one/);
    assert.match(advice!.why, /4 optimizer steps.*about 4 times as far/);
    assert.deepEqual(adviceOn({}, lora('[trainer]\nnum_mini_batches = 1\n')), []);
  });

  const outside: readonly (readonly [string, Record<string, string>, string?])[] = [
    ['learning_rate', { learning_rate: '1e-6' }],
    ['learning_rate', { learning_rate: '2e-4' }],
    ['learning_rate', { learning_rate: '5e-5' }, '[lora]\nenabled = false\n'],
    ['warmup_steps', { warmup_steps: '9' }],
    ['rollouts_per_example', { rollouts_per_example: '4' }],
    ['batch_size', { batch_size: '48' }],
    ['sampling.temperature', {}, lora('[sampling]\ntemperature = 0.4\n')],
    ['kl_penalty.beta', {}, lora('[kl_penalty]\nbeta = 0.1\n')],
    ['lora.alpha', {}, '[lora]\nr = 64\nalpha = 16\n'],
    ['lora.r', {}, '[lora]\nr = 8\nalpha = 16\n'],
    ['lora.r', {}, '[lora]\nr = 128\nalpha = 128\n'],
    ['trainer.num_iterations', {}, lora('[trainer]\nnum_iterations = 8\n')],
    ['trainer.num_mini_batches', {}, lora('[trainer]\nnum_mini_batches = 4\n')],
    ['lora_alpha', { lora_alpha: '64' }, ''],
    ['difficulty_filter.min_reward_variance', {}, lora('[difficulty_filter]\nmin_reward_variance = 0.26\n')],
    ['difficulty_filter.min_reward', {}, lora('[difficulty_filter]\nmin_reward = 0.98\n')],
    ['difficulty_filter.max_reward', {}, lora('[difficulty_filter]\nmax_reward = 0.02\n')],
  ];
  for (const [path, top, tables] of outside) {
    test(`${path} outside of its range: ${JSON.stringify(top)} ${JSON.stringify(tables ?? '')}`, () => {
      assert.deepEqual(paths(adviceOn(top, tables)), [path]);
    });
  }

  const inside: readonly (readonly [Record<string, string>, string?])[] = [
    [{ learning_rate: '1e-5' }],
    [{ learning_rate: '1e-4' }],
    [{ learning_rate: '1e-6' }, ''],
    [{}, lora('[sampling]\ntemperature = 0.5\n')],
    [{}, lora('[kl_penalty]\nenabled = false\nbeta = 0.5\n')],
    [{}, '[lora]\nr = 16\nalpha = 16\n'],
    [{}, lora('[difficulty_filter]\nmin_reward_variance = 0.1\nmin_reward = 0.05\nmax_reward = 0.95\n')],
  ];
  for (const [top, tables] of inside) {
    test(`nothing of ${JSON.stringify(top)} ${JSON.stringify(tables ?? '')}`, () => {
      assert.deepEqual(adviceOn(top, tables), []);
    });
  }

  test('presets learn with learning rates of their own, so nothing is said of those', () => {
    const preset = { model: '"preset:reverse-text-0.2m"', learning_rate: '1e-3', warmup_steps: '0' };
    assert.deepEqual(adviceOn(preset), []);
  });

  test('models of a hundred million parameters take higher rates, and a short run has a short warm-up', () => {
    const own = (model: string): readonly string[] => paths(adviceOn({ model: `"${model}"`, learning_rate: '4e-4' }));
    assert.deepEqual(own('smollm2-135m-instruct'), []);
    assert.deepEqual(own('HuggingFaceTB/SmolLM2-360M'), []);
    assert.deepEqual(own('org/Qwen3-0.6B'), ['learning_rate']);
    assert.deepEqual(own('org/model-v2'), ['learning_rate']);
    assert.deepEqual(paths(adviceOn({ warmup_steps: '2', max_steps: '50' })), []);
    assert.deepEqual(paths(adviceOn({ warmup_steps: '2', max_steps: '51' })), ['warmup_steps']);
  });

  test('what was left out has no line, and what the command line says is found there', () => {
    const text = 'model = "./qwen"\nlearning_rate = 1e-5\n[lora]\nalpha = 16\n[[env]]\nid = "reverse-text"\n';
    const parsed = parseRunConfig(text, { file: 'run.toml', overrides: { 'batch-size': '8' }, dialect: 'ratchet' });
    assert(parsed.ok);
    const places = parsed.advice.map(({ path, file, line }) => [path, file, line]);
    assert.deepEqual(places, [
      ['trainer.warmup_steps', 'run.toml', null],
      ['batch_size', 'command line', null],
    ]);
  });

  test('what learns from a teacher alone is not advised on groups', () => {
    const teacher = '[teacher]\nmodel = "t"\nurl = "http://127.0.0.1:1"\n';
    const alone = { rollouts_per_example: '1' };
    assert.deepEqual(adviceOn({ ...alone, loss: '"opd"' }, lora(teacher)), []);
    assert.deepEqual(adviceOn({ ...alone, loss: '"sft"' }, lora(`[sampling]\ntemperature = 0.1\n${teacher}`)), []);
    const both = adviceOn(
      { rollouts_per_example: '4', loss: '"opd"' },
      lora(`${teacher}[trainer.loss]\nadv_tau = 0.5\n`),
    );
    assert.deepEqual(paths(both), ['rollouts_per_example']);
  });

  test('agents by role are not advised on the size of a group: each role has a running mean', () => {
    const few = { rollouts_per_example: '4' };
    assert.deepEqual(paths(adviceOn(few, lora(''))), ['rollouts_per_example']);
    assert.deepEqual(adviceOn(few, lora('[trainer.advantage]\ntype = "rae"\n')), []);
  });

  test('a supervised run is not advised on rollouts', () => {
    assert.deepEqual(adviceOn({ max_steps: '0', batch_size: '16' }, '[sft]\nsteps = 50\n'), []);
  });
});
