import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type EvaluatedVersion, judgeRegression, type Regression } from '../../../core/eval/regression.ts';
import { randomStream } from '../../../core/random.ts';

interface Policy {
  readonly examples: number;
  readonly samples?: number;
  readonly isGraded?: boolean;
  /** Rewards expected at an evaluation, more than at the first one. */
  readonly shift?: (evaluation: number) => number;
}

/** A run's evaluations, each judged by those before it. Examples have chances of their own, drawn once. */
function evaluations(key: string, count: number, policy: Policy, environments = 1): (Regression | null)[] {
  const { examples, samples = 1, isGraded = false, shift = () => 0 } = policy;
  const random = randomStream('regression', key);
  const chances = Array.from({ length: examples }, () => 0.1 + 0.8 * random());
  const versions: EvaluatedVersion[] = [];
  return Array.from({ length: count }, (_, step) => {
    const rewards = chances.map((chance) => {
      let sum = 0;
      for (let i = 0; i < samples; i++)
        sum += isGraded ? 0.4 * chance + shift(step) + 0.6 * random() : Number(random() < chance + shift(step));
      return sum / samples;
    });
    const version = { step, rewards: Object.fromEntries(rewards.entries()) };
    const judged = judgeRegression(version, versions, [key], { environments });
    versions.push(version);
    return judged;
  });
}

/** When a run would be paused or stopped; −1 = never. */
const endOf = (judged: readonly (Regression | null)[]): number => judged.findIndex((one) => one?.isRepeated === true);

describe('what may end a run', () => {
  const worlds: Record<string, Policy> = {
    'an unchanging policy': { examples: 64 },
    'one with ten examples': { examples: 10 },
    'one with several samples of each example': { examples: 32, samples: 4 },
    'one with graded rewards': { examples: 32, isGraded: true },
    'one that rises by .005 an evaluation': { examples: 64, shift: (k) => 0.005 * k - 0.05 },
  };
  for (const [name, policy] of Object.entries(worlds))
    test(`${name} is ended by chance in one of twenty runs of twenty evaluations at most`, () => {
      const runs = Array.from({ length: 60 }, (_, seed) => evaluations(`${name} ${seed}`, 20, policy));
      const ended = runs.filter((judged) => endOf(judged) >= 0).length;
      assert.ok(ended <= 3, `${ended} of 60`);
      const marked = runs.flat().filter((one) => one?.isWorse === true).length;
      assert.ok(marked <= 0.05 * 1140, `${marked} of 1140 evaluations are marked`);
    });

  test('four environments that are judged together end no more runs than one', () => {
    const ended = Array.from({ length: 40 }, (_, seed) =>
      [0, 1, 2, 3].some((one) => endOf(evaluations(`four ${one} ${seed}`, 20, { examples: 16 }, 4)) >= 0),
    ).filter(Boolean).length;
    assert.ok(ended <= 2, `${ended} of 40`);
  });

  test('fewer than ten examples are never marked', () => {
    for (const examples of [2, 3, 5, 9])
      for (let seed = 0; seed < 20; seed++)
        for (const judged of evaluations(`few ${seed}`, 10, { examples, shift: (k) => (k > 5 ? -0.9 : 0) }))
          assert.ok(judged === null || !(judged.isWorse || judged.isRepeated), `${examples} examples`);
  });

  test('a fall of 0.1 on 256 examples ends a run within three evaluations, in nine of ten', () => {
    for (const fallsAt of [5, 10, 15]) {
      const found = Array.from({ length: 40 }, (_, seed) => {
        const policy = { examples: 256, shift: (k: number) => (k >= fallsAt ? -0.1 : 0) };
        return endOf(evaluations(`fall ${fallsAt} ${seed}`, fallsAt + 3, policy)) >= 0;
      }).filter(Boolean).length;
      assert.ok(found >= 36, `${found} of 40 at evaluation ${fallsAt}`);
    }
  });

  test('one evaluation that falls is a mark and ends nothing; a second one in a row does', () => {
    const runs = (shift: (k: number) => number) =>
      Array.from({ length: 20 }, (_, seed) => evaluations(`once ${seed}`, 8, { examples: 128, shift }));
    const dips = runs((k) => (k === 5 ? -0.3 : 0));
    assert.ok(dips.filter((judged) => judged[5]!.isWorse).length >= 18);
    assert.ok(dips.filter((judged) => endOf(judged) >= 0).length <= 2);
    const falls = runs((k) => (k >= 5 ? -0.3 : 0));
    assert.ok(falls.filter((judged) => endOf(judged) === 6).length >= 18);
  });
});
