import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { after, describe, test } from 'node:test';
import { openBridge, type Bridge, type BridgeOptions } from '../../backends/environments/verifiers/bridge.ts';
import type {
  PlayedRow,
  RolloutRequest,
  SampledTurn,
  TurnRequest,
} from '../../backends/environments/verifiers/protocol.ts';
import { RatchetError } from '../../core/errors.ts';
import { ensurePython } from '../../workers/python-environment.ts';

const requirements = fileURLToPath(new URL('../../python/verifiers-requirements.txt', import.meta.url));
const modulePaths = [fileURLToPath(new URL('../data/verifiers', import.meta.url))];

/** The real package, as a run would have it; null, and why, where there is no Python or no package index. */
const installed = await ensurePython({
  name: 'verifiers',
  requirements,
  log: (line) => void process.stderr.write(`${line}\n`),
}).then(
  (python) => ({ python, why: false as const }),
  (error: Error) => ({ python: '', why: `verifiers cannot be installed here: ${error.message}` }),
);

const folders: string[] = [];
const bridges: Bridge[] = [];

async function open(options: Partial<BridgeOptions> = {}): Promise<Bridge & { readonly folder: string }> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-bridge-'));
  folders.push(folder);
  const environment = { ...process.env, HF_HUB_OFFLINE: '1' };
  const bridge = await openBridge({ python: installed.python, folder, modulePaths, environment, ...options });
  bridges.push(bridge);
  return Object.assign(bridge, { folder });
}

/** One bridge for all tests that leave their child alive: importing verifiers takes seconds. */
let common: Promise<Bridge & { readonly folder: string }> | null = null;
const shared = (): Promise<Bridge & { readonly folder: string }> => (common ??= open());

after(async () => {
  await Promise.all(bridges.map((bridge) => bridge.close()));
  await Promise.all(folders.map((folder) => rm(folder, { recursive: true, force: true })));
});

type Says = (wanted: TurnRequest) => Partial<SampledTurn> | Promise<Partial<SampledTurn>>;

function turn(said: Partial<SampledTurn>): SampledTurn {
  const usage = { prompt_tokens: 5, completion_tokens: 3 };
  return { content: null, tool_calls: [], finish_reason: 'stop', usage, tokens: null, ...said };
}

const text =
  (content: string): Says =>
  () => ({ content });

async function lines(bridge: Bridge, env: string): Promise<string[]> {
  const { file } = await bridge.inputs({ env, split: 'train' });
  return (await readFile(file, 'utf8')).trim().split('\n');
}

async function play(
  bridge: Bridge,
  env: string,
  input: string,
  says: Says,
  more: Partial<RolloutRequest> & { readonly signal?: AbortSignal } = {},
): Promise<PlayedRow> {
  const { signal, ...request } = more;
  return bridge.rollout(
    { env, input, model: 'm', sampling: { max_tokens: 9 }, score: false, keep: false, with_tokens: false, ...request },
    { onSample: async (wanted) => turn(await says(wanted)), signal },
  );
}

/** Loads `env_id` under a handle of its own and gives its first input. */
async function loaded(bridge: Bridge, envId: string, args: Record<string, string | number | boolean> = {}) {
  const env = `${envId}:${JSON.stringify(args)}`;
  const about = await bridge.load({ env, env_id: envId, args });
  return { env, about, inputs: await lines(bridge, env) };
}

const outcomes = (played: readonly PlayedRow[]) => played.map(({ outcome }) => outcome);

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
    assert.deepEqual(scores, [{ reward: 1 + 0.1 * brevity, metrics: { exact: 1, brevity, num_turns: 1 } }]);
    const inPlace = await play(bridge, env, inputs[1]!, says, { score: true });
    assert.deepEqual(inPlace.judged, scores[0]);
    assert.equal(inPlace.row['reward'], 1 + 0.1 * brevity);
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
    assert.deepEqual(fromRow, { reward: 1, metrics });
    assert.deepEqual(fromState, fromRow);
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
      return { content: `It is ${String(last.content)}.` };
    };
    const played = await play(bridge, env, inputs[2]!, says);
    const [score] = await bridge.score({ env, rollouts: [{ row: played.row }] });
    const counts = { boxed: 0, num_turns: 2, total_tool_calls: 1, add_calls: 1 };
    assert.deepEqual(score, { reward: 1, metrics: { correct: 1, ...counts } });
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
    assert.match(String(played.row['scoring_state']), /"completion_logprobs":\[-0\.5\]/);
  });
});

describe('what goes wrong in an environment', { skip: installed.why }, () => {
  const failing = async (args: Record<string, string>, says: Says = text('x')) => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_faulty', args);
    return { bridge, env, input: inputs[0]!, played: await play(bridge, env, inputs[0]!, says) };
  };

  test('an exception is a failure of infrastructure with its traceback', async () => {
    const { played } = await failing({ how: 'raise' });
    assert.deepEqual([played.outcome, played.error?.type, played.row['reward']], ['infra_failure', 'KeyError', null]);
    assert.match(played.error!.traceback, /go_wrong/);
  });

  test('an error of its sandbox is a failure of infrastructure', async () => {
    const { played } = await failing({ how: 'error' });
    assert.deepEqual([played.outcome, played.error?.type], ['infra_failure', 'SandboxError']);
  });

  test('a turn that says nothing is a failure of the policy', async () => {
    const { played } = await failing({}, text(''));
    assert.deepEqual([played.outcome, played.error?.type], ['policy_failure', 'EmptyModelResponseError']);
  });

  test('a turn cut off by its length is truncated', async () => {
    const { played } = await failing({}, () => ({ content: 'and then', finish_reason: 'length' }));
    assert.equal(played.outcome, 'truncated');
  });

  test('a first prompt that is too long is told apart from a later one', async () => {
    const tooLong = new RatchetError('PromptTooLong', 'it has 9 tokens, at most 8');
    const { bridge, played } = await failing({}, () => Promise.reject(tooLong));
    assert.equal(played.outcome, 'overlong_prompt');
    const { env, inputs } = await loaded(bridge, 'toy_faulty', { max_turns: 3 });
    let turns = 0;
    const later = await play(bridge, env, inputs[0]!, () => {
      turns += 1;
      return turns < 2 ? { content: 'x' } : Promise.reject(tooLong);
    });
    assert.deepEqual([later.outcome, later.row['stop_condition']], ['truncated', 'prompt_too_long']);
  });

  test('a turn that could not be sampled says nothing about the policy', async () => {
    const { played } = await failing({}, () =>
      Promise.reject(new RatchetError('InferenceUnavailable', 'connection reset')),
    );
    assert.deepEqual(
      [played.outcome, played.error?.type, played.error?.retryable],
      ['infra_failure', 'unavailable', true],
    );
    const refused = new RatchetError('InferenceRejected', 'no such model');
    const { played: rejected } = await failing({}, () => Promise.reject(refused));
    assert.deepEqual([rejected.outcome, rejected.error?.type], ['infra_failure', 'rejected']);
  });

  test('a reward function whose judge does not answer has no reward; one that stumbles gives 0, as verifiers has it', async () => {
    const outside = await failing({ reward: 'outside' });
    const [noScore] = await outside.bridge.score({ env: outside.env, rollouts: [{ row: outside.played.row }] });
    assert.match((noScore as { error: { message: string } }).error.message, /the judge does not answer/);
    const inside = await failing({ reward: 'inside' });
    const [zero] = await inside.bridge.score({ env: inside.env, rollouts: [{ row: inside.played.row }] });
    assert.deepEqual(zero, { reward: 0, metrics: { said: 0, num_turns: 1 } });
    const nan = await failing({ reward: 'nan' });
    const [none] = await nan.bridge.score({ env: nan.env, rollouts: [{ row: nan.played.row }] });
    assert.equal((none as { error: { type: string } }).error.type, 'NotFinite');
  });

  test('what it prints is in the log, and disturbs nothing', async () => {
    const { bridge, played } = await failing({ how: 'print' });
    assert.equal(played.outcome, 'ok');
    const log = await readFile(path.join(shared_folder(await shared()), 'environments-0.log'), 'utf8');
    assert.match(log, /printed by the environment/);
    assert.match(log, /printed by a process of its/);
    assert.deepEqual(Object.keys(await bridge.about()).includes('verifiers'), true);
  });

  test('a row of megabytes comes through a file, which is removed', async () => {
    const { bridge, played } = await failing({ how: 'large' });
    assert(String(played.row['scoring_state']).length > 3_000_000);
    const spill = (await readdir(shared_folder(bridge))).find((name) => name.startsWith('spill-'))!;
    assert.deepEqual(await readdir(path.join(shared_folder(bridge), spill)), []);
    const [score] = await bridge.score({
      env: `toy_faulty:${JSON.stringify({ how: 'large' })}`,
      rollouts: [{ row: played.row }],
    });
    assert.deepEqual(score, { reward: 1, metrics: { said: 1, num_turns: 1 } });
  });

  test('half a surrogate pair passes', async () => {
    const { played } = await failing({ how: 'surrogate' });
    assert.equal(played.outcome, 'ok');
  });

  test('a rollout that hangs is cancelled, and the environment is told', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_faulty', { how: 'sleep' });
    const cancel = new AbortController();
    const playing = play(bridge, env, inputs[0]!, text('x'), { signal: cancel.signal });
    await delay(200);
    const reason = new Error('no longer wanted');
    cancel.abort(reason);
    await assert.rejects(playing, (error) => error === reason);
  });

  test('a turn that is being sampled when its rollout is cancelled is no longer wanted', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_single');
    const cancel = new AbortController();
    let told = '';
    const playing = play(
      bridge,
      env,
      inputs[0]!,
      ({ signal }) =>
        new Promise((_, reject) => {
          signal.addEventListener('abort', () => {
            told = (signal.reason as Error).message;
            reject(signal.reason as Error);
          });
          cancel.abort(new Error('enough'));
        }),
      { signal: cancel.signal },
    );
    await assert.rejects(playing, /enough/);
    assert.match(told, /no longer waits/);
  });

  test('a deadline ends what takes too long', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_faulty', { how: 'sleep' });
    await assert.rejects(play(bridge, env, inputs[0]!, text('x'), { deadline_s: 0.3 }), {
      code: 'EnvironmentUnavailable',
      message: /rollout was not done after 0\.3 s/,
    });
  });

  test('a rollout that will not be cancelled is left alone, and the child goes on', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_faulty', { how: 'stubborn' });
    await assert.rejects(play(bridge, env, inputs[0]!, text('x'), { signal: AbortSignal.timeout(100) }), /timeout/i);
    const { env: other, inputs: its } = await loaded(bridge, 'toy_single');
    assert.equal((await play(bridge, other, its[0]!, text('x'))).outcome, 'ok');
  });
});

describe('an environment that cannot be loaded', { skip: installed.why }, () => {
  const refused = async (envId: string, args: Record<string, string | number>): Promise<RatchetError> => {
    const bridge = await shared();
    const error: unknown = await bridge.load({ env: 'x', env_id: envId, args }).catch((reason: unknown) => reason);
    assert(error instanceof RatchetError);
    return error;
  };

  test('since there is none of its name', async () => {
    const error = await refused('someone/toy-singel', {});
    assert.equal(error.code, 'EnvironmentUnknown');
    assert.match(error.message, /no module toy_singel\. There is toy_single\./);
  });

  test('since a package is missing', async () => {
    const error = await refused('toy_faulty', { how: 'import' });
    assert.equal(error.code, 'EnvironmentBroken');
    assert.match(error.message, /imports no_such_package.*pyproject\.toml/);
  });

  test('since a variable is not set', async () => {
    assert.match((await refused('toy_faulty', { how: 'keys' })).message, /TOY_JUDGE_KEY.*list the names in the config/);
  });

  test('since its arguments are not what it takes', async () => {
    assert.match((await refused('toy_single', { m: 3 })).message, /'m'.*takes \(n: int = 16, group: bool = False\)/);
  });

  test('since it throws: with its traceback', async () => {
    const error = await refused('toy_faulty', { how: 'load' });
    assert.equal(error.code, 'EnvironmentBroken');
    assert.match(error.message, /ZeroDivisionError: while it was loaded[^]*toy_faulty\.py/);
  });

  test('since it ends the process: with the end of the log', async () => {
    const bridge = await open();
    const load = (how: string) => bridge.load({ env: 'x', env_id: 'toy_faulty', args: { how } });
    await assert.rejects(load('exit-at-load'), {
      code: 'EnvironmentUnavailable',
      message: /ended by itself \(exit status 3\) while it worked on 1 request\(s\) \(load\)/,
    });
    assert.equal((await load('loop-at-load')).class, 'FaultyEnv');
  });
});

describe('a child that ends', { skip: installed.why }, () => {
  test('takes with it what was at work, as a failure of infrastructure; the next call works', async () => {
    const bridge = await open();
    const { env, inputs } = await loaded(bridge, 'toy_single');
    let asked = 0;
    const playing = Array.from({ length: 20 }, () =>
      play(bridge, env, inputs[0]!, () => {
        asked += 1;
        return new Promise(() => {});
      }).catch((error: unknown) => error),
    );
    while (asked < 20) await delay(10);
    process.kill(bridge.pids[0]!, 'SIGKILL');
    for (const error of await Promise.all(playing)) {
      assert(error instanceof RatchetError && error.code === 'EnvironmentUnavailable', String(error));
      assert.match(error.message, /signal SIGKILL\) while it worked on 20 request\(s\) \(rollout\)/);
    }
    assert.equal((await play(bridge, env, inputs[0]!, text('x'))).outcome, 'ok');
  });

  test('by os._exit in a rollout does so, too', async () => {
    const bridge = await open();
    const { env, inputs } = await loaded(bridge, 'toy_faulty', { how: 'exit' });
    await assert.rejects(play(bridge, env, inputs[0]!, text('x')), {
      code: 'EnvironmentUnavailable',
      message: /exit status 7/,
    });
    const { env: other, inputs: its } = await loaded(bridge, 'toy_single');
    assert.equal((await play(bridge, other, its[0]!, text('x'))).outcome, 'ok');
  });

  test('does so when its loop hangs: it is ended for its silence', async () => {
    const bridge = await open({ silentS: 3 });
    const { env, inputs } = await loaded(bridge, 'toy_faulty', { how: 'block' });
    await assert.rejects(play(bridge, env, inputs[0]!, text('x')), {
      code: 'EnvironmentUnavailable',
      message: /its event loop has hung for 3 s/,
    });
  });

  test('loses the states that it kept', async () => {
    const bridge = await open();
    const { env, inputs } = await loaded(bridge, 'toy_single', { group: true });
    const { live } = await play(bridge, env, inputs[0]!, text('x'), { keep: true });
    process.kill(bridge.pids[0]!, 'SIGKILL');
    while (bridge.pids.length > 0) await delay(10);
    await assert.rejects(bridge.score({ env, rollouts: [{ live: live! }] }), { code: 'EnvironmentUnavailable' });
  });

  test('because the bridge is closed leaves no process and no file but its log', async () => {
    const bridge = await open({ children: 2 });
    const { env, inputs } = await loaded(bridge, 'toy_single');
    const { pids } = bridge;
    assert.equal(pids.length, 2);
    assert.deepEqual(
      outcomes(await Promise.all(inputs.map((input) => play(bridge, env, input, text('x'))))),
      Array(16).fill('ok'),
    );
    await bridge.close();
    for (const pid of pids) assert.throws(() => process.kill(pid, 0), { code: 'ESRCH' });
    assert.deepEqual(
      (await readdir(bridge.folder)).filter((name) => name.startsWith('spill')),
      [],
    );
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
      [],
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

function shared_folder(bridge: Bridge): string {
  return (bridge as Bridge & { readonly folder: string }).folder;
}
