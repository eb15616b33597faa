import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { RatchetError } from '../../../core/errors.ts';
import { uniform } from '../../../core/random.ts';
import { judgeGroup, meanBins, meanHistogram, widenedBounds } from '../../../core/rl/filters/difficulty.ts';
import {
  addFailures,
  breakerAmong,
  breakerReason,
  countFailures,
  describeFailures,
  isLost,
  noFailures,
  onlyRow,
  outcomeOfFailure,
  saysEngineDied,
  saysNcclFailed,
  saysOutOfMemory,
} from '../../../core/rl/failures.ts';
import { packSamples } from './pack-samples.ts';
import {
  failedOutcomes,
  type FailedOutcome,
  type ScoredGroup,
  type ScoredRollout,
} from '../../../core/rl/rollout/rollout.ts';
import { secretValues, withoutSecrets } from '../../../config/toml/secrets.ts';

const place = { group: 1, index: 0, exampleId: 0, turns: [], metrics: {} };
const rollout = (outcome: FailedOutcome | number, error = ''): ScoredRollout =>
  typeof outcome === 'number'
    ? { ...place, outcome: 'ok', reward: outcome }
    : { ...place, outcome, reward: null, error };
const group = (ordinal: number, rollouts: readonly ScoredRollout[]): ScoredGroup => ({
  ordinal,
  environment: 'words',
  exampleId: 0,
  epoch: 0,
  policyStep: 0,
  rollouts,
});
const anyOutcome = fc.oneof(fc.constantFrom(...failedOutcomes), fc.constantFrom(0, 0.5, 1));
const anyGroups = fc.array(fc.array(anyOutcome, { minLength: 1, maxLength: 4 }), { maxLength: 12 }).map((groups) =>
  groups.map((outcomes, i) =>
    group(
      i + 1,
      outcomes.map((outcome) => rollout(outcome)),
    ),
  ),
);

describe('outcomes', () => {
  test('no failed rollout can carry a reward, and no rewarded one can lack it: the compiler says so', () => {
    // @ts-expect-error A reward of 0 for an environment that broke would train the policy away from what it did.
    const poisoned: ScoredRollout = { ...place, outcome: 'infra_failure', reward: 0 };
    // @ts-expect-error
    const lost: ScoredRollout = { ...place, outcome: 'ok', reward: null };
    assert.ok(poisoned.reward === 0 && lost.reward === null); // they exist here only because the checks were silenced
  });

  test('out of memory is told apart from other failures, in the words of every runtime', () => {
    for (const text of [
      'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB',
      'Non-zero status code returned while running MatMul node: Failed to allocate memory for requested buffer',
      'std::bad_alloc',
      'FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory',
      'No available memory for the cache blocks.',
      'the child was killed by SIGKILL',
    ]) {
      assert.equal(outcomeOfFailure(new Error(text)), 'oom', text);
    }
    assert.equal(outcomeOfFailure(new Error('the memory of the sandbox is fine, its disk is not')), 'infra_failure');
    assert.equal(outcomeOfFailure(new RatchetError('OutOfMemory', '507')), 'oom');
    assert.equal(outcomeOfFailure(new RatchetError('PromptTooLong', '400')), 'overlong_prompt');
    assert.equal(outcomeOfFailure(new RatchetError('InferenceRejected', '401')), 'rejected');
    assert.equal(outcomeOfFailure(new RatchetError('InferenceUnavailable', '503')), null, "everyone's trouble");
  });
});

/** Messages of broken engines, and messages that they always print. */
const words: readonly (readonly [
  what: string,
  says: (text: string) => boolean,
  yes: readonly string[],
  no: readonly string[],
])[] = [
  [
    'memory ran out',
    saysOutOfMemory,
    [
      'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 7.75 GiB of which 1.17 GiB is free.',
      'torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 18.00 MiB',
      'RuntimeError: CUDA error: out of memory',
      "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
      'XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12884901888 bytes.',
      'ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.',
      'numpy.core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB\nMemoryError',
      'OSError: [Errno 12] Cannot allocate memory',
      'spawn ENOMEM',
      'Error [ERR_WORKER_OUT_OF_MEMORY]: Worker terminated due to reaching memory limit: JS heap out of memory',
      'Memory cgroup out of memory: Killed process 4242 (python) total-vm:81264kB',
      'Last State: Terminated  Reason: OOMKilled  Exit Code: 137',
      'container exited with code 137',
      "Command '['python', '-m', 'trainer']' returned non-zero exit status 137.",
      "Command '['python', '-m', 'trainer']' died with <Signals.SIGKILL: 9>.",
      'the trainer process ended: killed by signal SIGKILL',
      'exitcode  : -9 (pid: 69811)',
      'traceback : Signal 9 (SIGKILL) received by PID 69811',
      'ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.',
      'loading shards 40%\nKilled',
      'run.sh: line 7: 31337 Killed                  python train.py',
    ],
    [
      'If out-of-memory error occurs during cudagraph capture, consider decreasing `gpu_memory_utilization` or switching to eager mode.',
      'INFO worker.py:267] Memory profiling takes 4.26 seconds; the rest of the memory reserved for KV Cache is 21.20GiB.',
      'GPU memory usage 97%, 1.2 GiB free',
      'RuntimeError: CUDA error: device-side assert triggered',
      'container exited with code 1',
      'exit code: 1370',
      'exited with code -90',
      'the step took 137 s',
      'killed by signal SIGTERM',
      'Killed the dragon, and went home',
      'the job was Killed by its owner',
      'the memory of the sandbox is fine, its disk is not: ENOSPC',
    ],
  ],
  [
    'GPUs could not talk to one another',
    saysNcclFailed,
    [
      'torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5',
      "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 1 'invalid argument'",
      'ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.',
      'ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.',
      'RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)',
      '[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.',
      '[E ProcessGroupNCCL.cpp:458] Some NCCL operations have failed or timed out.',
      'NCCL watchdog thread terminated with exception: [Rank 7] Watchdog caught collective operation timeout',
      'gpu7: NCCL WARN Call to connect returned Connection refused, NCCL error 6',
    ],
    [
      'vLLM is using nccl==2.20.5',
      'NCCL version 2.21.5+cuda12.4',
      'node1:4242:4301 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v6 symbol.',
      '[rank0]:[W1206 18:44:13.275158817 ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed before we destruct ProcessGroupNCCL.',
      '[W ProcessGroupNCCL.cpp:1113] Warning: using GPU 0 to perform barrier as devices used by this process are currently unknown.',
      'TORCH_NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600',
      'RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer',
      'collective operation of 8 GPUs in 3 ms',
    ],
  ],
  [
    'the engine behind a server is gone',
    saysEngineDied,
    [
      'EngineCore encountered an issue. See stack trace (above) for the root cause.',
      'vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.',
      'vllm.engine.async_llm_engine.AsyncEngineDeadError: Background loop has errored already.',
      'MQEngineDeadError: Engine loop is not running. Inspect the stacktrace to find the original error.',
      'Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.',
      'RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}',
      '(EngineCore pid=697344) ERROR 01-08 17:16:15 [core.py:842] EngineCore failed to start.',
      'ERROR 03-10 08:07:20 [core.py:302] EngineCore hit an exception: Traceback (most recent call last):',
    ],
    [
      '(EngineCore_DP0 pid=697344) INFO 05-12 01:48:42 [core.py:77] Initializing a V1 LLM engine (v0.11.0)',
      '(EngineCore_DP0 pid=697344) INFO processing 16 requests, none of them failed',
      '(EngineCore pid=41) WARNING the fast tokenizer failed to load',
      'Started engine process with PID 4242',
      'The engine is paused between two tokens.',
      'Internal Server Error',
      'the search engine core index is dead slow',
    ],
  ],
];

for (const [what, says, yes, no] of words) {
  test(`${what}: what says so, and what only sounds like it`, () => {
    for (const text of yes) assert.equal(says(text), true, text);
    for (const text of no) assert.equal(says(text), false, text);
  });
}

describe('the breaker', () => {
  const limits = { maxFailedShare: 0.5, maxFailedGroups: 3 };
  const broken = rollout('infra_failure', 'Error: sandbox is gone\n    at play');

  test('however a round is cut in parts, the parts add up to it', () =>
    fc.assert(
      fc.property(anyGroups, fc.nat(12), (groups, at) => {
        const parts = addFailures(countFailures(groups.slice(0, at)), countFailures(groups.slice(at)));
        assert.deepEqual(parts, countFailures(groups));
        assert.deepEqual(addFailures(noFailures, parts), parts);
      }),
    ));

  test('of a traceback what was said and where it was thrown is told, not the way there', () => {
    const said = 'Error: no disk left\n    at play (my-env.ts:30:19)\n    at score (score.ts:67:49)\n    at async all';
    const { causes } = countFailures([group(1, [rollout('infra_failure', said)])]);
    assert.equal(causes.infra_failure?.first, 'Error: no disk left\n    at play (my-env.ts:30:19)');
    const endless = countFailures([group(1, [rollout('infra_failure', 'x'.repeat(5_000))])]).causes.infra_failure!
      .first;
    assert.ok(endless.length <= 600 && endless.endsWith('…'));
  });

  test('every rollout without a reward is counted under one cause', () =>
    fc.assert(
      fc.property(anyGroups, (groups) => {
        const { causes, failedRollouts, failedGroups } = countFailures(groups);
        const all = groups.flatMap(({ rollouts }) => rollouts);
        assert.equal(failedRollouts, all.filter(({ reward }) => reward === null).length);
        assert.equal(
          Object.values(causes).reduce((sum, { count }) => sum + count, 0),
          failedRollouts,
        );
        assert.ok(failedGroups <= failedRollouts && failedGroups <= groups.length);
      }),
    ));

  test('prompts that are too long are their examples’ own: they never open it, and hide nothing', () => {
    const overlong = (ordinal: number) => group(ordinal, [rollout('overlong_prompt', 'The prompt has 9 tokens')]);
    const failed = (ordinal: number) => group(ordinal, [broken, broken]);
    const long = Array.from({ length: 9 }, (_, i) => overlong(i));
    const counted = countFailures(long);
    assert.equal(breakerReason(counted, limits), null);
    assert.deepEqual([counted.failedRollouts, counted.failedGroups, counted.causes.overlong_prompt?.count], [9, 0, 9]);
    const all = [...long, failed(20), failed(21)];
    assert.match(
      breakerReason(countFailures(all), limits) ?? '',
      /4 of 4 rollouts failed/,
      'of those that could be played',
    );
    const row = [failed(1), overlong(2), failed(3), overlong(4), failed(5)];
    const open = { maxFailedShare: 1, maxFailedGroups: 3 };
    assert.match(breakerReason(countFailures(row), open) ?? '', /3 groups in a row/);
  });

  test('rollouts that took too long are no share of what infrastructure failed; groups lost to nothing else in a row are', () => {
    const late = (ordinal: number) => group(ordinal, [rollout('timeout'), rollout('timeout')]);
    const whole = (ordinal: number) => group(ordinal, [rollout(1), rollout(0)]);
    const failed = (ordinal: number) => group(ordinal, [broken, broken]);
    const open = { maxFailedShare: 0.5, maxFailedGroups: 4 };
    const mostlyLate = [late(1), late(2), whole(3), late(4), late(5), late(6)];
    assert.equal(breakerReason(countFailures(mostlyLate), open), null);
    assert.equal(breakerReason(addFailures(countFailures(mostlyLate), countFailures([whole(7)])), open), null);
    assert.match(breakerReason(countFailures([...mostlyLate, late(7)]), open) ?? '', /4 groups in a row/);
    assert.match(
      breakerReason(countFailures([...mostlyLate, whole(7), failed(8), failed(9), failed(10)]), open) ?? '',
      /^6 of 10 rollouts failed \(60%/,
    );
  });

  test('it opens above the share, and after so many groups in a row; one group alone never opens it', () => {
    const whole = (ordinal: number) => group(ordinal, [rollout(1), rollout(0)]);
    const failed = (ordinal: number) => group(ordinal, [broken, broken]);
    assert.equal(breakerReason(countFailures([failed(1)]), limits), null);
    assert.equal(breakerReason(countFailures([failed(1), failed(2), whole(3), whole(4)]), limits), null);
    assert.match(breakerReason(countFailures([failed(1), whole(2), failed(3)]), limits) ?? '', /4 of 6 rollouts.*67%/);
    const row = [whole(1), whole(2), whole(3), whole(4), failed(5), failed(6), failed(7)];
    assert.match(breakerReason(countFailures(row), limits) ?? '', /3 groups in a row/);
    assert.equal(breakerReason(countFailures([...row, whole(8)]), limits), null);
  });

  test('one rollout in ten that fails pauses no run: a group is trained on the rest of it', () => {
    const groupsOfRound = 8;
    const pausedAt = (seed: number, failedShare: number): number | null => {
      for (let step = 1; step <= 200; step++) {
        const round = Array.from({ length: groupsOfRound }, (_, g) => {
          const outcomes = Array.from({ length: 16 }, (_, i) =>
            uniform(seed, step, g, i) < failedShare ? broken : rollout(i % 2),
          );
          return group(step * groupsOfRound + g, outcomes);
        });
        const failures = countFailures(round);
        assert.equal(failures.failedGroups, round.filter((group) => isLost(group)).length);
        if (breakerReason(failures, { maxFailedShare: 0.5, maxFailedGroups: 10 }) !== null) return step;
        if (failedShare <= 0.1) assert.equal(failures.failedGroups, 0);
      }
      return null;
    };
    for (const share of [0.02, 0.05, 0.1, 0.3]) {
      assert.deepEqual(
        [1, 2, 3].map((seed) => pausedAt(seed, share)),
        [null, null, null],
        `${share}`,
      );
    }
    assert.ok((pausedAt(1, 0.6) ?? 200) < 5, 'more than half is too much');
  });

  test('the report names every cause with its count, the first words of it, and what helps', () => {
    const groups = [
      group(1, [broken, rollout('oom', 'CUDA out of memory')]),
      group(2, [rollout('infra_failure', 'another'), rollout(1)]),
    ];
    const [first, second] = describeFailures(countFailures(groups).causes);
    assert.match(first ?? '', /^2 × environment errors \(infra_failure\), the first: Error: sandbox is gone/);
    assert.match(second ?? '', /^1 × out of memory.*fewer rollouts at once.*\[lora\].*micro_batch_size.*more memory/);
  });
});

describe('signal', () => {
  test('every group with a reward is in one bin of the histogram', () =>
    fc.assert(
      fc.property(fc.array(fc.array(fc.option(fc.double({ min: -1, max: 2, noNaN: true })))), (groups) => {
        const counts = meanHistogram(groups);
        const rewarded = groups.filter((rewards) => rewards.some((reward) => reward !== null)).length;
        assert.equal(
          counts.reduce((sum, count) => sum + count, 0),
          rewarded,
        );
        assert.equal(counts.length, meanBins.length);
      }),
    ));

  test('the widened filter keeps exactly the groups whose rewards differ', () =>
    fc.assert(
      fc.property(fc.array(fc.integer({ min: -3, max: 3 }), { minLength: 1 }), (rewards) => {
        assert.equal(judgeGroup(rewards, widenedBounds()).kept, new Set(rewards).size > 1);
      }),
    ));

  test('rewards too large to be compared are dropped before they make a gradient of NaN', () => {
    const verdict = judgeGroup([Number.MAX_VALUE, -Number.MAX_VALUE], widenedBounds());
    assert.deepEqual(verdict, { kept: false, reason: 'non_finite' });
  });

  test('a batch says how many of its tokens have an advantage, and takes nothing that is not finite', () => {
    const turn = { promptTokenIds: [1], tokenIds: [2, 3], logprobs: [-1, -1], text: '', policyStep: 0 };
    const said = (reward: number, logprob = -1): ScoredRollout => ({
      ...place,
      outcome: 'ok',
      reward,
      turns: [{ ...turn, finishReason: 'stop', logprobs: [-1, logprob] }],
    });
    const signal = (rollouts: readonly ScoredRollout[]) =>
      packSamples([group(1, rollouts)], { advantage: 'centered' }).stats.signalTokens;
    assert.equal(signal([said(1), said(0)]), 4);
    assert.equal(signal([said(0.3), said(0.3)]), 0);
    assert.throws(() => signal([said(1), said(0, Number.NaN)]), /log probability NaN/);
    assert.throws(() => signal([said(1), said(Number.NaN)]), /not be trained/);
  });
});

test('a traceback is kept without secrets: known shapes, and what the environment holds under their names', () => {
  const values = secretValues({ JUDGE_API_KEY: 'correct horse', PATH: '/usr/bin', OTHER_TOKEN: 'ab' });
  assert.deepEqual(values, ['correct horse']);
  const clean = withoutSecrets('401 for correct horse (sk-0123456789abcdef) in /usr/bin', values);
  assert.equal(clean, '401 for [secret] ([secret]) in /usr/bin');
});

test('connection strings and addresses that give access are secrets, and so are the passwords in them', () => {
  const of = (name: string, value: string) => secretValues({ [name]: value });
  const postgres = 'postgres://me:hunter%2F22@db/words';
  assert.deepEqual(of('DATABASE_URL', postgres), [postgres, 'hunter/22']);
  const several = 'mongodb://me:hunter22@one:1,two:2/words';
  assert.deepEqual(of('MONGO', several), [several, 'hunter22']);
  const settings = 'Server=db;Password=hunter22;Timeout=9';
  assert.deepEqual(of('STORAGE', settings), [settings, 'hunter22']);
  assert.deepEqual(of('LIBPQ', "host=db password='hunter 22'"), ["host=db password='hunter 22'", 'hunter 22']);
  assert.deepEqual(of('JDBC', 'jdbc:x://db/a?user=me&password=hunter22'), ['jdbc:x://db/a?user=me&password=hunter22', 'hunter22']); // prettier-ignore
  for (const name of ['SENTRY_DSN', 'DB_PASS', 'PGPASSWORD', 'MYSQL_PWD', 'GITHUB_PAT', 'APP_CONNECTION_STRING'])
    assert.deepEqual(of(name, 'hunter22'), ['hunter22'], name);
  const open = { PWD: '/home/someone', OLDPWD: '/home/someone', SERVER: 'http://127.0.0.1:8000/v1', BUCKET: 's3://runs/run-4f3a2b1c9d8e7f6a5b4c' }; // prettier-ignore
  assert.deepEqual(secretValues(open), []);
});

describe('the breaker of a run with several environments', () => {
  const limits = { maxFailedShare: 0.5, maxFailedGroups: 10 };
  const round = (outcomes: readonly (FailedOutcome | number)[]) =>
    countFailures(outcomes.map((outcome, i) => group(i + 1, [rollout(outcome, 'no disk left')])));
  const well = round([1, 1, 1, 1, 1, 1]);

  test('one that fails altogether is named, however small its share of the round', () => {
    const broken = round(['infra_failure', 'infra_failure']);
    const all = addFailures(well, broken);
    assert.equal(breakerReason(all, limits), null);
    const found = breakerAmong(
      all,
      new Map([
        ['maths', well],
        ['tools', broken],
      ]),
      limits,
    );
    assert.match(found!.reason, /^tools: 2 of 2 rollouts failed/);
    assert.deepEqual([found!.environment, Object.keys(found!.causes)], ['tools', ['infra_failure']]);
    assert.equal(breakerAmong(well, new Map([['maths', well]]), limits), null);
  });

  test('one that is drawn once in a step, and fails every time, is found when as many failed in a row', () => {
    let before = noFailures;
    for (let step = 1; step <= 9; step++) {
      before = addFailures(onlyRow(before), round(['timeout']));
      assert.equal(breakerReason(before, { ...limits, maxFailedShare: 1 }), null, `step ${step}`);
    }
    const tenth = addFailures(onlyRow(before), round(['timeout']));
    assert.match(breakerReason(tenth, { ...limits, maxFailedShare: 1 })!, /^10 groups in a row failed/);
    const mended = addFailures(onlyRow(before), round([1, 'timeout']));
    assert.equal(mended.failedGroupsInRow, 1);
  });
});
