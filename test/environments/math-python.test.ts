import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { boxed, callText, demonstratingPolicy, playAndScore, scriptedPolicy } from '../../backends/environments/kit.ts';
import { randomStream } from '../../core/random.ts';
import { exactNumber } from '../../environments/math-python/exact-number.ts';
import { loadEnvironment } from '../../environments/math-python/index.ts';
import { difficulties, makeProblem } from '../../environments/math-python/problems.ts';
import { canSandbox, missingSandbox } from './sandbox-here.ts';

const skip = (await canSandbox()) ? false : missingSandbox;

test('answers are compared as exact numbers, however they are written', () => {
  for (const [written, value] of [
    ['1,024', '1024'],
    ['-06', '-6'],
    ['0.75', '3/4'],
    [String.raw`\frac{6}{8}`, '3/4'],
    [String.raw`-\dfrac{1}{3}`, '-1/3'],
    ['$x = 5$', '5'],
    ['10/5', '2'],
    ['12.0', '12'],
    ['123456789012345678901234567890', '123456789012345678901234567890'],
  ]) {
    assert.equal(exactNumber(written!), value, written);
  }
  for (const written of ['', 'five', '1/0', '1.2.3', '3 apples', '12,34', '1e5']) {
    assert.equal(exactNumber(written), undefined, written);
  }
});

test('a problem is the same for the same random numbers', () => {
  for (const difficulty of difficulties) {
    assert.deepEqual(makeProblem(difficulty, randomStream('p', 1)), makeProblem(difficulty, randomStream('p', 1)));
  }
});

describe('math-python', { skip }, async () => {
  const environment = skip ? null! : await loadEnvironment({ num_train_examples: 300, num_eval_examples: 30 });
  const play = (example: number, ...said: string[]) =>
    playAndScore(
      environment,
      environment.dataset.at(example),
      scriptedPolicy((_, turn) => said[turn] ?? ''),
    );
  const python = (code: string) => callText('python', { code });

  test('no problem is asked twice, and none that is held out is trained on', () => {
    const asked = [environment.dataset, environment.evalDataset].flatMap((dataset) =>
      Array.from({ length: dataset.length }, (_, i) => dataset.at(i).prompt.at(-1)!.content),
    );
    assert.equal(new Set(asked).size, 330);
  });

  test('Python finds the same answers as we do, for each kind of problem', async () => {
    await Promise.all(
      Array.from({ length: 30 }, async (_, i) => {
        const example = environment.evalDataset.at(i);
        const policy = await demonstratingPolicy(environment, example, Math.random);
        const { reward, metrics } = await playAndScore(environment, example, policy!);
        assert.equal(reward, 1, example.prompt.at(-1)!.content);
        assert.deepEqual([metrics['turns'], metrics['python_calls'], metrics['python_errors']], [2, 1, 0]);
      }),
    );
  });

  test('variables last from call to call, and are asked for again when the rollout is played again', async () => {
    const said = [python('a = 20'), `${python('b = 22')}\n${python('print(a + b)')}`, String.raw`\boxed{1}`];
    const rollout = await play(0, ...said);
    const heard = rollout.turns.flatMap(({ heard = [] }) => heard.map(({ content }) => content));
    assert.deepEqual(heard, ['(no output)', '(no output)', '42']);
    assert.deepEqual(await play(0, ...said), rollout);
  });

  test('an error is told to the model, which may continue', async () => {
    const { answer } = environment.dataset.at(0);
    const rollout = await play(
      0,
      python('1 / 0'),
      callText('python', { kode: '1' }),
      callText('pithon', {}),
      `\\boxed{${answer}}`,
    );
    assert.deepEqual([rollout.reward, rollout.metrics['python_errors'], rollout.turns.length], [1, 3, 4]);
  });

  test('only the box counts, and a wrong number, a missing box or too many turns are worth nothing', async () => {
    const { answer } = environment.dataset.at(0);
    assert.equal((await play(0, `It is \\boxed{${answer}}.`)).reward, 1);
    assert.equal((await play(0, answer)).reward, 0);
    assert.equal((await play(0, String.raw`\boxed{123456.5}`)).reward, 0);
    const { turns, reward } = await play(0, ...Array.from({ length: 12 }, () => python('1')));
    assert.deepEqual([turns.length, reward], [10, 0]);
    assert.equal(boxed(turns.at(-1)!.text), undefined);
  });

  test('running without a sandbox is said loudly', async () => {
    const { warnings } = await loadEnvironment({ sandbox: 'none', num_train_examples: 1, num_eval_examples: 1 });
    assert.match(warnings!.join(), /sandbox = "none".*rights of the worker/);
    assert.equal(environment.warnings, undefined);
    await assert.rejects(loadEnvironment({ sandbox: 'off' }), { code: 'ConfigInvalid' });
  });
});
