/** Environments that differ in what is learned of them, and what has no place beside that. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { accept, refuse } from './read-run.ts';

const head = 'model = "preset:x"\nmax_steps = 2\n';
const rewarded = '[[env]]\nid = "owner/a"\n';
const taught = '[[env]]\nid = "owner/b"\nloss = "opd"\n';
const teacher = '[teacher]\nmodel = "t"\nurl = "http://localhost:9"\n';

test('what all environments are learned by is the run’s; else each loss stands with its environment', () => {
  const alone = accept(`${head}${taught}${teacher}`).spec;
  const said = accept(`${head}loss = "opd"\n${taught.replace('loss = "opd"\n', '')}${teacher}`).spec;
  assert.deepEqual(alone, said);
  const both = accept(
    `${head}trainer = { loss = { type = "grpo", entropy_coef = 0.1 } }\n${rewarded}${taught}${teacher}`,
  ).spec;
  assert.deepEqual(
    [both.loss.type, both.environments.map(({ objective }) => objective), both.teacher?.role],
    ['grpo', [undefined, 'ref_kl'], 'scores'],
  );
  assert.deepEqual([both.distillation?.type, both.distillation?.entropyCoef], ['ipo', undefined]);
  const turned = accept(`${head}loss = "opd"\n${rewarded}loss = "rl"\n${taught}${teacher}`).spec;
  assert.deepEqual([turned.loss.type, turned.loss.teacherTau], ['cispo', 0]);
});

test('echo of an environment is in place of the run’s, and 0 is none', () => {
  const echo = 'trainer = { echo = { tool = 0.1, user = 0.2 } }\n';
  const { spec } = accept(`${head}${echo}${rewarded}[[env]]\nid = "owner/b"\necho = { tool = 0 }\n`);
  assert.deepEqual(
    spec.environments.map((one) => one.echo),
    [{ tool: 0.1, user: 0.2 }, undefined],
  );
});

const both = (more: string): string => `${head}${more}${rewarded}${taught}${teacher}`;
const echoed = `${rewarded}echo = { tool = 0.1 }\n`;
const refused: Readonly<Record<string, readonly [text: string, path: string, expected: RegExp]>> = {
  'a loss of an environment without a teacher': [
    `${head}${rewarded}${taught}`,
    'env[1].loss',
    /a \[teacher\] beside it/,
  ],
  'rewards where a teacher plays': [
    `${head}loss = "sft"\n${rewarded}loss = "rl"\n${teacher}`,
    'env[0].loss',
    /nothing beside loss = "sft"/,
  ],
  'echo where a teacher plays': [
    `${head}loss = "sft"\n${echoed}${teacher}`,
    'env[0].echo',
    /nothing beside loss = "sft"/,
  ],
  'an aggregation by rollouts': [
    both('trainer = { loss = { aggregation = "sequence" } }\n'),
    'trainer.loss.aggregation',
    /"token" beside it/,
  ],
  'a teacher beside rewards as well': [
    both('trainer = { loss = { teacher_tau = 0.5 } }\n'),
    'trainer.loss.teacher_tau',
    /learn from rewards alone/,
  ],
  'a penalty for the divergence': [both('kl_penalty = { beta = 0.1 }\n'), 'kl_penalty.beta', /reported, not penalized/],
  'a trainer that has one loss': [
    `${head}trainer = { kind = "module", import = "./mine.ts" }\n${echoed}`,
    'env[0].echo',
    /kind = "onnx", "torch" or "prime-rl": only these compute several losses/,
  ],
  'rows of one turn': [
    `${head}trajectory_strategy = "branching"\n${echoed}`,
    'env[0].echo',
    /trajectory_strategy = "interleaved" beside it/,
  ],
  'an advantage of what is learned of a teacher alone': [
    both('').replace('loss = "opd"', 'loss = "opd"\nadvantage = "max_rl"'),
    'env[1].advantage',
    /has no advantages/,
  ],
};

for (const [what, [text, path, expected]] of Object.entries(refused)) {
  test(`${what} is refused in one line`, () => {
    const problems = refuse(text, 'ratchet');
    const found = problems.find((problem) => expected.test(problem.expected));
    assert.ok(found, JSON.stringify(problems));
    assert.equal(found.path, path);
  });
}
