import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { describe, test } from 'node:test';
import { promisify } from 'node:util';
import { RatchetError } from '../../core/errors.ts';
import { bridgesOf, loaded, play, text, type Loaded, type Says, type TestBridge } from './python-bridge.ts';
import { installPython } from '../python-here.ts';
import type { Score } from '../../backends/environments/verifiers/protocol.ts';

const installed = await installPython('verifiers-v1-requirements.txt');
const { shared } = bridgesOf(installed);

const agent = { harness: { id: 'null' }, runtime: { type: 'subprocess' } };
const toy = async (): Promise<Loaded & { readonly bridge: TestBridge }> => {
  const bridge = await shared();
  return { bridge, ...(await loaded(bridge, 'toy-v1', {}, { api: 'v1', config: { agent } })) };
};

describe('an environment of the v1 API', { skip: installed.why }, () => {
  test('says what it is', async () => {
    const { bridge, about, inputs } = await toy();
    assert.deepEqual((await bridge.about()).apis, ['v1']);
    assert.deepEqual([about.api, about.class, about.scoring], ['v1', 'SingleAgentEnv', 'in_place']);
    assert.deepEqual(
      [about.reward_names, about.weights],
      [
        ['exact', 'characters'],
        [1, 0],
      ],
    );
    assert.equal(inputs.length, 16);
    assert.deepEqual((JSON.parse(inputs[1]!) as { prompt: unknown }).prompt, [
      { role: 'system', content: 'Answer within <answer> tags.' },
      { role: 'user', content: 'Spell word1 backwards.' },
    ]);
  });

  test('of endless tasks is its first ones, or as many as are asked for, and says so', async () => {
    const bridge = await shared();
    const endless = await loaded(bridge, 'toy-v1-endless', {}, { api: 'v1', config: { agent } });
    assert.equal(endless.inputs.length, 2_000);
    const { cut_off: isCutOff } = await bridge.inputs({ env: endless.env, split: 'eval' });
    assert.equal(isCutOff, true);
    const select = { skip: 3, limit: 4 };
    const few = await loaded(bridge, 'toy-v1-endless', { first: 1 }, { api: 'v1', config: { agent, select } });
    assert.deepEqual(
      few.inputs.map((line) => (JSON.parse(line) as { answer: string }).answer),
      ['8', '10', '12', '14'],
    );
  });

  test('is ended with what it has where its time is over, and scored; an agent’s own limit goes before the rollout’s', async () => {
    const { bridge, env, inputs } = await toy();
    const silent: Says = ({ signal }) =>
      new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason as Error)));
    const limits = { truncate_s: 1, deadline_s: 60 };
    const played = await play(bridge, env, inputs[0]!, silent, limits);
    assert.deepEqual([played.outcome, played.timed_out, played.heard_turns], ['truncated', true, 0]);
    assert.equal(played.judged && 'reward' in played.judged ? played.judged.reward : null, 0);
    const quick = await play(bridge, env, inputs[0]!, text('<answer>0drow</answer>'), {
      truncate_s: 60,
      deadline_s: 130,
    });
    assert.deepEqual([quick.outcome, quick.timed_out], ['ok', undefined]);
    const own = { api: 'v1', config: { agent: { ...agent, timeout: { rollout: 1 } } }, env: 'limited' } as const;
    const limited = await loaded(bridge, 'toy-v1', {}, own);
    const ended = await play(bridge, limited.env, inputs[0]!, silent);
    assert.deepEqual([ended.outcome, ended.timed_out], ['truncated', true]);
  });

  test('says which arguments it takes, also where one is misspelt', async () => {
    const { bridge, env } = await toy();
    const { arguments: declared, findings } = await bridge.check({ env });
    assert.deepEqual([declared, findings], [[{ name: 'n', default: '16', annotation: 'int' }], []]);
    await assert.rejects(loaded(bridge, 'toy-v1', { number: 3 }, { api: 'v1', config: { agent } }), (error: Error) => {
      assert.match(error.message, /toy_v1|toy-v1/);
      assert.match(error.message, /number: Extra inputs are not permitted.*its taskset takes n = 16; correct the args/);
      assert.doesNotMatch(error.message, /pydantic\.dev/);
      return true;
    });
  });

  test('is played with our turns, without a process for each rollout, and scored', async () => {
    const { bridge, env, inputs } = await toy();
    let asked: unknown = null;
    const children = new Set<string>();
    const says: Says = async ({ messages, sampling }) => {
      asked = { messages, sampling };
      const listed = await promisify(execFile)('ps', ['-o', 'args=', '--ppid', String(bridge.pids[0])]).catch(
        () => null,
      );
      if (listed) children.add(listed.stdout.trim());
      return { content: '<answer>1drow</answer>' };
    };
    const played = await play(bridge, env, inputs[1]!, says, { score: true });
    assert.deepEqual(asked, {
      messages: [
        { role: 'system', content: 'Answer within <answer> tags.' },
        { role: 'user', content: 'Spell word1 backwards.' },
      ],
      sampling: { max_tokens: 9 },
    });
    assert.deepEqual(
      [...children].filter((child) => child !== ''),
      [],
    );
    assert.equal(played.outcome, 'ok');
    assert.deepEqual(played.judged, { reward: 1, metrics: { exact: 1, characters: 22 } });
    assert.deepEqual(played.row['completion'], [{ role: 'assistant', content: '<answer>1drow</answer>' }]);
    assert.deepEqual([played.row['reward'], played.row['example_id']], [1, 1]);
  });

  test('plays many at once', async () => {
    const { bridge, env, inputs } = await toy();
    const played = await Promise.all(
      inputs.map((input, i) => play(bridge, env, input, text(`<answer>${i}drow</answer>`), { score: true })),
    );
    const rewards = played.map(({ judged }) => (judged as { reward: number }).reward);
    assert.deepEqual(
      rewards,
      inputs.map((_, i) => (i < 10 || i === 11 ? 1 : 0)),
    );
  });

  test('has no reward where its scoring throws', async () => {
    const { bridge, env, inputs } = await toy();
    const played = await play(bridge, env, inputs[0]!, text('stumble'), { score: true });
    assert.deepEqual([played.outcome, played.row['reward']], ['ok', null]);
    assert.match((played.judged as { error: { message: string } }).error.message, /no answer in it/);
  });

  test('says nothing about the policy where a turn could not be sampled, and stops at a prompt that is too long', async () => {
    const { bridge, env, inputs } = await toy();
    const fails =
      (code: 'InferenceUnavailable' | 'PromptTooLong'): Says =>
      () =>
        Promise.reject(new RatchetError(code, 'from the test'));
    const down = await play(bridge, env, inputs[0]!, fails('InferenceUnavailable'), { score: true });
    assert.deepEqual([down.outcome, down.error?.type], ['infra_failure', 'ProviderError']);
    const tooLong = await play(bridge, env, inputs[0]!, fails('PromptTooLong'), { score: true });
    assert.equal(tooLong.outcome, 'overlong_prompt');
  });

  test('is cancelled while a turn is being sampled', async () => {
    const { bridge, env, inputs } = await toy();
    const cancel = new AbortController();
    const says: Says = () => {
      cancel.abort(new Error('enough'));
      return new Promise(() => {});
    };
    await assert.rejects(play(bridge, env, inputs[0]!, says, { signal: cancel.signal }), /enough/);
  });

  test('that is not there is refused by name', async () => {
    const bridge = await shared();
    await assert.rejects(bridge.load({ env: 'x', env_id: 'toy-v2', api: 'v1', config: { agent } }), {
      code: 'EnvironmentUnknown',
      message: /no module toy_v2\. There is toy_v1/,
    });
  });

  test('calls the tools of its task’s servers, in this process as well', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy-v1-tools', {}, { api: 'v1', config: { agent } });
    assert.deepEqual((await bridge.check({ env })).tools, [
      { name: 'lookup_look_up', description: 'What is known of a word.', parameters: ['word'] },
    ]);
    const offered: unknown[] = [];
    const call = (id: string, name: string, args: string) => ({ id, name, arguments: args });
    const says: Says = ({ messages, tools }) => {
      offered.push(JSON.stringify(tools?.[0]).includes('lookup_look_up'));
      if (messages.length > 1) return { content: JSON.stringify(messages) };
      const calls = [
        call('a', 'lookup_look_up', '{"word":"stone"}'),
        call('b', 'lookup_look_up', '{'),
        call('c', 'no_such', '{}'),
      ];
      return { tool_calls: calls, finish_reason: 'tool_calls' };
    };
    const played = await play(bridge, env, inputs[0]!, says, { score: true });
    assert.deepEqual(offered, [true, true]);
    const { completion } = played.row as unknown as { completion: { role: string; content: string }[] };
    const said = completion.filter(({ role }) => role === 'tool').map(({ content }) => content);
    assert.equal(said[0], 'stone backwards is enots');
    assert.match(said[1] ?? '', /invalid JSON in tool arguments/);
    assert.equal(said[2], "error: unknown tool 'no_such'");
    assert.deepEqual([played.outcome, played.row['reward']], ['ok', 1]);
  });

  test('ends after the turns that a config allows, as truncated and with its reward', async () => {
    const bridge = await shared();
    const config = { agent: { ...agent, max_turns: 1 } };
    const request = { env: 'bounded', api: 'v1', config } as const;
    const { env, inputs } = await loaded(bridge, 'toy-v1-tools', {}, request);
    const says: Says = () => ({
      tool_calls: [{ id: 'a', name: 'lookup_look_up', arguments: '{"word":"x"}' }],
      finish_reason: 'tool_calls',
    });
    const played = await play(bridge, env, inputs[0]!, says, { score: true });
    assert.deepEqual(
      [played.outcome, played.row['stop_condition'], played.row['reward']],
      ['truncated', 'max_turns', 0],
    );
  });

  test('of one agent that has another name is played by it; whoever has a model of its own needs a client', async () => {
    const bridge = await shared();
    const seats = (config: Record<string, unknown>) =>
      loaded(bridge, 'toy-v1-seats', {}, { api: 'v1', config: { usual_agent: agent, ...config } });
    const keeper = { model: 'other', client: { type: 'eval', base_url: 'http://127.0.0.1:9/v1' } };
    await assert.rejects(seats({ episode: { keeper, guesser: keeper } }), /guesser, keeper has a client of its own/);
    const { env, inputs, about } = await seats({ episode: { keeper } });
    assert.deepEqual(about.agents, ['guesser']);
    const played = await play(bridge, env, inputs[0]!, text('7'), { score: true });
    assert.deepEqual([played.outcome, played.row['reward']], ['ok', 1]);
    await assert.rejects(
      seats({ episode: { keeper: { model: 'other' } } }),
      /keeper has a model of its own, and no client/,
    );
    await assert.rejects(seats({ episode: { keeper, dealer: {} } }), /dealer: Extra inputs are not permitted/);
  });

  test('of several agents that the policy plays says which of them asks, and judges each by itself', async () => {
    const bridge = await shared();
    const config = { usual_agent: agent, episode: { n: 4 } };
    const { env, inputs, about } = await loaded(bridge, 'toy-v1-proposals', {}, { api: 'v1', config });
    assert.deepEqual(about.agents, ['proposer', 'solver', 'judge']);
    const asked = new Map<string, string[]>();
    const says: Says = ({ messages, trace }) => {
      const said = messages.at(-1)!.content as string;
      asked.set(trace!, [...(asked.get(trace!) ?? []), said]);
      const content = said.startsWith('Propose') ? '7' : said.startsWith('Fair') ? 'yes' : asked.size === 5 ? '9' : '8';
      return { content };
    };
    const played = await play(bridge, env, inputs[0]!, says, { score: true });
    assert.equal(played.outcome, 'ok', played.error?.message);
    const judged = played.judged as Extract<Score, { readonly reward: number }>;
    assert.deepEqual(
      judged.traces!.map(({ agent: name, trained, reward }) => [name, trained, reward]),
      [
        ['proposer', true, 0.75],
        ['solver', true, 1],
        ['solver', true, 1],
        ['solver', true, 1],
        ['solver', true, 0],
        ['judge', false, 0],
      ],
    );
    assert.deepEqual(
      judged.traces!.map(({ trace }) => asked.get(trace)),
      [['Propose about 0.'], ['7 + 1?'], ['7 + 1?'], ['7 + 1?'], ['7 + 1?'], ['Fair: 7?']],
    );
    assert.equal(judged.reward, 0.75);
    assert.deepEqual(judged.metrics, {
      'proposer/reward': 0.75,
      'proposer/learnability': 0.75,
      'proposer/solve_rate': 0.75,
      'solver/reward': 0.75,
      'solver/correct': 0.75,
    });
    assert.deepEqual(played.row['completion'], [{ role: 'assistant', content: '7' }]);
  });

  test('of several agents has no rewards where its episode failed', async () => {
    const bridge = await shared();
    const config = { usual_agent: agent };
    const { env, inputs } = await loaded(bridge, 'toy-v1-proposals', {}, { api: 'v1', config });
    const played = await play(bridge, env, inputs[0]!, text('no number'), { score: true });
    assert.deepEqual([played.outcome, played.judged], ['infra_failure', null]);
    assert.match(played.error!.message, /no number was proposed/);
  });
});
