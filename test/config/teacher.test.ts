import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { RunSpec } from '../../config/run-spec.ts';

const own = 'model = "preset:reverse-text-0.2m"\n';
const environment = '\n[[env]]\nid = "reverse-text"\n';
const big = '\n[teacher]\nmodel = "big"\nurl = "http://localhost:9/v1"\n';

function specOf(text: string, dialect?: string): RunSpec {
  const parsed = parseRunConfig(text, { file: 'run.toml', ...(dialect === undefined ? {} : { dialect }) });
  assert.ok(parsed.ok, parsed.ok ? '' : JSON.stringify(parsed.problems));
  return parsed.spec;
}

function problemOf(text: string): { path: string; expected: string } {
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  assert.ok(!parsed.ok && parsed.problems.length === 1, JSON.stringify(parsed));
  return parsed.problems[0]!;
}

describe('a run that learns from a teacher', () => {
  test('opd is prime-rl’s loss of its log probabilities, and keeps groups whose rewards are equal', () => {
    const { loss, teacher, filter } = specOf(`${own}loss = "opd"\nrollouts_per_example = 1\n${environment}${big}`);
    const { type, maskLow, maskHigh, klTau, advantageTau, teacherTau } = loss;
    assert.deepEqual([type, maskLow, maskHigh, klTau, advantageTau, teacherTau], ['ipo', 0.2, null, 1e-3, 0, 1]);
    assert.deepEqual([teacher?.role, teacher?.model, teacher?.urls], ['scores', 'big', ['http://localhost:9/v1']]);
    assert.equal(filter.keepsEqual, true);
  });

  test('sft is cross entropy on its rollouts, sampled as it is told', () => {
    const sampling = '[teacher.sampling]\ntemperature = 0.3\n';
    const { loss, teacher } = specOf(`${own}loss = "sft"\n${environment}${big}${sampling}`);
    assert.deepEqual([loss.type, teacher?.role, teacher?.sampling.temperature], ['cross_entropy', 'samples', 0.3]);
  });

  test('its lead may stand beside the reward', () => {
    const mixed = '[trainer.loss]\ntype = "grpo"\nteacher_tau = 0.5\n';
    const { loss, teacher } = specOf(`${own}${environment}${big}${mixed}`);
    assert.deepEqual([loss.type, loss.advantageTau, loss.teacherTau, teacher?.role], ['grpo', 1, 0.5, 'scores']);
  });

  test('what does not go together is said where it is written', () => {
    assert.match(problemOf(`${own}loss = "opd"\n${environment}`).expected, /a \[teacher\] beside it/);
    assert.match(problemOf(`${own}${environment}${big}`).expected, /nothing is learned from it/);
    const hot = '[sampling]\ntemperature = 0.7\n';
    assert.equal(problemOf(`${own}loss = "opd"\n${environment}${big}${hot}`).path, 'sampling.temperature');
    const idle = '[trainer.loss]\nteacher_tau = 0\n';
    assert.equal(problemOf(`${own}loss = "opd"\n${environment}${big}${idle}`).path, 'trainer.loss.teacher_tau');
    const grpo = '[trainer]\nloss = "grpo"\n';
    assert.match(problemOf(`${own}loss = "sft"\n${environment}${big}${grpo}`).expected, /cross entropy/);
    assert.equal(problemOf(`${own}rollouts_per_example = 1\n${environment}`).path, 'rollouts_per_example');
  });

  test('a policy that teaches itself has no other place, and only scores', () => {
    const self = '\n[teacher]\ndemonstration = "answer"\n';
    const { teacher } = specOf(`${own}loss = "opd"\nrollouts_per_example = 1\n${environment}${self}`);
    assert.deepEqual([teacher?.demonstration?.key, teacher?.folder, teacher?.urls], ['answer', null, []]);
    assert.match(problemOf(`${own}loss = "sft"\n${environment}${self}`).expected, /scores what it said itself/);
    assert.match(problemOf(`${own}loss = "opd"\n${environment}${self}model = "x"\n`).expected, /the policy itself/);
    assert.match(
      problemOf(`${own}loss = "opd"\n${environment}${self}template = "x"\n`).expected,
      /\{demonstration\} in it/,
    );
    assert.match(
      problemOf(`${own}loss = "opd"\n${environment}${big}template = "x"\n`).expected,
      /a demonstration beside it/,
    );
  });

  test('Hosted Training and prime-rl mean the same by their own words', () => {
    const hosted = specOf(`model = "a/b"\nloss = "sft"\n[[env]]\nid = "o/e"\n[teacher]\nmodel = "x/y"\n`, 'hosted');
    assert.deepEqual(
      [hosted.teacher?.urls, hosted.teacher?.apiKeyVar, hosted.loss.type],
      [['https://api.pinference.ai/api/v1'], 'PRIME_API_KEY', 'cross_entropy'],
    );
    const today = `max_steps = 9
model.name = "a/b"
[trainer]
[orchestrator]
batch_size = 8
group_size = 4
[[orchestrator.train.source]]
env = { taskset = { id = "o/e" } }
[orchestrator.algo]
type = "opd"
teacher = { name = "big", base_url = ["http://localhost:9/v1"] }
`;
    const { teacher, loss } = specOf(today, 'prime-rl');
    assert.deepEqual([teacher?.model, teacher?.role, loss.type, loss.teacherTau], ['big', 'scores', 'ipo', 1]);

    const self = today.replace('"opd"', '"opsd"').replace(/^teacher = .*$/m, 'demo_key = "answer"');
    const own = specOf(self, 'prime-rl');
    assert.deepEqual(
      [own.teacher?.role, own.teacher?.urls, own.loss.type, own.loss.teacherTau],
      ['scores', [], 'ipo', 1],
    );
    assert.equal(own.teacher?.demonstration?.key, 'answer');
    assert.match(own.teacher.demonstration.template, /^Here is an example of an expert response:\n<demonstration>\n\{/);

    const alone = today.replace('group_size = 4\n', '');
    assert.equal(specOf(alone, 'prime-rl').rolloutsPerExample, 1, 'prime-rl’s default, where no reward is compared');
    assert.equal(specOf(today.replace('= 4', '= 1'), 'prime-rl').rolloutsPerExample, 1);
    const sft = alone.replace('"opd"\nteacher = ', '"sft"\nsampling.source = ');
    assert.deepEqual(
      [specOf(sft, 'prime-rl').rolloutsPerExample, specOf(sft, 'prime-rl').loss.type],
      [1, 'cross_entropy'],
    );

    const settings = 'dppo_mask_low = 0.5\ndppo_mask_high = 0.5\nkl_tau = 0.0\nadv_tau = 1.0\n';
    const tuned = parseRunConfig(today.replace('[trainer]\n', `[trainer.loss]\n${settings}`), {
      file: 'run.toml',
      dialect: 'prime-rl',
    });
    assert.ok(tuned.ok, JSON.stringify(tuned));
    assert.deepEqual(tuned.spec.loss, loss, 'prime-rl’s loss of opd has its bounds in its source');
    for (const key of ['dppo_mask_low', 'dppo_mask_high', 'kl_tau', 'adv_tau']) {
      assert.match(tuned.warnings.join('\n'), new RegExp(`trainer.loss.${key} has no effect`));
    }
  });
});
