import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { describe, test } from 'node:test';
import type { TurnRequest } from '../../backends/environments/verifiers/protocol.ts';
import { bridgesOf, loaded, play, text, type Says, untimed } from './python-bridge.ts';
import { installPython } from '../python-here.ts';

const installed = await installPython('verifiers-v0-requirements.txt');
const { open, shared } = bridgesOf(installed);

describe('a verifiers environment in its child', { skip: installed.why }, () => {
  test('says what it is', async () => {
    const { about, inputs } = await loaded(await shared(), 'toy_single');
    assert.equal(about.class, 'SingleTurnEnv');
    assert.deepEqual(about.reward_names, ['exact', 'brevity', 'num_turns']);
    assert.deepEqual(about.weights, [1, 0.1, 0]);
    assert.deepEqual(about.sampling, { temperature: 0.5, extra_body: { top_k: 7 } });
    assert.deepEqual([about.scoring, about.is_single_turn, about.requires_group], ['stored', true, false]);
    assert.match(inputs[1]!, /"length":5\.0/);
    const { info, ...input } = JSON.parse(inputs[1]!) as Record<string, unknown>;
    assert.deepEqual(input['prompt'], [
      { role: 'system', content: 'Answer within <answer> tags.' },
      { role: 'user', content: 'Spell word1 backwards.' },
    ]);
    assert.deepEqual([input['example_id'], input['answer'], info], [1, '1drow', { length: 5 }]);
  });

  test('asks for its turn with its own sampling settings below those of the run, and is scored from its row', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_single');
    const wanted: TurnRequest[] = [];
    const says: Says = (request) => {
      wanted.push(request);
      return { content: '<answer>1drow</answer>' };
    };
    const played = await play(bridge, env, inputs[1]!, says, { sampling: { temperature: 1 } });
    assert.deepEqual(wanted[0]!.sampling, { n: 1, extra_body: { top_k: 7 }, temperature: 1 });
    assert.deepEqual(played.outcome, 'ok');
    assert.deepEqual(played.row['completion'], [{ role: 'assistant', content: '<answer>1drow</answer>' }]);
    assert.deepEqual([played.row['reward'], played.judged, played.scorable], [null, null, true]);
    const stored = JSON.parse(JSON.stringify(played.row)) as typeof played.row;
    const scores = await bridge.score({ env, rollouts: [{ row: stored }] });
    const brevity = 1 / 23;
    assert.deepEqual(scores.map(untimed), [
      { reward: 1 + 0.1 * brevity, metrics: { exact: 1, brevity, num_turns: 1 } },
    ]);
    const inPlace = await play(bridge, env, inputs[1]!, says, { score: true });
    assert.deepEqual(inPlace.judged, untimed(scores[0]));
    assert.equal(inPlace.row['reward'], 1 + 0.1 * brevity);
  });

  test('is played under another system prompt, or under none', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_single');
    const heard: unknown[] = [];
    const says: Says = ({ messages }) => {
      heard.push(messages.map(({ role, content }) => [role, content]));
      return { content: '<answer>1drow</answer>' };
    };
    const user = ['user', 'Spell word1 backwards.'];
    const played = await play(bridge, env, inputs[1]!, says, { system_prompt: 'Be brief.' });
    await play(bridge, env, inputs[1]!, says, { system_prompt: '' });
    assert.deepEqual(heard, [[['system', 'Be brief.'], user], [user]]);
    assert.deepEqual((played.row['prompt'] as unknown[])[0], { role: 'system', content: 'Be brief.' });
    const [score] = await bridge.score({ env, rollouts: [{ row: played.row }] });
    assert.ok(score !== undefined && 'reward' in score && score.reward > 1);
  });

  test('that rewards turns by themselves says what each got, scored from its row, in place or as a group', async () => {
    const bridge = await shared();
    for (const compares of [false, true]) {
      const { env, inputs } = await loaded(bridge, 'toy_steps', { compares });
      let turns = 0;
      const says: Says = () => ({ id: `turn_${turns}`, content: ['a', 'aaaa', 'aa'][turns++]! });
      const played = await play(bridge, env, inputs[0]!, says);
      const row = JSON.parse(JSON.stringify(played.row)) as typeof played.row;
      turns = 0;
      const live = await play(bridge, env, inputs[0]!, says, { keep: true });
      const scores = await bridge.score({ env, rollouts: compares ? [{ live: live.live! }] : [{ row }] });
      for (const score of scores) {
        assert.ok('reward' in score, JSON.stringify(score));
        assert.deepEqual([score.reward, score.turn_rewards], [3.25, [1, 0, 2]], `compares ${compares}`);
      }
      await bridge.release({ env, live: [live.live!] });
    }
    const { env, inputs } = await loaded(bridge, 'toy_multi');
    const { row } = await play(bridge, env, inputs[2]!, text('guess'));
    const [plain] = await bridge.score({ env, rollouts: [{ row }] });
    assert.ok(plain && 'reward' in plain && plain.turn_rewards === undefined);
  });

  test('of several turns has the same state again when its row is scored', async () => {
    const bridge = await shared();
    const { env, about, inputs } = await loaded(bridge, 'toy_multi');
    assert.deepEqual([about.scoring, about.is_single_turn, about.max_turns], ['stored', false, 6]);
    let turns = 0;
    const says: Says = ({ messages }) => ({ content: `guess ${(turns += 1)} of ${messages.length}` });
    const played = await play(bridge, env, inputs[2]!, says);
    assert.deepEqual(
      (played.row['completion'] as { content: string }[]).map(({ content }) => content),
      ['guess 1 of 1', 'Try 1: no.', 'guess 2 of 3', 'Try 2: no.', 'guess 3 of 5', 'Enough.'],
    );
    const live = await play(bridge, env, inputs[2]!, says, { keep: true });
    const [fromRow, fromState] = [
      ...(await bridge.score({ env, rollouts: [{ row: played.row }] })),
      ...(await bridge.score({ env, rollouts: [{ live: live.live! }] })),
    ];
    const metrics = { solved_reward: 1, tries: 3, turns: 3, heard: 58, spoken: 9, num_turns: 3 };
    assert.deepEqual(untimed(fromRow), { reward: 1, metrics });
    assert.deepEqual(untimed(fromState), untimed(fromRow));
    await bridge.release({ env, live: [live.live!] });
    await assert.rejects(bridge.score({ env, rollouts: [{ live: live.live! }] }), { code: 'EnvironmentUnavailable' });
  });

  test('whose state no row can keep is scored when it ends, and its row says how', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_multi', { unkept: true });
    const played = await play(bridge, env, inputs[0]!, text('guess'));
    assert.match(played.scoring_why!, /state\['seen'\] is a set/);
    assert.equal((played.judged as { reward: number }).reward, 1);
    assert.deepEqual(await bridge.score({ env, rollouts: [{ row: played.row }] }), [played.judged]);
  });

  test('calls tools', async () => {
    const bridge = await shared();
    const { env, about, inputs } = await loaded(bridge, 'toy_tool');
    assert.deepEqual((about.tools![0] as { function: { name: string } }).function.name, 'add');
    const calls = [{ id: 'c1', name: 'add', arguments: '{"a": 2, "b": 3}' }];
    const says: Says = ({ messages, tools }) => {
      assert.equal(tools!.length, 1);
      const last = messages.at(-1)!;
      if (last.role !== 'tool') return { tool_calls: calls, finish_reason: 'tool_calls' };
      assert.equal(last.tool_call_id, 'c1');
      const called = { name: 'add', arguments: '{"a": 2, "b": 3}' };
      assert.deepEqual(messages.at(-2)!.tool_calls, [{ id: 'c1', type: 'function', function: called }]);
      return { content: `It is ${last.content as string}.` };
    };
    const played = await play(bridge, env, inputs[2]!, says);
    const [score] = await bridge.score({ env, rollouts: [{ row: played.row }] });
    const counts = { boxed: 0, num_turns: 2, total_tool_calls: 1, add_calls: 1 };
    assert.deepEqual(untimed(score), { reward: 1, metrics: { correct: 1, ...counts } });
  });

  test('puts what it remembers into the arguments of tools', async () => {
    const bridge = await shared();
    const { env, about, inputs } = await loaded(bridge, 'toy_tool', { stateful: true });
    assert.doesNotMatch(JSON.stringify(about.tools), /box/);
    let turns = 0;
    const says: Says = () => {
      turns += 1;
      const calls = [{ id: `c${turns}`, name: 'remember', arguments: '{"word": "w"}' }];
      return turns < 3 ? { tool_calls: calls, finish_reason: 'tool_calls' } : { content: 'done' };
    };
    const played = await play(bridge, env, inputs[2]!, says);
    const [score] = await bridge.score({ env, rollouts: [{ row: played.row }] });
    assert.equal((score as { metrics: Record<string, number> }).metrics['boxed'], 2);
    assert.match(JSON.stringify(played.row['completion']), /2 words/);
  });

  test('made of several plays each input in the one it is of', async () => {
    const bridge = await shared();
    const { env, about, inputs } = await loaded(bridge, 'toy_group');
    assert.equal(inputs.length, 5);
    assert.equal(about.scoring, 'stored');
    const single = await play(bridge, env, inputs[1]!, text('<answer>1drow</answer>'));
    const multi = await play(bridge, env, inputs[4]!, text('guess'));
    assert.deepEqual((multi.row['info'] as { env_id: string }).env_id, 'multi');
    const [first] = await bridge.score({ env, rollouts: [{ row: single.row }] });
    const [second] = await bridge.score({ env, rollouts: [{ row: multi.row }] });
    assert.deepEqual((first as { metrics: Record<string, number> }).metrics['exact'], 1);
    assert.deepEqual((second as { metrics: Record<string, number> }).metrics['tries'], 2);
  });

  for (const from of ['rows', 'live states'] as const) {
    test(`whose reward compares a group is scored from ${from} together`, async () => {
      const bridge = await shared();
      const { env, about, inputs } = await loaded(bridge, 'toy_single', { group: true });
      assert(about.requires_group);
      const keep = from === 'live states';
      const played = await Promise.all(
        ['long answer', 'short', 'longer answer'].map((answer) =>
          play(bridge, env, inputs[0]!, text(answer), { keep, group: 'g' }),
        ),
      );
      const rollouts = played.map(({ row, live }) => (keep ? { live: live! } : { row }));
      const scores = await bridge.score({ env, rollouts });
      const shortest = scores.map((score) => (score as { metrics: Record<string, number> }).metrics['shortest']);
      assert.deepEqual(shortest, [0, 1, 0]);
    });
  }

  test('that keeps more than a state is scored in place, and says why', async () => {
    const { about } = await loaded(await shared(), 'toy_faulty', { reward: 'method' });
    assert.equal(about.scoring, 'in_place');
    assert.match(about.scoring_why!, /Refusing is a class of its own/);
  });

  test('gets token ids when it asks for them', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_single');
    const tokens = { prompt_ids: [1, 2], completion_ids: [3], logprobs: [-0.5] };
    const played = await play(bridge, env, inputs[0]!, () => ({ content: 'x', tokens }), { with_tokens: true });
    assert.match(played.row['scoring_state'] as string, /"completion_logprobs":\[-0\.5\]/);
  });
});

describe('what a child sees of our environment', { skip: installed.why }, () => {
  test('is what everyone may see, and the names that the config lists', async () => {
    const secrets = {
      AWS_SECRET_ACCESS_KEY: 's',
      TEMPORAL_API_KEY: 's',
      WANDB_API_KEY: 's',
      JUDGE_KEY: 'j',
      OTHER_KEY: 'o',
    };
    const bridge = await open({ environment: { ...process.env, ...secrets }, variables: ['JUDGE_KEY'] });
    await bridge.about();
    if (!existsSync(`/proc/${bridge.pids[0]}/environ`)) return;
    const seen = (await readFile(`/proc/${bridge.pids[0]}/environ`, 'utf8'))
      .split('\0')
      .map((pair) => pair.split('=')[0]);
    assert(seen.includes('JUDGE_KEY') && seen.includes('PATH'));
    assert.deepEqual(
      seen.filter((name) => /AWS|TEMPORAL|WANDB|OTHER|RATCHET/.test(name!)),
      ['RATCHET_PLAYS_ENVIRONMENT'], // no secret: tools with an effect ask for it
    );
  });

  test('never is a credential of the store or of Temporal', async () => {
    for (const name of ['AWS_SECRET_ACCESS_KEY', 'TEMPORAL_API_KEY', 'RATCHET_PAYLOAD_KEY', 'AWS_*']) {
      await assert.rejects(open({ variables: [name] }), {
        code: 'ConfigInvalid',
        message: new RegExp(`do not get ${name.replace('*', '\\*')}`),
      });
    }
  });
});
