/** `instructions`: what counts as followed, and what an answer is worth. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { playAndScore, scriptedPolicy } from '../../backends/environments/scripted.ts';
import { kindNames, kinds, type KindName, mentions, type Value } from '../../environments/instructions/checks.ts';
import { loadEnvironment } from '../../environments/instructions/index.ts';

const cases: readonly (readonly [KindName, Value, string, boolean])[] = [
  ['lower_case', null, 'snow is cold.', true],
  ['lower_case', null, 'Snow is cold.', false],
  ['capitals', null, 'SNOW IS COLD.', true],
  ['capitals', null, 'SNOW IS cold.', false],
  ['words', 5, 'Snow – it is very cold.', true],
  ['words', 5, 'Snow is cold.', false],
  ['beginning', 'Indeed', 'indeed, snow is cold.', true],
  ['beginning', 'Indeed', 'Indeedly snow is cold.', false],
  ['ending', 'that is all', 'Snow is cold, and that is all.', true],
  ['ending', 'that is all', 'That is all snow', false],
  ['include', 'green', 'Green snow.', true],
  ['include', 'green', 'Greenish snow.', false],
  ['no_comma', null, 'Snow is cold.', true],
  ['no_comma', null, 'Snow, cold.', false],
  ['question', null, '"Is snow cold?"', true],
  ['question', null, 'Is snow cold? It is.', false],
  ['quotes', null, '"Snow is cold."', true],
  ['quotes', null, '"Snow" is "cold"', false],
  ['list', 3, 'snow, ice, wind.', true],
  ['list', 3, 'snow, cold ice, wind', false],
  ['json', ['topic', 'mood'], '{"mood": "cold", "topic": "snow"}', true],
  ['json', ['topic', 'mood'], '{"topic": "snow"}', false],
  ['json', ['topic', 'mood'], '["topic", "mood"]', false],
  ['json', ['topic', 'mood'], '```json {"mood": "cold", "topic": "snow"}```', false],
];

test('every kind is told from what is nearly it', () => {
  for (const [kind, value, text, isFollowed] of cases)
    assert.equal(kinds[kind].isFollowed(text, value), isFollowed, `${kind} ${JSON.stringify(value)}: ${text}`);
  assert.deepEqual([...new Set(cases.map(([kind]) => kind))].sort(), [...kindNames].sort());
});

test('an answer about something else is not right, whatever it follows', async () => {
  const environment = loadEnvironment({ kinds: ['no_comma'], max_instructions: 1 });
  const example = environment.dataset.at(0);
  const { topic } = example.info as { topic: string };
  const worth = async (text: string) => {
    const { reward, metrics } = await playAndScore(
      environment,
      example,
      scriptedPolicy(() => text),
    );
    return [reward, metrics?.['exact_match']];
  };
  assert.deepEqual(await worth(`All ${topic} are good.`), [1, 1]);
  assert.deepEqual(await worth('All of them are good.'), [0.5, 0]);
  assert.deepEqual(await worth(`All ${topic}, are good.`), [0, 0]);
  assert.deepEqual(await worth(''), [0, 0]);
  assert.ok(mentions('One river.', 'rivers'));
});

test('instructions of one prompt never contradict each other', () => {
  const environment = loadEnvironment({ min_instructions: 3, max_instructions: 3 });
  for (let i = 0; i < 500; i++) {
    const { info } = environment.dataset.at(i);
    const names = (info as { instructions: { kind: KindName }[] }).instructions.map(({ kind }) => kind);
    assert.equal(new Set(names).size, names.length);
    assert.ok(!names.includes('lower_case') || !names.includes('capitals'));
    assert.ok(names.length === 1 || (!names.includes('json') && !names.includes('list')), names.join());
  }
});
