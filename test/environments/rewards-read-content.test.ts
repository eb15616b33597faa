/** Rewards and replies of environments depend on what a turn says, not on its thoughts and calls. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { listDataset, multiTurn, rubric, type Turn, z } from '../../backends/environments/kit.ts';
import { scoreRollout } from '../../backends/environments/score.ts';
import { tool, toolEnvironment } from '../../backends/environments/tools.ts';
import { loadEnvironment as wordle } from '../../environments/wordle/index.ts';

const said = (text: string, more: Partial<Turn> = {}): Turn => ({
  promptTokenIds: [1],
  tokenIds: [2],
  logprobs: [-1],
  text,
  finishReason: 'stop',
  policyStep: 0,
  ...more,
});
const thought = said('<think>It may be 41.</think>\n\n42', { content: '\n\n42', reasoning: 'It may be 41.' });
const dataset = listDataset([{ prompt: [{ role: 'user', content: 'What is 6 times 7?' }], answer: '42' }]);
const heard: { completion: string; messages: readonly unknown[] }[] = [];
const judging = rubric([
  {
    name: 'exact',
    weight: 1,
    score: ({
      completion,
      messages,
      example,
    }: {
      completion: string;
      messages: readonly unknown[];
      example: { answer: string };
    }) => {
      heard.push({ completion, messages });
      return Number(completion.trim() === example.answer);
    },
  },
]);

test('a reward function is told the content, and finds thoughts and calls in the turns', async () => {
  const environment = multiTurn({
    name: 'thinking',
    dataset,
    evalDataset: dataset,
    rubric: judging,
    maxTurns: 1,
    setup: () => undefined,
    respond: () => ({ state: undefined, end: 'ok' as const }),
  });
  const score = (turn: Turn) =>
    scoreRollout(environment, dataset.at(0), { group: 0, index: 0, exampleId: 0, turns: [turn], outcome: 'ok' });
  assert.equal((await score(thought)).reward, 1);
  assert.deepEqual(heard.at(-1), {
    completion: '\n\n42',
    messages: [...dataset.at(0).prompt, { role: 'assistant', content: '\n\n42' }],
  });
  assert.equal((await score(said('42'))).reward, 1);
});

test('a call that is only thought of is neither made nor broken', async () => {
  const look = tool({ name: 'look', description: 'Looks.', parameters: z.object({}), run: () => 'seen' });
  const environment = toolEnvironment({
    name: 'looking',
    dataset,
    evalDataset: dataset,
    rubric: judging,
    tools: [look],
    maxTurns: 3,
  });
  const played = async (turn: Turn) => {
    const policy = { sample: () => Promise.resolve(turn) };
    const place = { group: 0, index: 0, size: 1, dataset: 'dataset', signal: new AbortController().signal };
    return (await environment.rollout(dataset.at(0), policy, place as never)).turns.length;
  };
  assert.equal(await played(said('<think><tool_call>{"name": "look"}</think>42', { content: '42' })), 1);
  assert.equal(await played(said('<tool_call>{"name": "look"')), 3);
});

test('a guess in a thought is no guess', async () => {
  const environment = wordle({});
  const guesses = '<guess>crane</guess>';
  const state = (turn: Turn) => environment.stateAfter!(environment.dataset.at(0), [turn]);
  const thinking = said(`<think><guess>slate</guess></think>${guesses}`, { content: guesses });
  assert.deepEqual(await state(thinking), await state(said(guesses)));
});
