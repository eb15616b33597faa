import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { z } from 'zod';
import {
  callText,
  type ChatMessage,
  type Environment,
  listDataset,
  multiTurn,
  type Policy,
  type RewardInput,
  rubric,
  tool,
  toolCallsOf,
  toolEnvironment,
  ToolError,
  type Turn,
} from '../../backends/environments/kit.ts';
import { scoreRollout } from '../../backends/environments/score.ts';
import { demonstrationRows } from '../../core/rl/rollout/demonstration-rows.ts';
import { samplePolicy } from '../../play/policy/sample-policy.ts';
import type { Inference } from '../../backends/inference/index.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';
import { packSamples } from '../core/rl/pack-samples.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { createPreset, readToolCalls } from '../../engine/index.ts';
import { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';

/** Answers with these texts in turn, and records its input. */
function scripted(...texts: (string | { text: string; finishReason: 'length' })[]) {
  const told: (readonly ChatMessage[])[] = [];
  const policy: Policy = {
    sample(messages, options) {
      told.push(messages);
      const next = texts[told.length - 1]!;
      const { text, finishReason = 'stop' as const } = typeof next === 'string' ? { text: next } : next;
      const toolCalls = options?.tools ? readToolCalls(text) : [];
      const called = toolCalls.length > 0 ? { toolCalls } : {};
      return Promise.resolve({ ...turnOf(text), ...called, finishReason });
    },
  };
  return { policy, told };
}

function turnOf(text: string): Turn {
  return { promptTokenIds: [1], tokenIds: [2], logprobs: [-1], text, finishReason: 'stop', policyStep: 0 };
}

const dataset = listDataset([{ prompt: 'higher or lower?', answer: '5' }]);
const example = dataset.at(0);

/** Guess a number; the state counts the tries. */
function guessing(
  more: { maxTurns?: number; isDeterministic?: boolean; seen?: RewardInput<{ tries: number }>[] } = {},
) {
  return multiTurn<{ tries: number }>({
    name: 'guessing',
    dataset,
    evalDataset: dataset,
    maxTurns: more.maxTurns ?? 4,
    ...(more.isDeterministic === undefined ? {} : { isDeterministic: more.isDeterministic }),
    rubric: rubric([
      {
        name: 'tries',
        weight: 1,
        score(rollout) {
          more.seen?.push(rollout);
          return rollout.state?.tries ?? -1;
        },
      },
    ]),
    setup: () => ({ tries: 0 }),
    respond({ example: { answer }, state, turns }) {
      const guess = Number(turns.at(-1)!.text);
      const next = { tries: state.tries + 1 };
      if (Number.isNaN(guess)) return { state: next, end: 'policy_failure' };
      if (guess === Number(answer)) return { state: next, end: 'ok' };
      return { state: next, say: guess < Number(answer) ? 'higher' : 'lower' };
    },
    demonstrate: ({ turns }) => String(3 + turns.length),
  });
}

const scored = async (environment: Environment, record: Awaited<ReturnType<Environment['rollout']>>) =>
  scoreRollout(environment, example, { group: 1, index: 0, exampleId: 0, ...JSON.parse(JSON.stringify(record)) });

describe('an environment of several turns', () => {
  test('it answers until the task is done, and each turn is told the whole conversation', async () => {
    const { policy, told } = scripted('7', '3', '5');
    const { turns, outcome } = await guessing().rollout(example, policy);
    assert.equal(outcome, 'ok');
    assert.deepEqual(
      turns.map(({ text }) => text),
      ['7', '3', '5'],
    );
    assert.deepEqual(
      told.at(-1)!.map(({ role, content }) => `${role}: ${content}`),
      ['user: higher or lower?', 'assistant: 7', 'user: lower', 'assistant: 3', 'user: higher'],
    );
  });

  test('it ends at its last turn, where an answer is cut off, and where the policy breaks the rules', async () => {
    const play = async (environment: Environment, ...texts: Parameters<typeof scripted>) => {
      const { turns, outcome } = await environment.rollout(example, scripted(...texts).policy);
      return [turns.length, outcome];
    };
    assert.deepEqual(await play(guessing({ maxTurns: 2 }), '1', '2', '5'), [2, 'ok']);
    assert.deepEqual(await play(guessing(), '1', { text: '2', finishReason: 'length' }), [2, 'truncated']);
    assert.deepEqual(await play(guessing(), '1', 'what?'), [2, 'policy_failure']);
    assert.throws(() => guessing({ maxTurns: 0 }), /maxTurns to be a whole number from 1, received 0/);
  });

  test('a rubric sees conversation and state of a stored rollout, made again from its turns alone', async () => {
    const seen: RewardInput<{ tries: number }>[] = [];
    const record = await guessing().rollout(example, scripted('7', '5').policy);
    const { reward } = await scored(guessing({ seen }), record);
    assert.equal(reward, 2);
    assert.deepEqual(seen[0]!.state, { tries: 2 });
    assert.deepEqual(
      seen[0]!.messages.map(({ content }) => content),
      ['higher or lower?', '7', 'lower', '5'],
    );
    assert.equal(seen[0]!.completion, '5');
  });

  test('where the environment is not deterministic the rubric has the conversation, and no state is made up', async () => {
    const seen: RewardInput<{ tries: number }>[] = [];
    const moody = guessing({ isDeterministic: false, seen });
    const record = await moody.rollout(example, scripted('7', '5').policy);
    assert.equal((await scored(moody, record)).reward, -1);
    assert.deepEqual(
      seen[0]!.messages.map(({ content }) => content),
      ['higher or lower?', '7', 'lower', '5'],
    );
  });

  test('a state that cannot be made again is a judge failure, not a reward of 0', async () => {
    const environment = { ...guessing(), stateAfter: () => Promise.reject(new Error('lost')) };
    const { outcome, reward, error } = await scored(environment, { turns: [turnOf('5')], outcome: 'ok' });
    assert.deepEqual([outcome, reward], ['judge_failure', null]);
    assert.match(error ?? '', /The state after the rollout cannot be made again: Error: lost/);
  });

  test('a demonstration is the conversation that the demonstrator leads, with the environment answering', async () => {
    const said = await guessing().demonstrate!(example, Math.random);
    assert.deepEqual(said, [
      { role: 'assistant', content: '3' },
      { role: 'user', content: 'higher' },
      { role: 'assistant', content: '4' },
      { role: 'user', content: 'higher' },
      { role: 'assistant', content: '5' },
    ]);
  });

  test('the warm-up trains what the assistant says, each turn in its context, all in one row', async () => {
    const { tokenizer } = createPreset('preset:chars-0.4m', { seed: 0 });
    const said = await guessing().demonstrate!(example, Math.random);
    const [row, ...others] = demonstrationRows(tokenizer, example.prompt, said);
    assert.equal(others.length, 0);
    const trained = row!.tokenIds.filter((_, i) => row!.lossMask[i] === 1);
    assert.equal(tokenizer.decode(trained, { skipSpecialTokens: false }), '3<eos>4<eos>5<eos>');
    assert.equal(
      tokenizer.decode(row!.tokenIds, { skipSpecialTokens: false }),
      '<bos>higher or lower?<sep>3<eos><bos>higher<sep>4<eos><bos>higher<sep>5<eos>',
    );
  });

  test('what a template writes behind the end of a turn is not trained', () => {
    const folder = new URL('../engine/golden/tokenizers/byte-level/', import.meta.url);
    const read = (name: string): string => readFileSync(new URL(name, folder), 'utf8');
    const chatTemplate = `{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}`;
    const files = { tokenizer: read('tokenizer.json'), config: read('tokenizer_config.json'), chatTemplate };
    const tokenizer = new ChatTokenizer(files, 'byte-level');
    const said = ['one', 'two'].flatMap((content, i) => [
      ...(i === 0 ? [] : [{ role: 'user' as const, content: 'on' }]),
      { role: 'assistant' as const, content },
    ]);
    const [row, ...others] = demonstrationRows(tokenizer, [{ role: 'user', content: 'count' }], said);
    assert.equal(others.length, 0);
    const trained = row!.tokenIds.filter((_, i) => row!.lossMask[i] === 1);
    assert.equal(tokenizer.decode(trained, { skipSpecialTokens: false }), 'one<|im_end|>two<|im_end|>');
  });

  test('where the template forgets earlier turns, each has a row of its own', async () => {
    const { tokenizer } = createPreset('preset:reverse-text-0.2m', { seed: 0 });
    const rows = demonstrationRows(
      tokenizer,
      [{ role: 'user', content: 'ab' }],
      [
        { role: 'assistant', content: 'ba' },
        { role: 'user', content: 'cd' },
        { role: 'assistant', content: 'dc' },
      ],
    );
    const whole = rows.map(({ tokenIds }) => tokenizer.decode(tokenIds, { skipSpecialTokens: false }));
    assert.deepEqual(whole, ['<bos>ab<sep>ba<eos>', '<bos>cd<sep>dc<eos>']);
    assert.deepEqual(
      rows.map(({ lossMask }) => lossMask.join('')),
      ['0000111', '0000111'],
    );
  });
});

describe('an environment with tools', () => {
  const calls: unknown[] = [];
  const divide = tool({
    name: 'divide',
    description: 'Divides.',
    parameters: z.strictObject({ a: z.number().describe('what is divided'), b: z.number() }),
    run({ a, b }) {
      calls.push([a, b]);
      if (b === 0) throw new ToolError('b must not be 0');
      if (b === 13) throw new Error('the divider is broken');
      return String(a / b);
    },
  });
  const environment = toolEnvironment({
    name: 'dividing',
    dataset,
    evalDataset: dataset,
    rubric: rubric([{ name: 'calls', weight: 1, score: ({ turns }) => toolCallsOf(turns).length }]),
    tools: [divide],
    maxTurns: 3,
    demonstrate: ({ messages }) =>
      messages.at(-1)!.role === 'tool' ? messages.at(-1)!.content : callText('divide', { a: 10, b: 2 }),
  });
  const heardAfter = async (...texts: string[]) => {
    const record = await environment.rollout(example, scripted(...texts).policy);
    return { ...record, heard: record.turns.at(-1)!.heard };
  };

  test('the model is told names and types of the parameters', () => {
    assert.deepEqual(environment.tools, [
      {
        type: 'function',
        function: {
          name: 'divide',
          description: 'Divides.',
          parameters: {
            type: 'object',
            properties: { a: { type: 'number', description: 'what is divided' }, b: { type: 'number' } },
            required: ['a', 'b'],
            additionalProperties: false,
          },
        },
      },
    ]);
  });

  test('what tools answer goes back in the order of the calls, and a turn without a call is the answer', async () => {
    const two = `${callText('divide', { a: 10, b: 2 })}\n${callText('divide', { a: 9, b: 3 })}`;
    const { turns, heard, outcome } = await heardAfter(two, '5 and 3');
    assert.deepEqual([turns.length, outcome], [2, 'ok']);
    assert.deepEqual(heard, [
      { role: 'tool', content: '5' },
      { role: 'tool', content: '3' },
    ]);
  });

  test('a tool that does not exist, wrong arguments and broken JSON are told to the model, who may try again', async () => {
    const messageAfter = async (text: string) => (await heardAfter(text, 'never mind')).heard![0]!.content;
    assert.equal(
      await messageAfter(callText('multiply', {})),
      'Error: there is no tool "multiply". Those that exist: divide.',
    );
    assert.match(
      await messageAfter(callText('divide', { a: '1', c: 2 })),
      /divide was called with wrong arguments[\s\S]*expected number/,
    );
    assert.match(await messageAfter('<tool_call>{"name": divide}</tool_call>'), /this was no tool call/);
    assert.equal(await messageAfter(callText('divide', { a: 1, b: 0 })), 'Error: b must not be 0');
  });

  test('a tool that fails by itself is infrastructure: the rollout rejects', async () => {
    await assert.rejects(heardAfter(callText('divide', { a: 1, b: 13 })), /the divider is broken/);
  });

  test('calls in the last turn are not made, and scoring a stored rollout makes none', async () => {
    const call = callText('divide', { a: 4, b: 2 });
    calls.length = 0;
    const record = await environment.rollout(example, scripted(call, call, call).policy);
    assert.deepEqual([record.turns.length, calls.length], [3, 2]);
    assert.equal((await scored(environment, record)).reward, 3);
    assert.equal(calls.length, 2);
  });

  test('a demonstration calls the tools', async () => {
    const said = (await environment.demonstrate!(example, Math.random)) as readonly ChatMessage[];
    assert.deepEqual(
      said.map(({ role }) => role),
      ['assistant', 'tool', 'assistant'],
    );
    assert.equal(said.at(-1)!.content, '5');
  });
});

describe('a conversation, as it is trained', () => {
  const { tokenizer } = createPreset('preset:chars-0.4m', { seed: 0 });
  /** Samples these texts, each with the token that ends a turn. */
  const speaking = (...texts: string[]) => {
    const inference: Pick<Inference, 'sample'> = {
      sample() {
        const tokenIds = tokenizer.encode(`${texts.shift()}<eos>`);
        return Promise.resolve({ tokenIds, logprobs: tokenIds.map(() => -1), finishReason: 'stop' });
      },
    };
    const served = { version: { step: 0 } } as ServedPolicy;
    return samplePolicy({ inference, tokenizer, served, sampling }, () => 0);
  };
  const sampling = { maxTokens: 100, temperature: 1, stop: [] } as unknown as RunSpec['sampling'];
  const rowsOf = async (environment: Environment, ...texts: string[]) => {
    const { turns, outcome } = await environment.rollout(example, speaking(...texts));
    const rollouts = [1, 0].map((reward, index) => ({
      group: 1,
      index,
      exampleId: 0,
      turns,
      outcome: outcome as 'ok',
      reward,
      metrics: {},
    }));
    const lease = { ordinal: 1, environment: 'e', exampleId: 0, epoch: 0, policyStep: 0 };
    const { samples } = packSamples([{ ...lease, rollouts }], { advantage: 'std_normalized' });
    return { turns, samples: samples };
  };
  const spans = ({ tokenIds, lossMask }: { tokenIds: readonly number[]; lossMask: readonly number[] }) =>
    tokenizer.decode(
      tokenIds.filter((_, i) => lossMask[i] === 1),
      { skipSpecialTokens: false },
    );

  test('turns that continue from one another are one row, where what was said counts and what was heard does not', async () => {
    const { samples } = await rowsOf(guessing(), '7', '3', '5');
    assert.equal(samples.length, 2, 'one row for each of two rollouts');
    assert.equal(spans(samples[0]!), '7<eos>3<eos>5<eos>');
    assert.equal(
      tokenizer.decode(samples[0]!.tokenIds, { skipSpecialTokens: false }),
      '<bos>higher or lower?<sep>7<eos><bos>lower<sep>3<eos><bos>higher<sep>5<eos>',
    );
  });

  test('calls of tools are read from what was said, and trained as they were written', async () => {
    const double = tool({
      name: 'double',
      description: 'Twice as much.',
      parameters: z.strictObject({ n: z.number() }),
      run: ({ n }) => String(2 * n),
    });
    const options = { name: 'doubling', dataset, evalDataset: dataset, rubric: rubric([]), maxTurns: 2 };
    const call = '<tool_call>{"name":"double", "arguments": {"n": 4}}</tool_call>';
    const { turns, samples } = await rowsOf(toolEnvironment({ ...options, tools: [double] }), call, 'it is 8');
    assert.deepEqual(turns[0]!.toolCalls, [{ name: 'double', arguments: '{"n": 4}' }]);
    assert.deepEqual(turns[1]!.heard, [{ role: 'tool', content: '8' }]);
    assert.equal(samples.length, 2);
    assert.equal(spans(samples[0]!), `${call}<eos>it is 8<eos>`);
  });
});
