import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import {
  judgeAgents,
  listDataset,
  playAndScore,
  rubric,
  scriptedPolicy,
  singleTurn,
} from '../../backends/environments/kit.ts';
import type { RewardFunction, Turn } from '../../backends/environments/kit.ts';
import { listEnvironments, loadEnvironment } from '../../backends/environments/load.ts';
import { scoreRollout } from '../../backends/environments/score.ts';
import { RatchetError } from '../../core/errors.ts';
import type { Rollout } from '../../core/rl/rollout/rollout.ts';
import { loadEnvironment as loadDuel } from '../e2e/duel-environment.ts';

const turn = (text: string, finishReason: Turn['finishReason'] = 'stop'): Turn => ({
  promptTokenIds: [1],
  tokenIds: [2],
  logprobs: [-1],
  text,
  finishReason,
  policyStep: 0,
});
const rollout = (outcome: Rollout['outcome'] = 'ok'): Rollout => ({
  group: 1,
  index: 0,
  exampleId: 0,
  turns: [turn('said')],
  outcome,
});
const example = listDataset([{ prompt: 'ask', answer: 'said' }]).at(0);
const score = (functions: readonly RewardFunction[], outcome?: Rollout['outcome']) =>
  scoreRollout({ rubric: rubric(functions) }, example, rollout(outcome));
const fixed = (name: string, weight: number, value: number): RewardFunction => ({ name, weight, score: () => value });

describe('scoring a stored rollout', () => {
  test('the reward is the weighted sum; weight 0 is reported but not rewarded', async () => {
    const scored = await score([fixed('a', 1, 0.5), fixed('b', 0.25, 2), fixed('seen', 0, 9)]);
    assert.equal(scored.reward, 1);
    assert.deepEqual(scored.metrics, { a: 0.5, b: 2, seen: 9 });
    assert.equal(scored.outcome, 'ok');
  });

  test('a reward function that throws makes a judge failure without a reward, not a reward of 0', async () => {
    const broken: RewardFunction = {
      name: 'judge',
      weight: 1,
      score: () => Promise.reject(new Error('the judge is asleep')),
    };
    const scored = await score([fixed('a', 1, 1), broken]);
    assert.deepEqual([scored.outcome, scored.reward], ['judge_failure', null]);
    assert.match(scored.error ?? '', /"judge": Error: the judge is asleep/);
  });

  test('a reward function that does not answer in time is asked again, and is a judge failure when it continues', async () => {
    let asked = 0;
    const hanging = (times: number): RewardFunction => ({
      name: 'judge',
      weight: 1,
      score: () => (asked++ < times ? new Promise<number>(() => undefined) : Promise.resolve(1)),
    });
    const scoredIn = (judge: RewardFunction) =>
      scoreRollout({ rubric: rubric([judge]) }, example, rollout(), { timeoutMs: 50 });
    assert.equal((await scoredIn(hanging(1))).reward, 1);
    asked = 0;
    const { outcome, reward, error } = await scoredIn(hanging(Infinity));
    assert.deepEqual([outcome, reward, asked], ['judge_failure', null, 3]);
    assert.match(error ?? '', /"judge": Error: no answer within generation_timeout = 0\.05 s/);
  });

  test('a score that is not a finite number is a judge failure too', async () => {
    for (const value of [Number.NaN, Number.POSITIVE_INFINITY, undefined as unknown as number]) {
      assert.equal((await score([fixed('a', 1, value)])).outcome, 'judge_failure');
    }
  });

  test('truncated and failed answers carry a reward, infrastructure trouble never does', async () => {
    for (const outcome of ['ok', 'truncated', 'policy_failure'] as const) {
      assert.equal((await score([fixed('a', 1, 1)], outcome)).reward, 1);
    }
    for (const outcome of ['infra_failure', 'timeout', 'cancelled', 'judge_failure'] as const) {
      const scored = await score([fixed('a', 1, 1)], outcome);
      assert.deepEqual([scored.reward, scored.outcome, scored.metrics], [null, outcome, {}]);
    }
  });

  test('the completion is what the model said last', async () => {
    const echo: RewardFunction = { name: 'echo', weight: 1, score: ({ completion }) => Number(completion === 'said') };
    assert.equal((await score([echo])).reward, 1);
  });
});

describe('the environment kit', () => {
  const dataset = listDataset([
    { prompt: 'one', answer: '1' },
    { prompt: [{ role: 'system', content: 's' }], answer: '2' },
  ]);

  test('a single turn that ends by length is truncated, else ok', async () => {
    const environment = singleTurn({ name: 'e', dataset, evalDataset: dataset, rubric: rubric([]) });
    const play = (finishReason: Turn['finishReason']) =>
      environment.rollout(dataset.at(0), { sample: () => Promise.resolve(turn('x', finishReason)) });
    assert.equal((await play('stop')).outcome, 'ok');
    assert.equal((await play('length')).outcome, 'truncated');
  });

  test('a server that cannot be reached is the policy rejecting, and is not swallowed', async () => {
    const environment = singleTurn({ name: 'e', dataset, evalDataset: dataset, rubric: rubric([]) });
    const policy = { sample: () => Promise.reject(new RatchetError('InferenceUnavailable', 'gone')) };
    await assert.rejects(environment.rollout(dataset.at(0), policy), /gone/);
  });

  test('a plain prompt is one user message, and ids are positions', () => {
    assert.deepEqual(dataset.at(0), { id: 0, prompt: [{ role: 'user', content: 'one' }], answer: '1' });
    assert.equal(dataset.at(1).id, 1);
    for (const outside of [-1, 2, 0.5]) assert.throws(() => dataset.at(outside), RangeError);
  });

  test('two reward functions of one name, or a weight that is no number, are refused', () => {
    assert.throws(() => rubric([fixed('a', 1, 1), fixed('a', 0, 1)]), /Two reward functions are called "a"/);
    assert.throws(() => rubric([fixed('a', Number.NaN, 1)]), /weight/);
  });
});

test('two agents of an environment in TypeScript are asked in turn, and each has a reward of its own', async () => {
  const duel = loadDuel();
  const words = ['longest', 'b', 'c', 'd'];
  const scored = await playAndScore(
    duel,
    duel.dataset.at(0),
    scriptedPolicy((_, turn) => words[turn]!),
  );
  assert.deepEqual(
    scored.turns.map(({ text, trace }) => [text, trace]),
    [
      ['longest', 0],
      ['b', 1],
      ['c', 0],
      ['d', 1],
    ],
  );
  assert.deepEqual(
    scored.traces!.map(({ agent, reward, metrics }) => [agent, reward, metrics]),
    [
      ['first', 1, { letters: 8 }],
      ['second', -1, { letters: 2 }],
    ],
  );
  assert.deepEqual(
    [scored.reward, scored.metrics],
    [0, { 'first/reward': 1, 'first/letters': 8, 'second/reward': -1, 'second/letters': 2 }],
  );
  const judge = { agent: 'judge', isTrained: false, reward: 0, metrics: {} };
  assert.throws(() => judgeAgents([judge]), /Expected one agent at least with isTrained: true; received judge/);
});

describe('loading an environment', () => {
  let environmentsFolder: string;
  before(() => {
    environmentsFolder = mkdtempSync(path.join(tmpdir(), 'environments-'));
    for (const [name, code] of Object.entries({
      good: 'export const loadEnvironment = (args) => ({ name: "good", args });',
      hollow: 'export const nothing = 1;',
    })) {
      mkdirSync(path.join(environmentsFolder, name));
      writeFileSync(path.join(environmentsFolder, name, 'index.js'), code);
    }
    mkdirSync(path.join(environmentsFolder, 'empty'));
    writeFileSync(path.join(environmentsFolder, 'package.json'), '{ "type": "module" }');
  });
  after(() => rmSync(environmentsFolder, { recursive: true }));

  const load = (id: string) => loadEnvironment(id, { a: 1 }, { environmentsFolder });

  test('an id finds its folder and gets its arguments', async () => {
    assert.deepEqual(await load('good'), { name: 'good', args: { a: 1 } });
  });

  test('an id with an owner is never taken for what is built in', async () => {
    for (const id of ['primeintellect/good', 'primeintellect/good@0.1.4']) {
      await assert.rejects(load(id), { code: 'EnvironmentUnknown' }, id);
    }
  });

  test('an unknown id names those that exist and the nearest', async () => {
    await assert.rejects(load('owner/goood'), (error: RatchetError) => {
      assert.equal(error.code, 'EnvironmentUnknown');
      assert.equal(
        error.message,
        'There is no environment "owner/goood". Did you mean "good"? Those that exist: good, hollow.',
      );
      return true;
    });
  });

  test('an id never leaves the environments folder', async () => {
    for (const id of [
      '../good',
      'good/../good',
      '/etc',
      'a/b/good',
      '..',
      '.',
      '',
      'good/',
      String.raw`..\good`,
      'good\0',
    ]) {
      await assert.rejects(load(id), { code: 'EnvironmentUnknown' }, id);
    }
  });

  test('a module without loadEnvironment is a refusal that says what to export', async () => {
    await assert.rejects(load('hollow'), {
      code: 'ConfigInvalid',
      message: /does not export a function loadEnvironment/,
    });
  });

  test('the built-in environments are listed', () => {
    assert.ok(listEnvironments().includes('reverse-text'));
    assert.deepEqual(listEnvironments(path.join(environmentsFolder, 'missing')), []);
  });
});
