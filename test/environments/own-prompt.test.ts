/** `system_prompt` of an environment: its examples begin with it, however the environment is made. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { openEnvironment } from '../../backends/environments/index.ts';
import {
  type Environment,
  listDataset,
  playAndScore,
  rubric,
  scriptedPolicy,
  singleTurn,
  tool,
  toolEnvironment,
  z,
} from '../../backends/environments/kit.ts';
import { underSystemPrompt } from '../../backends/environments/own-prompt.ts';
import type { RolloutPlace } from '../../backends/environments/types.ts';
import { withSystemPrompt } from '../../core/rl/rollout/system-prompt.ts';

const dataset = listDataset([
  { prompt: 'What costs a pear?', answer: '3' },
  { prompt: [{ role: 'system', content: 'Be long.' }, { role: 'user', content: 'A plum?' }], answer: '2' }, // prettier-ignore
]);
const price = tool({ name: 'price', description: 'A price.', parameters: z.object({}), run: () => '3' });
const common = {
  name: 'shop',
  dataset,
  evalDataset: dataset,
  rubric: rubric([{ name: 'all', weight: 1, score: ({ messages }) => messages.length }]),
};
const made: Readonly<Record<string, Environment>> = {
  'asked once': singleTurn(common),
  'with tools': toolEnvironment({ ...common, tools: [price], maxTurns: 2 }),
};

/** First messages to the policy, for each example. */
async function heard(environment: Environment): Promise<string[][]> {
  const all: string[][] = [];
  for (let i = 0; i < environment.evalDataset.length; i++) {
    const policy = scriptedPolicy((messages) => {
      all.push(messages.map(({ role, content }) => `${role}: ${content}`));
      return '3';
    });
    await playAndScore(environment, environment.evalDataset.at(i), policy, 'evalDataset');
  }
  return all;
}

describe('an environment under a system prompt', () => {
  for (const [name, environment] of Object.entries(made)) {
    test(`${name}: every example begins with it, or with none where it is empty`, async () => {
      assert.deepEqual(await heard(underSystemPrompt(environment, 'Be brief.')), [
        ['system: Be brief.', 'user: What costs a pear?'],
        ['system: Be brief.', 'user: A plum?'],
      ]);
      assert.deepEqual(await heard(underSystemPrompt(environment, '')), [['user: What costs a pear?'], ['user: A plum?']]); // prettier-ignore
      assert.equal(underSystemPrompt(environment, undefined), environment);
    });
  }

  test('one that is opened by its entry has it, beside the same one without', async () => {
    const entry = { id: 'reverse-text', args: {} };
    const [under, own] = [await openEnvironment({ ...entry, systemPrompt: 'Be brief.' }), await openEnvironment(entry)];
    assert.equal(under.dataset.at(3).prompt[0]?.content, 'Be brief.');
    assert.deepEqual(under.dataset.at(3), withSystemPrompt(own.dataset.at(3), 'Be brief.'));
    assert.equal(own.dataset.at(3).prompt[0]?.role, 'user');
    assert.equal(await openEnvironment({ ...entry, systemPrompt: 'Be brief.' }), under);
  });

  test('a user’s class keeps its methods, with their own fields', async () => {
    class Shop {
      #stock = 3;
      name = 'shop';
      dataset = dataset;
      evalDataset = dataset;
      rubric = common.rubric;
      isDeterministic = true;
      rollout = singleTurn(common).rollout.bind(undefined);
      demonstrate(): string {
        return String(this.#stock);
      }
    }
    const under = underSystemPrompt(new Shop(), 'Be brief.');
    assert.equal(await under.demonstrate!(under.dataset.at(0), () => 0), '3');
    assert.equal((await heard(under))[0]![0], 'system: Be brief.');
  });

  test('one in Python is told it with the rollout, unless the rollout brings another', async () => {
    const told: unknown[] = [];
    const python: Environment = {
      ...singleTurn(common),
      rollout: (_, __, place) => {
        told.push(place?.systemPrompt);
        return Promise.resolve({ turns: [], outcome: 'ok' });
      },
    };
    const under = underSystemPrompt(python, 'Be brief.');
    const policy = scriptedPolicy(() => '');
    const place: RolloutPlace = { group: 'a', index: 0, size: 1, dataset: 'dataset', signal: new AbortController().signal }; // prettier-ignore
    await under.rollout(under.dataset.at(0), policy, place);
    await under.rollout(under.dataset.at(0), policy, { ...place, systemPrompt: 'Found by a search.' });
    assert.deepEqual(told, ['Be brief.', 'Found by a search.']);
  });
});
