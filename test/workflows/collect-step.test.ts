/** How the groups of a step are sampled, and when the run pauses rather than train on what is left of them. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { RatchetError } from '../../core/errors.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import { noFailures, type RoundFailures } from '../../core/rl/failures.ts';
import { unlimited } from '../../core/settings/budgets.ts';
import { decodeRanges, encodeRanges } from '../../core/rl/ledger.ts';
import type { FilteredGroups } from '../../core/rl/filters/filter-groups.ts';
import { type FakeRun, Gate, type Input, refOf } from './fake-run.ts';
import { evaluating } from './fake-evaluation.ts';
import { filtering, groupsIn } from './fake-training.ts';
import { aWhile, failureOf, timesContinued, until } from './look.ts';
import { begin, type BegunRun, closeServer, shortHistoryQueue } from './server.ts';

after(closeServer);

const oneStep = { maxSteps: 1 };
/** A difficulty filter that is widened where it keeps too few groups. */
const widening = {
  minRewardVariance: 0,
  minReward: 0.2,
  maxReward: 0.8,
  onlineDifficultyFiltering: false,
  keepsEqual: false,
  onStarvation: 'widen',
} as const;

type FilterCall = Parameters<Parameters<typeof filtering>[0]>[1];

/** Keeps these groups of a round alone; the others are dropped as too easy. */
async function keeping(ordinals: string, dropped: string, { usual }: FilterCall): Promise<FilteredGroups> {
  const filtered = await usual();
  return {
    ...filtered,
    kept: { ...filtered.kept, ordinals },
    ended: dropped === '' ? {} : { 'filtered:too_easy': dropped },
    solved: { all: dropped === '' ? 0 : 1, none: 0, some: 0 },
    means: [0, 0, 0, 0, 0, 1],
  };
}

/** Drops every group of a round. */
function dropping({ round: { first, last } }: Pick<Input<'playGroups'>, 'round'>, call: FilterCall) {
  return keeping('', first === last ? `${first}` : `${first}-${last}`, call);
}

const failures = (of: Partial<RoundFailures>): RoundFailures => ({
  ...noFailures,
  failedGroups: 2,
  causes: { infra_failure: { count: of.failedRollouts ?? 0, first: 'Error: no disk left' } },
  ...of,
});

function batches(run: BegunRun): string[] {
  return run.inputs('trainBatch').map(({ packed }) => groupsIn(run.fake, packed));
}

const surplusOf = (fake: FakeRun) =>
  fake.commits().map(({ state }) => state.surplus.map(({ ordinals }) => ordinals).join());

/** Gives the rows of each group so many tokens, and a signal only to these groups. */
function sized(tokens: number, isKept: (ordinal: number) => boolean = () => true) {
  return filtering(async (_, { usual }) => {
    const filtered = await usual();
    const all = decodeRanges(filtered.kept.ordinals);
    const kept = all.filter(isKept);
    const ended = encodeRanges(all.filter((ordinal) => !isKept(ordinal)));
    return {
      ...filtered,
      kept: { ...filtered.kept, ordinals: encodeRanges(kept), sizes: kept.map(() => tokens) },
      ended: ended === '' ? {} : { 'filtered:too_easy': ended },
      size: all.length * tokens,
    };
  });
}

describe('the groups of a step', { concurrency: 8 }, () => {
  test('a batch of so many tokens is as many groups as have them: how many are missing is told by those that are there', async () => {
    const run = await begin({ settings: { ...oneStep, batchSize: 16, tokenBatchSize: 95 }, fakes: sized(10) });
    const { ledger } = await run.result();
    assert.deepEqual(
      run.inputs('leaseGroups').map(({ count }) => count),
      [4, 6],
    );
    assert.deepEqual(batches(run), ['1-10']);
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 10]);
  });

  test('once so many tokens were sampled, what was kept of them is the batch where the file says so', async () => {
    const settings = { ...oneStep, batchSize: 16, tokenBatchSize: 75, batchFill: 'once' } as const;
    const run = await begin({ settings, fakes: sized(10, (ordinal) => ordinal % 2 === 0) });
    const { ledger } = await run.result();
    assert.deepEqual(batches(run), ['2,4,6,8']);
    assert.deepEqual([ledger.isSound, ledger.counts['trained'], ledger.issued], [true, 4, 8]);
  });

  test('half a batch is trained; with less another round is leased, for what is missing', async () => {
    const run = await begin({
      settings: { ...oneStep, batchSize: 16, batchFill: 'half' },
      fakes: filtering((input, call) => (call.nth === 1 ? keeping('2', '1,3-4', call) : call.usual())),
    });
    const { ledger } = await run.result();
    assert.deepEqual(
      run.inputs('leaseGroups').map(({ count }) => count),
      [4, 3],
    );
    assert.deepEqual(batches(run), ['2,5-7']);
    assert.deepEqual([ledger.isSound, ledger.counts['trained'], ledger.counts['filtered']], [true, 4, 3]);
  });

  test('a batch is sampled whole where nothing else is asked for; after four rounds half of it is enough', async () => {
    const few = filtering(({ round }, call) =>
      round.first <= 5 ? keeping(`${round.first}`, '', call) : keeping('', '', call),
    );
    const run = await begin({ settings: { ...oneStep, batchSize: 16 }, fakes: few });
    await run.result();
    assert.deepEqual(
      run.inputs('leaseGroups').map(({ count }) => count),
      [4, 3, 2, 2],
    );
  });

  test('a step trains on what one round kept where that is asked for', async () => {
    const run = await begin({
      settings: { ...oneStep, batchSize: 32, batchFill: 'once' },
      fakes: filtering((_, call) => keeping('3', '1-2,4-8', call)),
    });
    await run.result();
    assert.deepEqual([run.inputs('leaseGroups').length, batches(run)], [1, ['3']]);
  });

  test('exactly half a batch is enough where half of one is asked for', async () => {
    const run = await begin({
      settings: { ...oneStep, batchFill: 'half' },
      fakes: filtering((_, call) => keeping('1', '2', call)),
    });
    await run.result();
    assert.equal(run.inputs('leaseGroups').length, 1);
    assert.deepEqual(batches(run), ['1']);
  });

  test('more is leased than a batch needs where that is asked for; what is over waits for the next step', async () => {
    const run = await begin({ settings: { maxSteps: 2, oversamplingFactor: 1.5, maxOffPolicySteps: 1 } });
    const { ledger } = await run.result();
    assert.deepEqual(
      run.inputs('leaseGroups').map(({ count }) => count),
      [3, 2],
    );
    assert.deepEqual(batches(run), ['1-2', '3-4']);
    assert.deepEqual(surplusOf(run.fake), ['', '3', '5']);
    assert.deepEqual([ledger.isSound, ledger.pending, ledger.counts['trained']], [true, 1, 4]);
  });

  test('a group that is as old as it may be is trained, one that is older is stale', async () => {
    const [young, old] = await Promise.all(
      [1, 0].map(async (maxOffPolicySteps) => {
        const run = await begin({ settings: { maxSteps: 2, oversamplingFactor: 1.5, maxOffPolicySteps } });
        const { ledger } = await run.result();
        return { batches: batches(run), stale: ledger.counts['stale'] ?? 0, ledger };
      }),
    );
    assert.deepEqual([young!.batches, young!.stale], [['1-2', '3-4'], 0]);
    assert.deepEqual([old!.batches, old!.stale], [['1-2', '4-5'], 1]);
    assert.ok(old!.ledger.isSound);
  });

  test('eight rounds that keep nothing pause the run with what they were like; resumed, it samples on', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: filtering((input, call) => (call.nth <= 8 ? dropping(input, call) : call.usual())),
    });
    const reason = await run.paused();
    assert.match(
      reason,
      /^no-signal: 8 sampling rounds for step 1 kept 0 of the 2 groups a batch needs \(8 groups all right, 0 all wrong\)/,
    );
    assert.match(reason, /Mean rewards of the groups: 0\.3-0\.4: 8/);
    assert.match(reason, /resuming alone will not help/);
    assert.equal(run.inputs('leaseGroups').length, 8);
    await run.tell('resume');
    const { ledger } = await run.result();
    assert.deepEqual([ledger.isSound, ledger.counts['filtered'], ledger.counts['trained']], [true, 16, 2]);
  });

  test('a run that pauses for lack of signal names the version to go back to', async () => {
    const flagged = new Gate();
    const regression = {
      isWorse: true,
      best: { step: 0, name: 'v0', reward: 0.438 },
      reward: 0,
      difference: { mean: -0.438, low: -0.5, high: -0.4 },
      examples: 4,
    };
    const run = await begin({
      settings: { maxSteps: 3, eval: evaluating({ interval: 1, skipFirstStep: true }) },
      fakes: {
        recordEvaluation: async (_, { usual }) => ({ ...(await usual()), regression }),
        ...filtering(async (input, call) => {
          if (input.round.step === 1) return call.usual();
          await flagged.pass();
          return dropping(input, call);
        }),
      },
    });
    await until('the flag', async () => (await run.status().catch(() => null))?.regressions?.['words']?.step === 1);
    flagged.open();
    const reason = await run.paused();
    assert.match(reason, /^no-signal: 8 sampling rounds for step 2 .* harder examples\. /);
    assert.ok(
      reason.endsWith(
        `npx ratchet-rl rewind ${run.name} --step 0 goes back to the best evaluated version (regression: words fell from 0.438 (v0, the best so far) to 0.000 with v1: -0.438 per example, 95 % between -0.500 and -0.400 over 4 examples).`,
      ),
      reason,
    );
  });

  test('on_starvation = "widen" takes what the difficulty filter had left out, after four rounds', async () => {
    const run = await begin({
      settings: {
        ...oneStep,
        filter: widening,
      },
      fakes: filtering((input, call) =>
        input.widened ? keeping(`${input.round.first}`, `${input.round.last}`, call) : dropping(input, call),
      ),
    });
    await run.result();
    assert.equal(run.inputs('filterGroups').filter(({ widened }) => widened).length, 4);
    assert.equal(run.inputs('packBatch')[0]!.widened, true);
    assert.deepEqual(batches(run), ['1,3']);
    // A busy machine has warnings of its own.
    const told = (await run.told('warning')).filter((text) => text.includes('[difficulty_filter]'));
    assert.equal(told.length, 1);
    assert.match(
      told[0]!,
      /^step 1: \[difficulty_filter\] widened after 4 sampling rounds: they kept 0 of the 2 groups a batch needs \(4 groups all right, 0 all wrong\)\. This step now takes every group whose rewards differ.*solves nearly all .*npx ratchet-rl stop /,
    );
  });

  test('what widening means is told once, however often a run widens and continues as new', async () => {
    const run = await begin({
      settings: { ...oneStep, maxSteps: 4, filter: widening },
      taskQueue: shortHistoryQueue,
      fakes: filtering((input, call) =>
        input.widened ? keeping(`${input.round.first}`, `${input.round.last}`, call) : dropping(input, call),
      ),
    });
    await run.result();
    assert.ok((await timesContinued(run)) >= 1);
    const told = (await run.told('warning')).filter((text) => /widened after 4 sampling rounds/.test(text));
    assert.ok(told.length >= 2);
    assert.equal(told.filter((text) => /This step now takes/.test(text)).length, 1);
  });

  test('a batch without any advantage is not trained: its groups are not trained and others are sampled', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: { packBatch: async (_, { nth, usual }) => ({ ...(await usual()), hasSignal: nth > 1 }) },
    });
    const { ledger } = await run.result();
    assert.deepEqual(batches(run), ['3-4']);
    assert.deepEqual([ledger.isSound, ledger.counts['filtered'], ledger.counts['trained']], [true, 2, 2]);
    const told = (await run.told('warning')).join('\n');
    assert.match(told, /no token of 2 groups has an advantage; they are not trained/);
  });

  test('when too many rollouts fail the run pauses with the cause; resumed, they are forgotten', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: filtering(async (_, call) =>
        call.nth === 1
          ? {
              ...(await keeping('', '', call)),
              ended: { failed: '1-2' },
              failures: failures({ rollouts: 8, failedRollouts: 8, failedGroups: 2 }),
            }
          : { ...(await call.usual()), failures: failures({ rollouts: 8, failedRollouts: 1 }) },
      ),
    });
    assert.match(
      await run.paused(),
      /^breaker: 8 of 8 rollouts failed \(100%.* for step 1: 8 × environment errors.*no disk left/,
    );
    assert.equal(run.inputs('trainBatch').length, 0);
    await run.tell('resume');
    const { ledger } = await run.result();
    assert.deepEqual([ledger.isSound, ledger.counts['failed'], ledger.counts['trained']], [true, 2, 2]);
    assert.equal((await run.told('paused')).length, 1);
  });

  test('half of the rollouts may fail, and no more', async () => {
    const shares = [4, 5].map(async (failedRollouts) => {
      const run = await begin({
        settings: oneStep,
        fakes: filtering(async (_, { usual }) => ({
          ...(await usual()),
          failures: failures({ rollouts: 8, failedRollouts }),
        })),
      });
      const how = await run.paused().then(
        () => 'pauses',
        () => 'continues',
      );
      if (how === 'pauses') await run.handle.terminate();
      return how;
    });
    assert.deepEqual(await Promise.all(shares), ['continues', 'pauses']);
  });

  test('of two environments the one that breaks is named, and the other is said to be well', async () => {
    const named = (name: string) => ({ ...specEnvironment, name });
    const broken = { failures: failures({ rollouts: 4, failedRollouts: 4 }), means: [] };
    const well = { failures: noFailures, means: [1] };
    const run = await begin({
      settings: { ...oneStep, environments: [named('short'), named('long')] },
      fakes: filtering(async (_, { nth, usual }) => ({
        ...(await usual()),
        failures: failures({ rollouts: 4, failedRollouts: nth === 1 ? 4 : 0 }),
        environments: nth === 1 ? { long: broken } : { short: well },
      })),
    });
    assert.match(
      await run.paused(),
      /^breaker: long: 4 of 4 rollouts failed .* short had no failures\. Nothing of it was trained/,
    );
    await run.tell('resume');
    assert.equal((await run.result()).step, 1);
  });

  test('where every example is in a pool that is never drawn the run pauses; resumed, all are normal again', async () => {
    const pools = refOf('pools/all-easy.json');
    const run = await begin({
      settings: oneStep,
      fakes: {
        leaseGroups: (input, { nth, usual }) =>
          nth === 1 ? { round: null, chunks: [], curriculum: { ...input.curriculum, pools } } : usual(),
      },
    });
    assert.match(await run.paused(), /^no-examples: every example of reverse-text is in a difficulty pool/);
    await run.tell('resume');
    await run.result();
    assert.deepEqual(run.inputs('leaseGroups')[1]!.curriculum, initialCurriculum);
  });

  test('what an attempt leaves unfinished the next continues with; at the third deadline it is given up', async () => {
    const unfinished = { ...refOf('unfinished'), count: 3 };
    const ends = ['shutdown', 'deadline', 'cancelled', 'deadline'] as const;
    const run = await begin({
      settings: { ...oneStep, batchSize: 4 },
      fakes: {
        playGroups: async (input, { nth, usual }) => {
          const { parts, ...chunk } = await usual();
          const endedBy = ends[nth - 1];
          const left = { ...chunk, parts: [], unfinished, ...(endedBy ? { endedBy } : {}), adopted: nth };
          return endedBy === undefined ? { ...chunk, parts, adopted: 3 } : left;
        },
      },
    });
    await run.result();
    assert.deepEqual(
      run.inputs('playGroups').map(({ attempt, isLast }) => [attempt, isLast]),
      [
        [1, false],
        [2, false],
        [3, false],
        [4, false],
        [5, true],
      ],
    );
    assert.equal(
      (await run.events()).find(({ kind }) => kind === 'step')!.values['adopted'],
      1,
      'what the first attempt found',
    );
  });

  test('what failed of its environment is leased once more to be played elsewhere, and then stays as it is', async () => {
    const unfinished = { ...refOf('unfinished'), count: 1 };
    const run = await begin({
      settings: { ...oneStep, batchSize: 4 },
      fakes: {
        playGroups: async ({ leavesFailed }, { usual }) => {
          const chunk = await usual();
          return leavesFailed ? { ...chunk, parts: [], unfinished, endedBy: 'failures' } : chunk;
        },
      },
    });
    await run.result();
    assert.deepEqual(
      run.inputs('playGroups').map(({ attempt, leavesFailed, isLast }) => [attempt, leavesFailed, isLast]),
      [
        [1, true, false],
        [2, false, false],
      ],
    );
  });

  test('a server that is not ready pauses the run, which continues with the same rollouts', async () => {
    const notReady = { since: '2026-01-01T00:00:00Z', message: 'connection refused' };
    const run = await begin({
      settings: { ...oneStep, batchSize: 4 },
      fakes: {
        playGroups: async (_, { nth, usual }) => {
          const chunk = await usual();
          const left = { ...chunk, parts: [], unfinished: { ...refOf('unfinished'), count: 3 }, rollouts: 1, notReady };
          return nth === 1 ? left : chunk;
        },
      },
    });
    assert.equal(
      await run.paused(),
      'no-signal: the inference server is not ready since 2026-01-01T00:00:00Z: connection refused (3 rollouts wait, 1 are finished.)',
    );
    assert.equal(run.inputs('playGroups').length, 1);
    await run.tell('resume');
    await run.result();
    assert.deepEqual(
      run.inputs('playGroups').map(({ attempt, round }) => [attempt, round.first]),
      [
        [1, 1],
        [2, 1],
      ],
    );
  });

  test('a run whose budget is used up pauses, and goes on with the same rollouts once it was given more', async () => {
    const overBudget = "The run's budget of 100 tokens is used up.";
    const run = await begin({
      settings: { ...oneStep, batchSize: 4, budget: { ...unlimited, tokens: 100 } },
      fakes: {
        playGroups: async (_, { nth, usual }) => {
          const chunk = await usual();
          const unfinished = { ...refOf('unfinished'), count: 3 };
          return nth === 1 ? { ...chunk, parts: [], unfinished, rollouts: 1, endedBy: 'budget', overBudget } : chunk;
        },
      },
    });
    assert.equal(await run.paused(), `budget: ${overBudget}`);
    const refused = await failureOf(run.tell('set', { 'budget.money': 3 }));
    assert.match(refused, /budget.money: this run has no prices/);
    assert.match(await run.tell('set', { 'budget.tokens': 200 }), /budget.tokens 100 → 200\nfor calls from now on/);
    assert.deepEqual(
      run.inputs('setBudget').map(({ limits }) => limits),
      [{ tokens: 200 }],
    );
    await run.tell('resume');
    await run.result();
    assert.deepEqual(
      run.inputs('playGroups').map(({ attempt, isLast }) => [attempt, isLast]),
      [
        [1, false],
        [2, false],
      ],
    );
  });

  test('a worker of another version is reported once, however many leases find it', async () => {
    const line = 'the rollout worker 56@old-box is of another version: restart it';
    const run = await begin({
      settings: { maxSteps: 3 },
      fakes: { leaseGroups: async (_, { usual }) => ({ ...(await usual()), otherVersions: [line] }) },
    });
    await run.result();
    assert.ok(run.inputs('leaseGroups').length >= 3);
    assert.deepEqual(await run.told('warning'), [line]);
  });

  test('round by round nothing is decided before all chunks of it have ended', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { ...oneStep, batchSize: 64 },
      fakes: {
        playGroups: async ({ chunk }, { usual }) => {
          if (chunk.index === 0) await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await aWhile();
    assert.deepEqual([run.inputs('playGroups').length, run.inputs('packBatch').length], [2, 0]);
    gate.open();
    await run.result();
    const { trained } = run.inputs('packBatch')[0]!;
    assert.deepEqual(
      trained.map(({ ordinals }) => ordinals),
      ['1-8', '9-16'],
      'in their order, whoever was first',
    );
  });

  test('where every chunk of a round fails for good the run fails with the first, and nothing else', async () => {
    const run = await begin({
      settings: { ...oneStep, batchSize: 64 },
      fakes: {
        playGroups: ({ chunk }) => {
          throw new RatchetError('Unsupported', `chunk ${chunk.index + 1} cannot be played`);
        },
      },
    });
    await assert.rejects(run.handle.result(), (error: { cause?: { cause?: Error } }) => {
      assert.match(error.cause?.cause?.message ?? '', /chunk [12] cannot be played/);
      return true;
    });
  });

  test('no chunk holds groups of two environments, and the run says of which it waits', async () => {
    const gate = new Gate();
    const named = (name: string) => ({ ...specEnvironment, name });
    const run = await begin({
      settings: { ...oneStep, environments: [named('short'), named('long')] },
      fakes: {
        playGroups: async ({ chunk }, { usual }) => {
          if (chunk.environment === 'long') await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await until('the wait', async () =>
      (await run.status()).waitingOn.some(({ what }) => what.endsWith('from v0, of long')),
    );
    gate.open();
    await run.result();
    assert.deepEqual(
      new Set(run.inputs('playGroups').map(({ chunk }) => chunk.environment)),
      new Set(['long', 'short']),
    );
  });

  test('work that was lost on the way to a batch is in the commit of its step', async () => {
    const lost = { recoveries: 1, rollouts: 5, tokens: 100, seconds: 2 };
    const run = await begin({
      settings: { ...oneStep, batchSize: 4 },
      fakes: { playGroups: async (_, { usual }) => ({ ...(await usual()), lost }) },
    });
    await run.result();
    assert.deepEqual((await run.status()).lost, lost);
    const { metrics } = run.fake.commits()[1]!;
    assert.deepEqual(
      Object.entries(metrics)
        .filter(([name]) => /lost|recover/.test(name))
        .map(([, value]) => value)
        .toSorted((a, b) => a - b),
      [1, 2, 5, 100],
    );
  });

  test('a teacher is asked of a packed batch before the step is planned', async () => {
    const run = await begin({
      settings: { ...oneStep, teacher: { role: 'scores' } as never },
    });
    await run.result();
    assert.deepEqual(run.order('packBatch', 'askTeacher', 'trainBatch'), ['packBatch', 'askTeacher', 'trainBatch']);
    assert.equal(run.inputs('trainBatch')[0]!.taught?.teacher, 'the teacher');
    assert.equal(run.fake.commits()[1]!.metrics['train/teacher_kl'], 0.25);
  });

  test('an activity that fails for now is tried again, and nothing is sampled twice for it', async () => {
    const run = await begin({
      settings: oneStep,
      fakes: {
        playGroups: (_, { nth, usual }) => {
          if (nth === 1) throw new Error('the judge is away');
          return usual();
        },
      },
    });
    const { ledger } = await run.result();
    assert.ok(ledger.isSound);
    assert.deepEqual([run.inputs('playGroups').length, run.inputs('leaseGroups').length], [2, 1]);
  });
});

const specEnvironment = { id: 'reverse-text', name: 'reverse-text', args: {}, weight: 1, pools: null };
