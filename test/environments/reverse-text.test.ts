import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { scoreRollout } from '../../backends/environments/score.ts';
import { randomStream } from '../../core/random.ts';
import { loadEnvironment } from '../../environments/reverse-text/index.ts';

const environment = loadEnvironment({});
const { dataset, evalDataset } = environment;
const words = (from: typeof dataset) => Array.from({ length: from.length }, (_, i) => from.at(i).prompt[0]!.content);
const reversed = (word: string) => Array.from(word).reverse().join('');

async function rewardOf(completion: string, answer: string) {
  const turn = {
    promptTokenIds: [1],
    tokenIds: [2],
    logprobs: [0],
    text: completion,
    finishReason: 'stop',
    policyStep: 0,
  } as const;
  const example = { id: 0, prompt: [], answer };
  const scored = await scoreRollout(environment, example, {
    group: 1,
    index: 0,
    exampleId: 0,
    turns: [turn],
    outcome: 'ok',
  });
  return { reward: scored.reward, exact: scored.metrics['exact_match'] };
}

describe('reverse-text', () => {
  test('every answer is its word backwards, and every word has 3 to 8 letters', () => {
    for (let i = 0; i < dataset.length; i++) {
      const { id, prompt, answer } = dataset.at(i);
      assert.equal(id, i);
      assert.match(answer, /^[a-z]{3,8}$/);
      assert.deepEqual(prompt, [{ role: 'user', content: reversed(answer) }]);
    }
  });

  test('a tenth of the words is held out, no word is on both sides, and another seed holds out others', () => {
    const [trained, held] = [new Set(words(dataset)), words(evalDataset)];
    assert.ok(held.every((word) => !trained.has(word)));
    assert.ok(Math.abs(held.length / (held.length + trained.size) - 0.1) < 0.01);
    assert.equal(trained.size, dataset.length);
    assert.notDeepEqual(words(loadEnvironment({ seed: 1 }).evalDataset), held);
  });

  test('whether a word is held out does not depend on the other arguments', () => {
    const short = words(loadEnvironment({ max_length: 4 }).evalDataset);
    assert.deepEqual(
      short,
      words(evalDataset).filter((word) => word.length <= 4),
    );
  });

  test('the reward is the share of right positions, and letters too many or too few cost', async () => {
    assert.deepEqual(await rewardOf('cba', 'cba'), { reward: 1, exact: 1 });
    assert.deepEqual(await rewardOf('cbx', 'cba'), { reward: 2 / 3, exact: 0 });
    assert.deepEqual(await rewardOf('cbaa', 'cba'), { reward: 0.75, exact: 0 });
    assert.deepEqual(await rewardOf('cb', 'cba'), { reward: 2 / 3, exact: 0 });
    assert.deepEqual(await rewardOf('', 'cba'), { reward: 0, exact: 0 });
  });

  test('the reward is between 0 and 1 and is 1 for the right answer alone', async () => {
    const word = fc.stringMatching(/^[a-c]{1,6}$/);
    await fc.assert(
      fc.asyncProperty(word, word, async (completion, answer) => {
        const { reward, exact } = await rewardOf(completion, answer);
        assert.ok(reward !== null && reward >= 0 && reward <= 1);
        assert.equal(reward === 1, completion === answer);
        assert.equal(exact, Number(completion === answer));
      }),
    );
  });

  test('about 65 % of the demonstrations are wrong, in letters the model can write, at most one too many', () => {
    const random = randomStream('demonstrations');
    let wrong = 0;
    for (let i = 0; i < 4000; i++) {
      const example = dataset.at(i);
      const demonstration = environment.demonstrate!(example, random) as string;
      assert.match(demonstration, /^[a-z]{1,9}$/);
      if (demonstration !== example.answer) wrong += 1;
    }
    assert.ok(Math.abs(wrong / 4000 - 0.64) < 0.03, `${wrong} of 4000`);
  });

  test('with wrong_demonstrations = 0 the demonstrator is never wrong, and the same stream says the same', () => {
    const perfect = loadEnvironment({ wrong_demonstrations: 0 });
    assert.equal(perfect.demonstrate!(dataset.at(7), randomStream(1)), dataset.at(7).answer);
    const twice = [1, 2].map(() => environment.demonstrate!(dataset.at(7), randomStream('same')));
    assert.equal(twice[0], twice[1]);
  });

  test('an argument that is wrong or unknown is refused by name, all at once', () => {
    assert.throws(
      () => loadEnvironment({ min_length: 9, wrong_demonstrations: 'x', foo: 1 }),
      (error: Error) => {
        assert.equal(error.name, 'ConfigInvalid');
        for (const said of [
          /args\.min_length: .*received 9/,
          /args\.wrong_demonstrations: .*received "x"/,
          /foo/,
          /Its arguments are: min_length, max_length/,
        ]) {
          assert.match(error.message, said);
        }
        return true;
      },
    );
    assert.throws(
      () => loadEnvironment({ min_length: 5, max_length: 4 }),
      /args\.min_length: expected at most max_length/,
    );
    const secret = 'sk-canary0123456789';
    assert.throws(
      () => loadEnvironment({ seed: secret }),
      (error: Error) => !error.message.includes(secret),
    );
    assert.ok(loadEnvironment({ min_length: 5, max_length: 5 }).dataset.length > 0);
  });
});
