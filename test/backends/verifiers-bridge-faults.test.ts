import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { TurnRequest } from '../../backends/environments/verifiers/protocol.ts';
import { RatchetError } from '../../core/errors.ts';
import {
  bridgesOf,
  loaded,
  modulePaths,
  plantedKey,
  play,
  text,
  type Says,
  type TestBridge,
  untimed,
} from './python-bridge.ts';
import { installPython } from '../python-here.ts';

const installed = await installPython('verifiers-v0-requirements.txt');
const { open, shared } = bridgesOf(installed);

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

  test('what is no Exception of Python’s is one as well, and ends nothing but its rollout', async () => {
    for (const [how, type] of [
      ['sys.exit', 'SystemExit'],
      ['panic', 'Panic'],
      ['cancelled', 'CancelledError'],
    ] as const) {
      const { played } = await failing({ how });
      assert.deepEqual([played.outcome, played.error?.type], ['infra_failure', type]);
    }
  });

  test('a reward function that calls sys.exit, or is cancelled by itself, gives 0 as any that throws, and says so', async () => {
    for (const [reward, said] of [
      ['inside', /ValueError: no number/],
      ['sys.exit', /SystemExit: the code of a model/],
      ['cancelled', /CancelledError/],
    ] as const) {
      const { bridge, env, played } = await failing({ reward });
      const [score] = await bridge.score({ env, rollouts: [{ row: played.row }] });
      assert(score && 'reward' in score && score.reward === 0);
      assert.match(score.raised!['said']!, said);
    }
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
    assert(zero && 'reward' in zero);
    assert.deepEqual([zero.reward, zero.metrics], [0, { said: 0, num_turns: 1 }]);
    const nan = await failing({ reward: 'nan' });
    const [none] = await nan.bridge.score({ env: nan.env, rollouts: [{ row: nan.played.row }] });
    assert.equal((none as { error: { type: string } }).error.type, 'NotFinite');
  });

  test('what it prints is in the log, and disturbs nothing', async () => {
    const { bridge, played } = await failing({ how: 'print' });
    assert.equal(played.outcome, 'ok');
    const log = await readFile(path.join((await shared()).folder, 'environments-0.log'), 'utf8');
    assert.match(log, /printed by the environment/);
    assert.match(log, /printed by a process of its/);
    assert.deepEqual(Object.keys(await bridge.about()).includes('verifiers'), true);
  });

  test('a row of megabytes comes through a file, which is removed', async () => {
    const { bridge, played } = await failing({ how: 'large' });
    assert((played.row['scoring_state'] as string).length > 3_000_000);
    const spill = (await readdir(bridge.folder)).find((name) => name.startsWith('spill-'))!;
    assert.deepEqual(await readdir(path.join(bridge.folder, spill)), []);
    const [score] = await bridge.score({
      env: `toy_faulty:${JSON.stringify({ how: 'large' })}`,
      rollouts: [{ row: played.row }],
    });
    assert.deepEqual(untimed(score), { reward: 1, metrics: { said: 1, num_turns: 1 } });
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

  test('one that is to be truncated ends with the turns that it had, and is scored with them', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_multi', { need: 6 });
    const says: Says = ({ messages, signal }) =>
      messages.length < 5
        ? { content: 'a guess' }
        : new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason as Error)));
    const limits = { truncate_s: 0.5, deadline_s: 30 };
    const played = await play(bridge, env, inputs[0]!, says, limits);
    assert.deepEqual([played.outcome, played.timed_out, played.heard_turns], ['truncated', true, 2]);
    const [score] = await bridge.score({ env, rollouts: [{ row: played.row }] });
    assert.equal((untimed(score) as { metrics: Record<string, number> }).metrics['turns'], 2);
    const quick = await play(bridge, env, inputs[0]!, text('a guess'), { truncate_s: 30, deadline_s: 90 });
    assert.deepEqual([quick.outcome, quick.timed_out], ['ok', undefined]);
  });

  test('one that is truncated before its first turn says so too', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_faulty', { how: 'sleep' });
    const played = await play(bridge, env, inputs[0]!, text('x'), { truncate_s: 0.3, deadline_s: 30 });
    assert.deepEqual([played.outcome, played.timed_out, played.heard_turns], ['truncated', true, 0]);
  });

  test('a rollout that will not be cancelled is left alone, and the child continues', async () => {
    const bridge = await shared();
    const { env, inputs } = await loaded(bridge, 'toy_faulty', { how: 'stubborn' });
    await assert.rejects(play(bridge, env, inputs[0]!, text('x'), { signal: AbortSignal.timeout(100) }), /timeout/i);
    const { env: other, inputs: its } = await loaded(bridge, 'toy_single');
    assert.equal((await play(bridge, other, its[0]!, text('x'))).outcome, 'ok');
  });
});

test('a key that a failing reward function says does not stay in the log', { skip: installed.why }, async () => {
  const bridge = await shared();
  const { env, inputs } = await loaded(bridge, 'toy_columns');
  const { changed_columns: changed } = await bridge.inputs({ env, split: 'train' });
  assert.deepEqual(changed, ['info'], 'of the second row, too');
  const { judged } = await play(bridge, env, inputs[0]!, text('x'), { score: true });
  assert.match(JSON.stringify(judged), new RegExp(plantedKey)); // so it was said, and the log had it
  const log = readFileSync(path.join(bridge.folder, 'environments-0.log'), 'utf8');
  assert.match(log, /401 for \*\*\*/);
  assert.doesNotMatch(log, new RegExp(plantedKey));
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
    assert.match(error.message, /no module toy_singel\. There is toy_single\b/);
  });

  test('since a package is missing', async () => {
    const error = await refused('toy_faulty', { how: 'import' });
    assert.equal(error.code, 'EnvironmentBroken');
    assert.match(error.message, /imports no_such_package.*pyproject\.toml/);
  });

  test('since a variable is not set', async () => {
    assert.match(
      (await refused('toy_faulty', { how: 'keys' })).message,
      /TOY_JUDGE_KEY.*env_vars of its .*--pass-env TOY_JUDGE_KEY/,
    );
  });

  test('since its arguments are not what it takes', async () => {
    assert.match((await refused('toy_single', { m: 3 })).message, /'m'.*takes \(n: int = 16, group: bool = False\)/);
  });

  test('since it throws: with its traceback', async () => {
    const error = await refused('toy_faulty', { how: 'load' });
    assert.equal(error.code, 'EnvironmentBroken');
    assert.match(error.message, /ZeroDivisionError: while it was loaded[^]*toy_faulty\.py/);
  });
});

describe('a child that ends', { skip: installed.why }, () => {
  let opened: Promise<TestBridge> | null = null;
  /** One whose children are ended again and again. */
  const fragile = (): Promise<TestBridge> => (opened ??= open());

  test('while it loads an environment is told of with the end of the log; the next one loads', async () => {
    const bridge = await fragile();
    const load = (how: string) => bridge.load({ env: 'x', env_id: 'toy_faulty', args: { how } });
    await assert.rejects(load('exit-at-load'), {
      code: 'EnvironmentUnavailable',
      message: /ended by itself \(exit status 3\) while it worked on 1 request\(s\) \(load\)/,
    });
    assert.equal((await load('loop-at-load')).class, 'FaultyEnv');
  });

  test('takes with it what was at work, as a failure of infrastructure; the next call works', async () => {
    const bridge = await fragile();
    const { env, inputs } = await loaded(bridge, 'toy_single');
    const asked = new Set<TurnRequest>();
    const playing = Array.from({ length: 20 }, () =>
      play(bridge, env, inputs[0]!, (wanted) => {
        asked.add(wanted);
        return new Promise(() => {});
      }).catch((error: unknown) => error),
    );
    while (asked.size < 20) await delay(10);
    process.kill(bridge.pids[0]!, 'SIGKILL');
    for (const error of await Promise.all(playing)) {
      assert(error instanceof RatchetError && error.code === 'EnvironmentUnavailable', String(error));
      assert.match(error.message, /signal SIGKILL\) while it worked on 20 request\(s\) \(rollout\)/);
    }
    assert.equal((await play(bridge, env, inputs[0]!, text('x'))).outcome, 'ok');
  });

  test('by os._exit in a rollout does so, too', async () => {
    const bridge = await fragile();
    const { env, inputs } = await loaded(bridge, 'toy_faulty', { how: 'exit' });
    await assert.rejects(play(bridge, env, inputs[0]!, text('x')), {
      code: 'EnvironmentUnavailable',
      message: /exit status 7/,
    });
    const { env: other, inputs: its } = await loaded(bridge, 'toy_single');
    assert.equal((await play(bridge, other, its[0]!, text('x'))).outcome, 'ok');
  });

  test('does so at once where a process that it started left its group and holds its pipe', async () => {
    const bridge = await fragile();
    const { env, inputs } = await loaded(bridge, 'toy_faulty', { how: 'leave-behind' });
    const before = Date.now();
    await assert.rejects(play(bridge, env, inputs[0]!, text('x')), { message: /ended by itself \(exit status 9\)/ });
    assert(Date.now() - before < 15_000, 'the process that was left behind ends after 20 s');
  });

  test('does so when its loop hangs: it is ended for its silence', async () => {
    const bridge = await open({ silentS: 12 });
    const { env, inputs } = await loaded(bridge, 'toy_faulty', { how: 'block' });
    await assert.rejects(play(bridge, env, inputs[0]!, text('x')), {
      code: 'EnvironmentUnavailable',
      message: /its event loop has hung for 12 s/,
    });
  });

  test('loses the states that it kept', async () => {
    const bridge = await fragile();
    const { env, inputs } = await loaded(bridge, 'toy_single', { group: true });
    const { live } = await play(bridge, env, inputs[0]!, text('x'), { keep: true });
    process.kill(bridge.pids[0]!, 'SIGKILL');
    while (bridge.pids.length > 0) await delay(10);
    await assert.rejects(bridge.score({ env, rollouts: [{ live: live! }] }), { code: 'EnvironmentUnavailable' });
  });

  test('does so when its parent is killed, also in the middle of what hangs', async (t) => {
    const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-orphans-'));
    t.after(() => rmSync(folder, { recursive: true, force: true }));
    const bridgeUrl = new URL('../../backends/environments/verifiers/bridge.ts', import.meta.url).href;
    const program = [
      `import { mkdirSync } from 'node:fs';`,
      `import { openBridge } from ${JSON.stringify(bridgeUrl)};`,
      `const options = ${JSON.stringify({ python: installed.python, modulePaths })};`,
      "const asked = { env: 'e', input: { prompt: 'x', example_id: 0, answer: '' }, model: 'm', sampling: {} };",
      'const more = { score: false, keep: false, with_tokens: false };',
      'async function hang(how) {',
      `  const folder = ${JSON.stringify(folder)} + '/' + how;`,
      '  mkdirSync(folder);',
      '  const bridge = await openBridge({ ...options, folder });',
      "  await bridge.load({ env: 'e', env_id: 'toy_faulty', args: { how } });",
      '  void bridge.rollout({ ...asked, ...more }, { onSample: () => new Promise(() => {}) }).catch(() => {});',
      '  return bridge;',
      '}',
      "const bridges = await Promise.all(['sleep', 'block'].map(hang));",
      'setTimeout(() => console.log(bridges.map((bridge) => bridge.pids[0]).join()), 500);',
    ].join('\n');
    const parent = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', program], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const [said] = (await once(parent.stdout, 'data')) as [Buffer];
    const pids = said.toString().trim().split(',').map(Number);
    assert.equal(pids.length, 2);
    for (const pid of pids) process.kill(pid, 0);
    parent.kill('SIGKILL');
    for (let tenths = 0; pids.some(isThere); tenths++) {
      assert(tenths < 300, `a child of a killed parent still runs: ${pids.filter(isThere).join()}`);
      await delay(100);
    }
  });

  test('does so when its parent is gone before it has started', async () => {
    const folder = (await fragile()).folder;
    const child = spawn(installed.python, ['-P', '-m', 'ratchet_bridge', '--spill', folder], {
      env: { ...process.env, PYTHONPATH: fileURLToPath(new URL('../../python', import.meta.url)) },
      stdio: ['pipe', 'pipe', 'ignore'],
    });
    child.stdin.end();
    const tooLate = setTimeout(() => child.kill('SIGKILL'), 60_000);
    const [code] = (await once(child, 'exit')) as [number | null];
    clearTimeout(tooLate);
    assert.equal(code, 0, 'it waits for a parent that is gone');
  });

  test('because the bridge is closed leaves no process and no file but its log', async () => {
    const bridge = await open({ children: 2 });
    const { env, inputs } = await loaded(bridge, 'toy_single');
    const { pids } = bridge;
    assert.equal(pids.length, 2);
    const played = await Promise.all(inputs.map((input) => play(bridge, env, input, text('x'))));
    assert(played.every(({ outcome }) => outcome === 'ok'));
    await bridge.close();
    for (const pid of pids) assert.throws(() => process.kill(pid, 0), { code: 'ESRCH' });
    assert.deepEqual(
      (await readdir(bridge.folder)).filter((name) => name.startsWith('spill')),
      [],
    );
  });
});

function isThere(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

describe('what a config says of rollouts', { skip: installed.why }, () => {
  test('turns are bounded where its environment has several, whatever its code says', async () => {
    const bridge = await shared();
    const many = await loaded(bridge, 'toy_multi', { max_turns: 6 }, { env: 'bounded', max_turns: 2 });
    const played = await play(bridge, 'bounded', many.inputs[3]!, text('0'), { score: true });
    assert.equal(played.row['stop_condition'], 'max_turns_reached');
    const { metrics } = played.judged as { metrics: Record<string, number> };
    assert.equal(metrics['turns'], 2);
    const one = await loaded(bridge, 'toy_single', {}, { env: 'single', max_turns: 5 });
    assert.equal(one.about.is_single_turn, true);
    assert.equal((await play(bridge, 'single', one.inputs[0]!, text('0'))).outcome, 'ok');
  });

  test('code that was changed while it is played is noticed by the next process', async (t) => {
    const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-changing-'));
    t.after(() => rmSync(folder, { recursive: true }));
    const file = path.join(folder, 'toy_changing.py');
    const code = readFileSync(path.join(modulePaths[0]!, 'toy_single.py'), 'utf8');
    writeFileSync(file, code);
    const bridge = await open({ modulePaths: [folder] });
    const { env, inputs } = await loaded(bridge, 'toy_changing');
    const again = async (): Promise<string> => {
      process.kill(bridge.pids[0]!, 'SIGKILL');
      while (bridge.pids.length > 0) await delay(20);
      return (await play(bridge, env, inputs[0]!, text('x'))).outcome;
    };
    assert.equal(await again(), 'ok', 'the same code is the same environment');
    writeFileSync(file, code.replace('backwards', 'forwards'));
    await assert.rejects(again(), {
      code: 'EnvironmentUnavailable',
      message: /code of toy_changing was changed while/,
    });
    writeFileSync(file, code);
    assert.equal((await play(bridge, env, inputs[0]!, text('x'))).outcome, 'ok', 'put back, it continues');
  });
});
