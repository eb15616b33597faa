import assert from 'node:assert/strict';
import { test } from 'node:test';
import { callText, demonstratingPolicy, playAndScore, scriptedPolicy } from '../../backends/environments/kit.ts';
import { loadEnvironment } from '../../environments/stock-room/index.ts';

const environment = loadEnvironment({});
const example = environment.dataset.at(0);
const thing = String(example.info!['thing']);
const call = callText('find', { thing });
const saying = (...turns: readonly string[]) =>
  playAndScore(
    environment,
    example,
    scriptedPolicy((_, turn) => turns[turn] ?? ''),
  );

test('what is looked up and said is the whole reward; the call alone is a part of it', async () => {
  const { reward, metrics, turns } = await saying(call, example.answer);
  assert.deepEqual([reward, metrics['looked_up'], metrics['exact_match'], turns.length], [1, 1, 1, 2]);
  assert.equal((await saying(call, `It is ${example.answer}.`)).reward, 1);
  assert.equal((await saying(call, 'I do not know.')).reward, 0.4);
});

test('a guess, another thing, both numbers and a call without an answer are worth less', async () => {
  assert.equal((await saying(example.answer)).reward, 0, 'nothing was looked up');
  assert.equal((await saying(callText('find', { thing: 'red table' }), example.answer)).reward, 0);
  assert.equal((await saying(`${call}${call}`, example.answer)).reward, 0, 'it was looked up twice');
  const both = String(example.info!['known']);
  assert.equal((await saying(call, both)).reward, 0.4);
  assert.equal((await saying(call, call)).reward, 0.4);
});

test('a thing that is not there and arguments that do not fit are told', async () => {
  const heard = async (said: string) => (await saying(said)).turns[1]!.heard!.map(({ content }) => content).join();
  assert.match(await heard(callText('find', { thing: 'green moon' })), /there is no "green moon"/);
  assert.match(await heard(callText('find', { item: thing })), /called with wrong arguments/);
  assert.match(await heard('<tool_call>{"name": find</tool_call>'), /this was no tool call/);
});

test('demonstrations are right, also with no question shown and for what is held out', async () => {
  const plain = loadEnvironment({ shown: 0, system_prompt: '' });
  for (const dataset of [plain.dataset, plain.evalDataset]) {
    for (let i = 0; i < 20; i++) {
      const policy = await demonstratingPolicy(plain, dataset.at(i), Math.random);
      assert.equal((await playAndScore(plain, dataset.at(i), policy!)).reward, 1);
    }
  }
  assert.deepEqual(
    plain.dataset.at(0).prompt.map(({ role }) => role),
    ['user'],
  );
});

test('no thing is trained on and held out, and another seed has other numbers', () => {
  const all = (of: ReturnType<typeof loadEnvironment>, from: 'dataset' | 'evalDataset') =>
    Array.from({ length: of[from].length }, (_, i) => of[from].at(i));
  const thingsOf = (from: 'dataset' | 'evalDataset') =>
    new Set(all(environment, from).map(({ info }) => String(info!['thing'])));
  const [train, heldOut] = [thingsOf('dataset'), thingsOf('evalDataset')];
  assert.ok(train.size > 100 && heldOut.size > 20);
  assert.ok([...heldOut].every((each) => !train.has(each)));
  const other = loadEnvironment({ seed: 1 });
  assert.notDeepEqual(
    all(other, 'dataset').map(({ info }) => info!['known']),
    all(environment, 'dataset').map(({ info }) => info!['known']),
  );
  for (const { answer, info } of all(environment, 'dataset')) {
    const numbers = String(info!['known']).match(/\d+/g)!;
    assert.equal(new Set(numbers).size, 2);
    assert.ok(numbers.includes(answer));
  }
});
