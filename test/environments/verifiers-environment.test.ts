/** A verifiers environment over a bridge that is a few lines of TypeScript: what crosses the pipe, and what becomes of it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { whyNoDemonstrations } from '../../backends/environments/demonstrations.ts';
import { createEnvironments } from '../../backends/environments/index.ts';
import { scoreGroup } from '../../backends/environments/score-group.ts';
import { scriptedPolicy } from '../../backends/environments/scripted.ts';
import type { Environment, Policy, RolloutPlace } from '../../backends/environments/types.ts';
import { ChildRefused } from '../../backends/environments/verifiers/child.ts';
import { loadRequest } from '../../backends/environments/verifiers/load-request.ts';
import type { RolloutRequest, SampledTurn } from '../../backends/environments/verifiers/protocol.ts';
import { playRollout } from '../../play/play-rollout.ts';
import type { PlayedPolicy } from '../../play/policy/sample-policy.ts';
import { RatchetError } from '../../core/errors.ts';
import { partsOf, requireText } from '../../core/rl/rollout/message-parts.ts';
import { environmentOf, FakeBridge, prompt } from './fake-bridge.ts';
import type { EnvironmentSpec } from '../../config/run-spec.ts';
import type { ChatMessage, Rollout, Turn } from '../../core/rl/rollout/rollout.ts';
import { settleRollout } from '../../core/rl/rollout/settle-rollout.ts';
import { defaultTrajectories } from '../../core/rl/rollout/trajectories.ts';

/** Remembers what the model was given. */
function listening(say: string[]): Policy & { readonly heard: (readonly ChatMessage[])[] } {
  const policy = scriptedPolicy((_, turn) => say[turn] ?? '');
  const heard: (readonly ChatMessage[])[] = [];
  return { heard, sample: (messages, options) => (heard.push(messages), policy.sample(messages, options)) };
}

test('examples are read by position, and a rollout begins with the line that verifiers wrote', async (t) => {
  let input: unknown;
  const bridge = new FakeBridge({
    async play(say, request) {
      ({ input } = request);
      await say(prompt);
      return {};
    },
  });
  const environment = await environmentOf(t, bridge);
  assert.equal(environment.dataset.length, 3);
  const example = environment.dataset.at(1);
  assert.deepEqual(example, { id: 1, prompt, answer: 'a1', info: { n: 1.5 } });
  assert.throws(() => environment.dataset.at(3), RangeError);
  await environment.rollout(example, listening(['ab']));
  assert.match(String(input), /^\{.*"example_id":1,.*\}$/);
});

test('a rollout whose time is over is dropped by its deadline, or keeps the turns that Python heard', async (t) => {
  const asked: RolloutRequest[] = [];
  const bridge = new FakeBridge({
    async play(say, request) {
      asked.push(request);
      await say(prompt);
      await say(prompt);
      if (request.truncate_s !== undefined) return { outcome: 'truncated', timed_out: true, heard_turns: 1 };
      const cause = new ChildRefused('rollout', { type: 'Deadline', message: 'late', retryable: false, traceback: '' });
      throw new RatchetError('EnvironmentUnavailable', 'too late', { cause });
    },
  });
  const environment = await environmentOf(t, bridge);
  const place = { group: 'a', index: 0, size: 1, dataset: 'dataset', signal: new AbortController().signal } as const;
  const play = (fate: 'drop' | 'truncate') =>
    environment.rollout(environment.dataset.at(0), listening(['ab', 'cd']), {
      ...place,
      timeLimit: { seconds: 3, fate },
    });
  const dropped = await play('drop');
  assert.deepEqual([dropped.outcome, dropped.isTimedOut], ['timeout', undefined]);
  assert.match(dropped.error ?? '', /Not finished after 3 s/);
  const kept = await play('truncate');
  assert.deepEqual([kept.outcome, kept.isTimedOut, kept.turns.map(({ text }) => text)], ['truncated', true, ['ab']]);
  assert.deepEqual(
    asked.map((request) => [request.truncate_s, request.deadline_s]),
    [
      [undefined, 3],
      [3, 16],
    ],
  );
});

test('agents of an episode have conversations of their own, and their turns say whose they are', async (t) => {
  const asks = (content: string) => [{ role: 'user', content }];
  const judgedAs = (trace: string, agent: string, reward: number, trained = true) => {
    const metrics = {};
    return { trace, agent, trained, truncated: trace === 'b', reward, metrics };
  };
  const bridge = new FakeBridge({
    async play(say) {
      await say(prompt, undefined, 'given up');
      const first = await say(prompt, undefined, 'a');
      await say(asks('solve'), undefined, 'b');
      const assistant = { role: 'assistant', content: first.content };
      await say([...prompt, assistant, ...asks('go on')], undefined, 'a');
      await say(asks('judge'), undefined, 'c');
      const traces = [judgedAs('a', 'white', 1), judgedAs('b', 'black', 0.5), judgedAs('c', 'judge', 0, false)];
      return { judged: { reward: 0.75, metrics: { 'white/reward': 1 }, traces } };
    },
  });
  const environment = await environmentOf(t, bridge, { scoring: 'in_place', agents: ['white', 'black', 'judge'] });
  assert.match(environment.warnings!.join(), /the policy plays white, black, judge/);
  const played = await environment.rollout(environment.dataset.at(0), listening(['x', 'one', 'two', 'three', 'four']));
  assert.deepEqual(
    played.turns.map(({ text, trace, heard }) => [text, trace, heard?.map(({ content }) => content)]),
    [
      ['one', 0, undefined],
      ['two', 1, ['solve']],
      ['three', 0, ['go on']],
      ['four', 2, ['judge']],
    ],
  );
  const rollout: Rollout = { group: 1, index: 0, exampleId: 0, ...played };
  const [scored] = await scoreGroup(environment, environment.dataset.at(0), [rollout], { dataset: 'dataset' });
  assert.deepEqual(
    [scored!.reward, scored!.traces],
    [
      0.75,
      [
        { agent: 'white', isTrained: true, reward: 1, metrics: {} },
        { agent: 'black', isTrained: true, isTruncated: true, reward: 0.5, metrics: {} },
        { agent: 'judge', isTrained: false, reward: 0, metrics: {} },
      ],
    ],
  );
  const settings = { ...defaultTrajectories, zeroTruncated: true, rolloutFilters: { pre: [], post: [] } };
  const sampled = played.turns.map((turn) => ({ ...turn, promptTokenIds: [1], tokenIds: [2], logprobs: [-1] }));
  const settled = settleRollout({ ...scored!, turns: sampled }, settings, 100);
  assert.deepEqual([settled.reward, settled.traces!.map(({ reward }) => reward)], [0.5, [1, 0, 0]]);
});

test('a rollout under another system prompt and other descriptions of tools: Python is told the one, the model the others', async (t) => {
  const tools = ['look', 'take'].map((name) => ({
    type: 'function' as const,
    function: { name, description: `to ${name}`, parameters: { type: 'object' } },
  }));
  let asked: RolloutRequest | undefined;
  const bridge = new FakeBridge({
    async play(say, request) {
      asked = request;
      await say([{ role: 'system', content: String(request.system_prompt) }, prompt[1]], tools);
      return { row: { example_id: 1 } };
    },
  });
  const environment = await environmentOf(t, bridge, { tools });
  const heard: unknown[] = [];
  const script = scriptedPolicy(() => 'ab');
  const policy: PlayedPolicy = {
    turns: [],
    failure: undefined,
    sample(messages, options) {
      heard.push([messages[0]!.content, options?.tools?.map((tool) => tool.function)]);
      return script.sample(messages, options);
    },
  };
  const entry = { id: 'toy', name: 'toy', args: {} };
  await playRollout({
    environments: createEnvironments(() => Promise.resolve(environment)),
    entry,
    dataset: 'dataset',
    place: { group: 0, index: 0, exampleId: 1 },
    together: { group: 'a', size: 1 },
    systemPrompt: 'Be kind.',
    toolDescriptions: { look: 'Look before you take.' },
    signal: new AbortController().signal,
    openPolicy: () => policy,
  });
  assert.equal(asked?.system_prompt, 'Be kind.');
  const [look, take] = tools.map((tool) => tool.function);
  assert.deepEqual(heard, [['Be kind.', [{ ...look, description: 'Look before you take.' }, take]]]);
});

test('what the model said goes back to it as it wrote it, though Python has calls of tools apart', async (t) => {
  const call = '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>';
  const tools = [{ type: 'function', function: { name: 'look', description: '', parameters: {} } }];
  let told: SampledTurn | undefined;
  const bridge = new FakeBridge({
    async play(say) {
      told = await say(prompt, tools);
      const said = { role: 'assistant', content: told.content, tool_calls: told.tool_calls };
      const answer = { role: 'tool', content: 'nothing', tool_call_id: told.tool_calls[0]!.id };
      await say([...prompt, said, answer], tools);
      return { row: { example_id: 0 } };
    },
  });
  const environment = await environmentOf(t, bridge);
  const policy = listening([`Let me look.\n${call}`, 'Nothing.']);
  const { turns, outcome, record } = await environment.rollout(environment.dataset.at(0), policy);
  assert.deepEqual(
    [told!.content, told!.finish_reason, told!.tool_calls],
    ['Let me look.\n', 'tool_calls', [{ id: 'call_0_0', name: 'look', arguments: '{"at": "x"}' }]],
  );
  const heard = [{ role: 'tool', content: 'nothing', tool_call_id: 'call_0_0' }];
  assert.deepEqual(policy.heard[1], [...prompt, { role: 'assistant', content: `Let me look.\n${call}` }, ...heard]);
  assert.deepEqual(
    turns.map((turn) => turn.heard),
    [undefined, heard],
  );
  assert.deepEqual([outcome, record], ['ok', { example_id: 0 }]);
});

test('what the environment changed in a message stays changed, and a message of its own is no turn', async (t) => {
  const bridge = new FakeBridge({
    async play(say) {
      await say(prompt);
      await say([
        ...prompt,
        { role: 'assistant', content: 'shortened' },
        { role: 'user', content: [{ type: 'text', text: 'Go on.' }] },
      ]);
      return {};
    },
  });
  const environment = await environmentOf(t, bridge);
  const policy = listening(['<think>long</think>ab', 'cd']);
  const { turns } = await environment.rollout(environment.dataset.at(0), policy);
  const added = [
    { role: 'assistant', content: 'shortened' },
    { role: 'user', content: 'Go on.' },
  ];
  assert.deepEqual(policy.heard[1], [...prompt, ...added]);
  assert.deepEqual(turns[1]!.heard, added);
});

const place = (over: Partial<RolloutPlace> = {}): RolloutPlace => ({
  group: 'g',
  index: 0,
  size: 1,
  dataset: 'dataset',
  signal: new AbortController().signal,
  ...over,
});

test('who starts a run is told what this environment does otherwise than they may think', async (t) => {
  const bridge = new FakeBridge({ play: () => Promise.resolve({}) });
  const environment = await environmentOf(t, bridge, {
    scoring: 'in_place',
    scoring_why: 'it has a sandbox',
    sampling: { stop: ['x'] },
  });
  const [sampling, scoring, heldOut, ...more] = environment.warnings!;
  assert.match(sampling!, /sets stop .*no effect/);
  assert.match(scoring!, /in place.*\(it has a sandbox\): rollouts/);
  assert.match(heldOut!, /no held-out examples/);
  assert.deepEqual(more, []);
});

test('arguments of a v0 environment are its load_environment’s; of a v1 one the taskset’s, with an agent on this machine', () => {
  const python = { module: 'toy', folder: '/venv', verifiers: '0.3.1', version: '1' };
  const request = (api: 'v0' | 'v1', args: EnvironmentSpec['args']) =>
    loadRequest('toy-1', { args, python: { ...python, api } });
  const common = { env: 'toy-1', env_id: 'toy' };
  assert.deepEqual(request('v0', { n: 3, agent: 'x' }), { ...common, api: 'v0', args: { n: 3, agent: 'x' } });
  const runtime = { type: 'subprocess' };
  assert.deepEqual(request('v1', { n: 3 }), {
    ...common,
    api: 'v1',
    args: { n: 3 },
    config: { taskset: {}, agent: {}, usual_agent: { harness: { id: 'null' }, runtime } },
  });
  const docker = { runtime: { type: 'docker' } };
  assert.deepEqual(request('v1', { taskset: { n: 4 }, agent: docker }).config, {
    taskset: { n: 4 },
    agent: docker,
    usual_agent: { harness: { id: 'null' }, runtime },
  });
});

test('a warm-up on environments that demonstrate nothing is refused, unless it has rows of its own', async (t) => {
  const environment = await environmentOf(t, new FakeBridge({ play: () => Promise.resolve({}) }));
  const sft = { data: null, steps: 10, batchSize: 4, learningRate: 1e-3, warmupSteps: 0, minRatio: 0 };
  assert.match(whyNoDemonstrations({ sft }, [environment])!.received, /none of toy/);
  const data = { path: 'rows.jsonl', sha256: '00' };
  assert.equal(whyNoDemonstrations({ sft: { ...sft, data } }, [environment]), null);
  assert.equal(whyNoDemonstrations({ sft }, [environment, { name: 'words', demonstrate: () => 'ab' }]), null);
  assert.equal(whyNoDemonstrations({ sft: null }, [environment]), null);
});

test('rows in the store are scored a group at once, those that failed left out', async (t) => {
  const bridge = new FakeBridge({
    play: () => Promise.resolve({}),
    score: (rollouts) => rollouts.map((_, i) => i),
  });
  const environment = await environmentOf(t, bridge);
  const rollout = (index: number, more: Partial<Rollout> = {}): Rollout => {
    return { group: 1, index, exampleId: 0, turns: [], outcome: 'ok', record: { index }, ...more };
  };
  const failed = rollout(1, { outcome: 'infra_failure', error: 'gone' });
  const group = [rollout(0), failed, rollout(2)];
  const scored = await scoreGroup(environment, environment.dataset.at(0), group, { dataset: 'dataset' });
  assert.deepEqual(bridge.scored, [[{ row: { index: 0 } }, { row: { index: 2 } }]]);
  assert.deepEqual(
    scored.map(({ outcome, reward, metrics }) => [outcome, reward, metrics]),
    [
      ['ok', 0, { right: 0 }],
      ['infra_failure', null, {}],
      ['ok', 1, { right: 1 }],
    ],
  );
});

test('a reward that is no number is asked for again, and is no reward in the end', async (t) => {
  const bridge = new FakeBridge({ play: () => Promise.resolve({}), score: () => [Number.NaN] });
  const environment = await environmentOf(t, bridge);
  const rollout: Rollout = { group: 1, index: 0, exampleId: 0, turns: [], outcome: 'ok', record: {} };
  const [scored] = await scoreGroup(environment, environment.dataset.at(0), [rollout], { dataset: 'dataset' });
  assert.equal(bridge.scored.length, 3);
  assert.equal(scored!.outcome, 'judge_failure');
  assert.match(scored!.error!, /expected a finite number, received NaN/);
});

test('a group that needs its states is scored when its last rollout is there, and its states are let go', async (t) => {
  const bridge = new FakeBridge({
    play: async (say) => (await say(prompt), {}),
    score: (rollouts) => rollouts.map((_, i) => rollouts.length * 10 + i),
  });
  const environment = await environmentOf(t, bridge, { scoring: 'in_place', requires_group: true });
  const example = environment.dataset.at(0);
  const play = (index: number) => environment.rollout(example, listening(['ab']), place({ index, size: 3 }));
  const first = [play(2), play(0)];
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(bridge.scored.length, 0);
  const [third, one, two] = await Promise.all([...first, play(1)]);
  assert.deepEqual(
    [one?.judged, two?.judged, third?.judged],
    [30, 31, 32].map((reward) => ({ reward, metrics: { right: reward } })),
  );
  assert.equal(bridge.live.size, 0);
});

test('a rollout that does not come keeps its group from nothing: the others are scored without it', async (t) => {
  const bridge = new FakeBridge({ play: async (say) => (await say(prompt), {}) });
  const environment = await environmentOf(t, bridge, { scoring: 'in_place', requires_group: true });
  const waiting = environment.rollout(environment.dataset.at(0), listening(['ab']), place({ size: 2 }));
  environment.withdraw!(place({ index: 1, size: 2 }));
  assert.deepEqual((await waiting).judged, { reward: 1, metrics: { right: 1 } });
});

test('when no more of its group is begun, what waits for it is given up without a verdict on the environment', async (t) => {
  const bridge = new FakeBridge({ play: async (say) => (await say(prompt), {}) });
  const environment = await environmentOf(t, bridge, { scoring: 'in_place', requires_group: true });
  const broken = new AbortController();
  const over = { size: 2, brokenOff: broken.signal };
  const waiting = environment.rollout(environment.dataset.at(0), listening(['ab']), place(over));
  setTimeout(() => broken.abort(), 10);
  await assert.rejects(waiting, (error) => error instanceof RatchetError && error.isRetryable);
  assert.equal(bridge.live.size, 0);
});

/** Through the activity's own generation: retries, and the kinds of failures. */
function played(
  environment: Environment,
  policy: Policy,
  signal = new AbortController().signal,
  more: Partial<Parameters<typeof playRollout>[0]> = {},
) {
  const turns: Turn[] = [];
  let failure: unknown;
  const watched: PlayedPolicy = {
    turns,
    get failure() {
      return failure;
    },
    async sample(messages, options) {
      try {
        failure = undefined;
        const turn = await policy.sample(messages, options);
        turns.push(turn);
        return turn;
      } catch (error) {
        failure = error;
        throw error;
      }
    },
  };
  return playRollout({
    environments: createEnvironments(() => Promise.resolve({ ...environment })),
    entry: { id: 'toy', args: {} },
    dataset: 'dataset',
    place: { group: 1, index: 0, exampleId: 0 },
    together: { group: 'g', size: 1 },
    openPolicy: () => watched,
    signal,
    ...more,
  });
}

test('a child that dies is no reason to stop: its rollout is played again', async (t) => {
  let deaths = 0;
  const bridge = new FakeBridge({
    async play(say) {
      await say(prompt);
      if (deaths++ < 2) throw new RatchetError('ServerUnavailable', 'The Python child was killed by SIGKILL.');
      return {};
    },
  });
  const rollout = await played(await environmentOf(t, bridge), listening(['ab', 'ab', 'ab']));
  assert.deepEqual([rollout.outcome, deaths], ['ok', 3]);
  assert.deepEqual(rollout.playedAgain, { count: 2, first: 'Error: The Python child was killed by SIGKILL.' });
});

const emptyReply = {
  outcome: 'policy_failure' as const,
  error: { type: 'EmptyModelResponseError', message: 'nothing in it', retryable: false, traceback: '' },
};

for (const scoring of ['stored', 'in_place'] as const) {
  test(`an evaluation asks again where a reply is empty (scored ${scoring}), as vf-eval does, and keeps the last one`, async (t) => {
    let asked = 0;
    const bridge = new FakeBridge({ play: async (say) => (await say(prompt), (asked += 1), emptyReply) });
    const environment = await environmentOf(t, bridge, { scoring, requires_group: scoring === 'in_place' });
    const rollout = await played(environment, listening(['', '', '']), undefined, {
      asksEmptyAgain: true,
      attemptsMax: 3,
    });
    assert.deepEqual([asked, rollout.outcome], [3, 'policy_failure']);
    assert.deepEqual(rollout.playedAgain, { count: 2, first: 'the reply was empty' });
    assert.equal(bridge.live.size, 0);
  });
}

test('in training an empty reply is the policy’s own, and stays', async (t) => {
  let asked = 0;
  const bridge = new FakeBridge({ play: async (say) => (await say(prompt), (asked += 1), emptyReply) });
  const rollout = await played(await environmentOf(t, bridge), listening(['']));
  assert.deepEqual([asked, rollout.outcome, rollout.playedAgain], [1, 'policy_failure', undefined]);
});

test('a child that keeps dying makes the rollout fail, never a reward of 0', async (t) => {
  const bridge = new FakeBridge({
    play: () => Promise.reject(new RatchetError('ServerUnavailable', 'The Python child ended: exit status 1')),
  });
  const rollout = await played(await environmentOf(t, bridge), listening([]));
  assert.equal(rollout.outcome, 'infra_failure');
  assert.match(rollout.error!, /exit status 1/);
});

test('an environment that failed says so with its traceback, and its row is kept', async (t) => {
  const error = { type: 'KeyError', message: "'x'", retryable: false, traceback: 'Traceback …\n  toy.py:7\nKeyError' };
  const bridge = new FakeBridge({
    play: async (say) => (await say(prompt), { outcome: 'infra_failure', error, row: { example_id: 0 } }),
  });
  const rollout = await played(await environmentOf(t, bridge), listening(['ab', 'ab', 'ab']));
  assert.deepEqual([rollout.outcome, rollout.record], ['infra_failure', { example_id: 0 }]);
  assert.match(rollout.error!, /toy\.py:7/);
});

test('what the inference server cannot do is told as that, whatever the environment makes of it', async (t) => {
  const away = new RatchetError('InferenceUnavailable', 'nobody answers');
  const bridge = new FakeBridge({
    async play(say) {
      await say(prompt).catch(() => undefined);
      return { outcome: 'ok' };
    },
  });
  const environment = await environmentOf(t, bridge);
  await assert.rejects(played(environment, { sample: () => Promise.reject(away) }), away);
});

test('a prompt that outgrows the model ends a rollout that had begun as truncated, with its row', async (t) => {
  const long = new RatchetError('PromptTooLong', 'too long');
  const bridge = new FakeBridge({
    async play(say) {
      await say(prompt);
      await say([...prompt, { role: 'user', content: 'more' }]).catch(() => undefined);
      return { outcome: 'truncated', row: { is_truncated: true } };
    },
  });
  let asked = 0;
  const policy = scriptedPolicy(() => 'ab');
  const environment = await environmentOf(t, bridge);
  const rollout = await played(environment, {
    sample: (messages) => (asked++ === 0 ? policy.sample(messages) : Promise.reject(long)),
  });
  assert.deepEqual([rollout.outcome, rollout.record, rollout.turns.length], ['truncated', { is_truncated: true }, 1]);
});

test('a picture comes to the policy with its message; a policy of text refuses it, whatever the environment makes of that', async (t) => {
  const part = { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } };
  const bridge = new FakeBridge({
    async play(say) {
      await say([{ role: 'user', content: [part] }]).catch(() => undefined);
      return {};
    },
  });
  const environment = await environmentOf(t, bridge);
  const heard: unknown[] = [];
  const policy = scriptedPolicy(() => 'ab');
  const sees: Policy = {
    sample: (messages) => {
      heard.push(messages.map(partsOf));
      return policy.sample(messages);
    },
  };
  await environment.rollout(environment.dataset.at(0), sees);
  assert.deepEqual(heard, [[[part]]]);
  const readsText: Policy = {
    sample: async (messages) => {
      requireText(messages);
      return policy.sample(messages);
    },
  };
  await assert.rejects(environment.rollout(environment.dataset.at(0), readsText), /"image_url", and this model is asked by tokens of text/); // prettier-ignore
});
