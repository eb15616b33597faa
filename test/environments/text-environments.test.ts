/** The built-in text environments: what they ask, what they reward, what they hold out. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { numberAfterHashes, type ChatMessage, type Environment, type Policy } from '../../backends/environments/kit.ts';
import { listEnvironments, loadEnvironment } from '../../backends/environments/load.ts';
import { scoreRollout } from '../../backends/environments/score.ts';
import { randomStream } from '../../core/random.ts';
import { similarity } from '../../environments/alphabet-sort/similarity.ts';
import { inWords } from '../../environments/number-words/in-words.ts';
import { feedbackOn } from '../../environments/wordle/index.ts';

type Args = Parameters<typeof loadEnvironment>[1];

/** Simulates an example with `say` as the policy, and scores it from its stored form. */
async function play(environment: Environment, id: number, say: (messages: readonly ChatMessage[]) => string) {
  const example = environment.dataset.at(id);
  const policy: Policy = {
    sample: (messages) =>
      Promise.resolve({
        promptTokenIds: [1],
        tokenIds: [2],
        logprobs: [-1],
        text: say(messages),
        finishReason: 'stop',
        policyStep: 0,
      }),
  };
  const record = await environment.rollout(example, policy);
  return scoreRollout(environment, example, { group: 1, index: 0, exampleId: id, ...record });
}

/** Answers of a perfect demonstrator, turn by turn. */
async function playPerfectly(environment: Environment, id: number) {
  const demonstration = await environment.demonstrate!(environment.dataset.at(id), randomStream('perfect', id));
  const said =
    typeof demonstration === 'string'
      ? [demonstration]
      : demonstration.filter(({ role }) => role === 'assistant').map(({ content }) => content);
  return play(environment, id, () => said.shift()!);
}

const variants: readonly (readonly [string, Args])[] = [
  ['arithmetic', { operations: ['+', '-', '*'], digits: 3 }],
  ['alphabet-sort', { min_turns: 3, max_turns: 5, power_per_turn: false }],
  ['alphabet-sort', { format: 'plain', max_names_per_turn: 2 }],
  ['wordle', {}],
  ['wordle', { format: 'plain' }],
  ['word-problems', {}],
  ['number-words', {}],
  ['number-words', { kinds: ['plus', 'minus', 'smaller'], largest: 200, shown: 0 }],
  ['instructions', {}],
  ['instructions', { min_instructions: 2, max_instructions: 3 }],
];

for (const [id, args] of variants) {
  describe(`${id} ${JSON.stringify(args)}`, () => {
    const keyOf = (environment: Environment, from: 'dataset' | 'evalDataset', i: number) => {
      const { prompt, answer, info } = environment[from].at(i);
      return id === 'wordle' ? answer : JSON.stringify([prompt, info]);
    };
    const all = (environment: Environment, from: 'dataset' | 'evalDataset') =>
      Array.from({ length: environment[from].length }, (_, i) => keyOf(environment, from, i));

    test('a megabyte that a model wrote is scored in moments', async () => {
      const environment = await loadEnvironment(id, args);
      for (const piece of ['a', 'a\n', '1,000', '<guess>', 'a* ', '<alphabetical_sorted>a\n']) {
        const text = piece.repeat(2 ** 20 / piece.length);
        const before = process.cpuUsage();
        await play(environment, 0, () => `${text}</alphabetical_sorted>`);
        const { user, system } = process.cpuUsage(before);
        assert.ok(user + system < 3e6, `${JSON.stringify(piece)} took ${(user + system) / 1e6} s`);
      }
    });

    test('what is held out is not trained, and the same seed gives the same examples', async () => {
      const [environment, again] = [await loadEnvironment(id, args), await loadEnvironment(id, args)];
      const other = await loadEnvironment(id, { ...args, seed: 1 });
      const trained = new Set(all(environment, 'dataset'));
      const heldOut = all(environment, 'evalDataset');
      assert.ok(trained.size > 100 && heldOut.length >= 20, `${trained.size} and ${heldOut.length}`);
      assert.deepEqual(
        heldOut.filter((key) => trained.has(key)),
        [],
      );
      assert.deepEqual(all(again, 'evalDataset'), heldOut);
      assert.notDeepEqual(all(other, 'evalDataset'), heldOut);
    });

    test('a demonstrator that is never wrong gets all there is, and the usual demonstrator is wrong at times', async () => {
      const environment = await loadEnvironment(id, { ...args, wrong_demonstrations: 0 });
      for (let i = 0; i < 20; i++) {
        const { outcome, metrics, error } = await playPerfectly(environment, i);
        assert.equal(outcome, 'ok', error);
        // Even the perfect player may run out of guesses.
        if (id !== 'wordle') assert.equal(metrics['exact_match'], 1);
      }
      const usual = await loadEnvironment(id, args);
      const perfect: number[] = [];
      for (let i = 0; i < 60; i++) perfect.push((await playPerfectly(usual, i)).metrics['exact_match']!);
      const right = perfect.filter((value) => value === 1).length;
      if (id !== 'wordle') assert.ok(right > 0 && right < 55, `${right} of 60`);
    });

    test('nothing that a model may say makes the rubric fail', async () => {
      const environment = await loadEnvironment(id, args);
      await fc.assert(
        fc.asyncProperty(fc.string(), fc.nat(50), async (text, i) => {
          const { outcome, error } = await play(environment, i, () => text);
          assert.notEqual(outcome, 'judge_failure', error);
        }),
        { numRuns: 50 },
      );
    });

    test('an argument that does not exist is refused, and those that do are named', async () => {
      await assert.rejects(loadEnvironment(id, { ...args, foo: 1 }), /"foo"|foo/);
    });
  });
}

test('all of them are listed', () => {
  const expected = ['alphabet-sort', 'arithmetic', 'reverse-text', 'word-problems', 'wordle'];
  const found = listEnvironments();
  assert.deepEqual(
    expected.filter((name) => !found.includes(name)),
    [],
  );
});

describe('arithmetic', () => {
  test('answers are right and never negative, operands have the digits asked for', async () => {
    const { dataset } = await loadEnvironment('arithmetic', { operations: ['+', '-', '*'], digits: 2 });
    for (let i = 0; i < dataset.length; i++) {
      const { prompt, answer } = dataset.at(i);
      const [, a, operation, b] = /^(\d{1,2})([-+*])(\d{1,2})=$/.exec(prompt[0]!.content)!;
      const right =
        operation === '+' ? Number(a) + Number(b) : operation === '-' ? Number(a) - Number(b) : Number(a) * Number(b);
      assert.equal(answer, String(right));
      assert.ok(right >= 0);
    }
  });

  test('a small range gives the problems there are', async () => {
    const { dataset, evalDataset } = await loadEnvironment('arithmetic', { operations: ['+'], digits: 1 });
    assert.ok(dataset.length + evalDataset.length === 100, `${dataset.length} + ${evalDataset.length}`);
  });

  test('what counts is the last number said, whatever stands around it', async () => {
    const environment = await loadEnvironment('arithmetic', {});
    const { answer } = environment.dataset.at(0);
    assert.ok(Math.abs((await play(environment, 0, () => `That is ${answer}.`)).reward! - 1) < 1e-12);
    assert.equal((await play(environment, 0, () => 'no idea')).reward, 0);
  });
});

describe('alphabet-sort', () => {
  test('the similarity of two texts is that of Python’s difflib', () => {
    // difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()
    for (const [a, b, ratio] of [
      ['', '', 1],
      ['abc', '', 0],
      ['abcd', 'bcde', 0.75],
      ['ada\nbob', 'bob\nada', 3 / 7],
      ['qabxcd', 'abycdf', 2 / 3],
      ['private', 'privet', 0.7692307692307693],
    ] as const) {
      assert.ok(Math.abs(similarity(a, b) - ratio) < 1e-12, `${a} ${b}: ${similarity(a, b)}`);
    }
  });

  test('each turn brings names, the answer is all of them in order, new ones marked', async () => {
    const environment = await loadEnvironment('alphabet-sort', { min_turns: 3, max_turns: 3, wrong_demonstrations: 0 });
    const demonstration = (await environment.demonstrate!(environment.dataset.at(0), randomStream(0))) as ChatMessage[];
    const { names, by } = environment.dataset.at(0).info as { names: string[][]; by: string };
    const said = demonstration.filter(({ role }) => role === 'assistant').map(({ content }) => content);
    assert.match(said[0]!, /^<alphabetical_sorted>\n[\s\S]*\n<\/alphabetical_sorted>$/);
    const last = said[2]!.split('\n').slice(1, -1);
    assert.equal(last.length, names.flat().length);
    assert.deepEqual(
      last
        .filter((line) => line.endsWith(' // new name!'))
        .map((line) => line.split(' ')[0]!)
        .sort(byText),
      names[2]!.toSorted(byText),
    );
    const keys = last
      .map((line) => line.split(' ')[0]!)
      .map((name) => (by === 'first' ? name : /[A-Z][^A-Z]*$/.exec(name)![0]));
    assert.deepEqual(keys, keys.toSorted(byText));
  });

  test('power_per_turn raises each turn before the mean, false raises the mean; turns that were not played count 0', async () => {
    const args = { min_turns: 2, max_turns: 2, format: 'plain', similarity_power: 2 } as const;
    const rewards = async (isPerTurn: boolean, wrongTurn: number) => {
      const environment = await loadEnvironment('alphabet-sort', {
        ...args,
        power_per_turn: isPerTurn,
        wrong_demonstrations: 0,
      });
      const said = (await environment.demonstrate!(environment.dataset.at(0), randomStream(0))) as ChatMessage[];
      const right = said.filter(({ role }) => role === 'assistant').map(({ content }) => content);
      let turn = 0;
      return (await play(environment, 0, () => (turn === wrongTurn ? (turn++, '0') : right[turn++]!))).reward;
    };
    assert.equal(await rewards(true, 1), 0.5);
    assert.equal(await rewards(false, 1), 0.25);
    assert.equal(await rewards(true, 9), 1);
  });
});

describe('wordle', () => {
  test('letters are marked as the game marks them, doubled letters too', () => {
    for (const [guess, secret, marks] of [
      ['crane', 'crane', 'GGGGG'],
      ['level', 'lever', 'GGGGX'],
      ['eerie', 'lever', 'YGYXX'],
      ['aabbb', 'bbaaa', 'YYYYX'],
      ['stone', 'lucky', 'XXXXX'],
    ] as const) {
      assert.equal(feedbackOn(guess, secret), marks, `${guess} for ${secret}`);
    }
  });

  test('a game continues with feedback until the word is found or the guesses are used up', async () => {
    const environment = await loadEnvironment('wordle', {});
    const secret = environment.dataset.at(0).answer;
    const guess = (word: string) => `<guess>${word}</guess>`;
    const won = await play(environment, 0, (messages) => guess(messages.length > 2 ? secret : 'zzzzz'));
    assert.deepEqual([won.turns.length, won.reward], [2, 1 + 1 / 2 + 0.2]);
    assert.match(won.turns[1]!.heard![0]!.content, /^Z Z Z Z Z\n. . . . .\nGuesses left: 5\.$/);
    const lost = await play(environment, 0, () => 'I give up');
    assert.deepEqual([lost.turns.length, lost.reward], [6, 0]);
  });
});

describe('word-problems', () => {
  test('the solution’s steps are right, and its last result is the answer', async () => {
    const { dataset } = await loadEnvironment('word-problems', {});
    for (let i = 0; i < 2_000; i++) {
      const { answer, info } = dataset.at(i);
      const solution = (info as { solution: string }).solution;
      assert.equal(String(numberAfterHashes(solution)), answer);
      let before: string | undefined;
      for (const line of solution.split('\n').slice(0, -1)) {
        const [, a, operation, b, result] = /^(\d+)([-+*/])(\d+)=(\d+)$/.exec(line)!;
        assert.equal(a, before ?? a);
        const [x, y] = [Number(a), Number(b)];
        const right = { '+': x + y, '-': x - y, '*': x * y, '/': x / y }[operation as '+'];
        assert.equal(String(right), result);
        before = result;
      }
      assert.equal(before, answer);
    }
  });
});

describe('number-words', () => {
  test('numbers are written as people write them', () => {
    for (const [n, words] of [
      [0, 'zero'],
      [13, 'thirteen'],
      [40, 'forty'],
      [42, 'forty-two'],
      [100, 'one hundred'],
      [107, 'one hundred and seven'],
      [998, 'nine hundred and ninety-eight'],
    ] as const)
      assert.equal(inWords(n), words);
  });

  test('the answer alone counts, with or without a hyphen and a full stop', async () => {
    const environment = await loadEnvironment('number-words', {});
    const { answer, prompt } = environment.dataset.at(0);
    const worth = async (said: string) => (await play(environment, 0, () => said)).reward;
    assert.equal(await worth(`${answer.replace('-', ' ').toUpperCase()}.`), 1);
    assert.equal(await worth(`It is ${answer}`), 0);
    assert.match(prompt.at(-1)!.content, new RegExp(`\\b${answer}\\b`), 'the larger of two is one of them');
    assert.deepEqual(
      prompt.map(({ role }) => role),
      ['system', 'user', 'assistant', 'user'],
    );
  });

  test('a pair of numbers is held out in either order', async () => {
    const { dataset, evalDataset } = await loadEnvironment('number-words', { largest: 12 });
    const pairs = (from: typeof dataset) =>
      Array.from({ length: from.length }, (_, i) =>
        from.at(i).prompt.at(-1)!.content.split(' or ').toSorted(byText).join(),
      );
    const trained = new Set(pairs(dataset));
    assert.deepEqual(
      pairs(evalDataset).filter((pair) => trained.has(pair)),
      [],
    );
  });
});

function byText(a: string, b: string): number {
  return a < b ? -1 : 1;
}
