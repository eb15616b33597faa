/** Searches for better prompts that branch off a run: what becomes of a winner, and of a branch whose run goes elsewhere. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { RatchetError } from '../../core/errors.ts';
import type { PromptBranchSpec, RunSpec } from '../../config/run-spec.ts';
import type { PromptSlice } from '../../core/gepa/leases.ts';
import { answeredLease, leasing } from './fake-evaluation.ts';
import { type Fakes, Gate, holdingStep } from './fake-run.ts';
import { failureOf, until } from './look.ts';
import { begin, type BegunRun, closeServer } from './server.ts';

after(closeServer);

function branching(of: Partial<PromptBranchSpec> = {}): Partial<RunSpec> {
  return {
    maxSteps: 3,
    gepa: {
      interval: null,
      atSteps: [1],
      environments: ['reverse-text'],
      reflectionModel: 'mock',
      url: 'http://127.0.0.1:9/v1',
      apiKeyVar: null,
      maxCalls: 20,
      numTrain: 6,
      numVal: 4,
      numTest: 2,
      minibatchSize: 3,
      perfectScore: null,
      stateColumns: [],
      maxConcurrent: 8,
      adopt: 'if_better',
      ...of,
    },
  };
}

/** Groups of a step are leased only once the branch has come to its end. */
function leasingAfter(run: () => BegunRun, step: number): Fakes {
  return {
    playGroups: async ({ round }, { usual }) => {
      if (round.step === step) await until('the verdict', async () => (await run().told('prompt')).length > 0);
      return usual();
    },
  };
}

const promptsOf = (run: BegunRun) =>
  run.inputs('leaseGroups').map(({ step, prompts }) => [step, prompts?.['reverse-text']?.foundAt ?? null]);

async function begun(settings: Partial<RunSpec>, fakes: Fakes = {}): Promise<BegunRun> {
  let run: BegunRun | null = null;
  run = await begin({ settings, fakes: { ...leasingAfter(() => run!, 2), ...fakes } });
  return run;
}

/** A branch that stays under way. */
function holding(gate: Gate): Fakes {
  return {
    playGroups: (_, { usual }) => usual(),
    ...leasing({
      search: async (_, { usual }) => {
        await gate.pass();
        return usual();
      },
    }),
  };
}

/** Each with its slices, all of the trial. */
const trialLeases = (run: BegunRun) =>
  run.inputs('answerSearch').flatMap(({ work, policy }) => {
    const isTrial = work.kind === 'slices' && work.slices[0]!.id.startsWith('trial.');
    return isTrial ? [{ policy, slices: work.slices }] : [];
  });

/** Plays slices of a trial as given, all else at once. */
const trying = (play: (slices: readonly PromptSlice[]) => Promise<number>): Fakes => ({
  answerSearch: async (lease) => {
    const { work } = lease;
    const isTrial = work.kind === 'slices' && work.slices[0]!.id.startsWith('trial.');
    return answeredLease(lease, isTrial ? await play(work.slices) : 0.01);
  },
});

const childOf = (run: BegunRun, step = 1) => run.client.workflow.getHandle(`${run.name}.gepa.reverse-text.v${step}`);

describe('a branch that looks for a better prompt', { concurrency: 8 }, () => {
  test('whose winner is better beyond chance: groups are leased with it from the next step on, and commits say so', async () => {
    const run = await begun(branching());
    await run.result();
    assert.deepEqual(promptsOf(run), [
      [1, null],
      [2, null],
      [3, 1],
    ]);
    assert.deepEqual(
      run.fake.commits().map(({ state }) => state.prompts?.['reverse-text']?.foundAt ?? null),
      [null, null, 1, 1],
    );
    assert.deepEqual(
      run.fake.commits().map(({ state }) => state.pendingBranches?.length ?? 0),
      [0, 1, 0, 0],
    );
    assert.match((await run.told('prompt'))[0]!, /it is in use for groups that are leased from now on$/);
    assert.equal(run.inputs('recordTrial')[0]!.policy.step, 1, 'on the newest version');
  });

  test('whose trial has quick rollouts: one lease tells so, and one worker plays the rest', async () => {
    const run = await begun(branching());
    await run.result();
    const ofSlice = ({ id, from, examples }: PromptSlice) => `${id} ${from}+${examples.length}`;
    const [current, winner] = ['trial.v1.current', 'trial.v1.winner'];
    assert.deepEqual(
      trialLeases(run).map(({ slices, policy }) => [slices.map(ofSlice), policy?.step]),
      [
        [[`${current} 0+2`], 1],
        [[`${current} 2+2`, `${winner} 0+2`, `${winner} 2+2`], 1],
      ],
    );
    assert.equal(run.inputs('recordTrial').length, 1);
  });

  test('whose trial has slow rollouts: they are leased to all workers, each once, and their scores are taken then', async () => {
    const run = await begun(
      branching(),
      trying(async () => 3),
    );
    await run.result();
    const played = trialLeases(run).flatMap(({ slices }) =>
      slices.flatMap(({ id, examples }) => examples.map((one) => `${id}#${one}`)),
    );
    assert.deepEqual(
      played.toSorted(),
      ['current', 'winner'].flatMap((prompt) => [0, 1, 2, 3].map((one) => `trial.v1.${prompt}#${one}`)),
    );
    assert.ok(trialLeases(run).length >= 4);
    assert.equal(run.order('answerSearch', 'recordTrial').at(-1), 'recordTrial');
    assert.equal(run.inputs('recordTrial').length, 1);
  });

  test('whose trial has a rollout that hangs: the others are leased meanwhile', async () => {
    const gate = new Gate();
    const run = await begun(
      branching(),
      trying(async ([slice]) => {
        if (slice!.id === 'trial.v1.current' && slice!.from === 0) await gate.pass();
        return 0.01;
      }),
    );
    await gate.reached;
    await until('leases of both prompts', () => {
      const of = (prompt: string) =>
        trialLeases(run).some(({ slices }) => slices.some(({ id, from }) => id === `trial.v1.${prompt}` && from > 0));
      return of('current') && of('winner');
    });
    assert.equal(run.inputs('recordTrial').length, 0);
    const { branch } = (await run.status()).prompts[0]!;
    assert.ok(branch!.trial!.leases >= 1 && branch!.trial!.rollouts >= 1);
    gate.open();
    await run.result();
    assert.match((await run.told('prompt'))[0]!, /it is in use for groups that are leased from now on$/);
  });

  test('whose trial is under way when the run ends: its leases are cancelled', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: branching(),
      fakes: {
        ...trying(async () => {
          await gate.pass();
          return 0.01;
        }),
        playGroups: async ({ round }, { usual }) => {
          if (round.step === 2) await gate.reached;
          return usual();
        },
      },
    });
    assert.equal((await run.result()).step, 3);
    gate.open();
    assert.equal(run.inputs('recordTrial').length, 0);
    assert.match((await run.told('prompt'))[0]!, /is cancelled: the run ends/);
  });

  test('whose winner is not better beyond chance: the prompt in use stays', async () => {
    const run = await begun(branching(), {
      recordTrial: async (_, { usual }) => ({ ...(await usual()), difference: { mean: 0.5, low: 0, high: 1 } }),
    });
    await run.result();
    assert.ok(promptsOf(run).every(([, foundAt]) => foundAt === null));
    assert.match((await run.told('prompt'))[0]!, /the prompt in use stays$/);
  });

  test('adopt = "ask" offers it, and takes it when somebody says so', async () => {
    const gate = new Gate();
    const run = await begun(branching({ adopt: 'ask' }), {
      ...holdingStep(gate, 2),
    });
    await gate.reached;
    assert.equal((await run.status()).prompts?.[0]?.offered?.foundAt, 1);
    assert.match(await failureOf(run.tell('adopt-prompt', 'other')), /expected one of reverse-text, got "other"/);
    assert.match(
      await run.tell('adopt-prompt', null),
      /^reverse-text: .* is its system prompt for groups that are leased from the next step on/,
    );
    assert.match(await failureOf(run.tell('adopt-prompt', null)), /no prompt that was found waits for a yes/);
    gate.open();
    await run.result();
    assert.deepEqual(promptsOf(run).at(-1), [3, 1]);
  });

  test('an offer that nobody answers is in the commits, and is said at the end', async () => {
    const run = await begun(branching({ adopt: 'ask' }));
    await run.result();
    assert.equal(run.fake.commits()[3]!.state.offeredPrompts?.['reverse-text']?.foundAt, 1);
    assert.match(
      (await run.told('prompt')).at(-1)!,
      /no answer came: the prompt for reverse-text that was found from v1 is not in use/,
    );
  });

  test('adopt = "never" tells where it is, and changes nothing', async () => {
    const run = await begun(branching({ adopt: 'never' }));
    await run.result();
    assert.match((await run.told('prompt'))[0]!, /the prompt in use stays \(adopt = "never"\)/);
    assert.equal(run.fake.commits()[3]!.state.offeredPrompts, undefined);
  });

  test('that finds nothing better says so, and nothing is tried', async () => {
    const run = await begun(branching(), {
      closePromptSearch: async (_, { usual }) => ({ ...(await usual()), best: 0, bestPrompt: null }),
    });
    await run.result();
    assert.match(
      (await run.told('prompt'))[0]!,
      /^gepa: no better prompt for reverse-text from v1 in \d+ calls; it stays$/,
    );
    assert.equal(run.inputs('recordTrial').length, 0);
  });

  test('that fails harms nobody and says so', async () => {
    const run = await begun(branching(), {
      playGroups: (_, { usual }) => usual(),
      openPromptSearch: () => {
        throw new RatchetError('EnvironmentBroken', 'no examples.');
      },
    });
    assert.equal((await run.result()).step, 3);
    const warnings = await run.told('warning');
    assert.deepEqual(
      warnings.filter((text) => text.startsWith('gepa:')),
      [
        `gepa: the branch of v1 on reverse-text failed, and the run continues without it: no examples. Once that is repaired: npx ratchet-rl gepa branch ${run.name} --env reverse-text`,
      ],
    );
  });

  test('that is under way when the run ends is cancelled, and that is said', async () => {
    const run = await begun(branching(), holding(new Gate()));
    await run.result();
    assert.match(await failureOf(childOf(run).result()), /Cancelled/);
    assert.match((await run.told('prompt'))[0]!, /^gepa: the branch of v1 on reverse-text is cancelled: the run ends/);
  });

  test('of a run that fails is cancelled with it, as of one that is cancelled', async () => {
    const ends = ['fails', 'is cancelled'].map(async (how) => {
      const [gate, training] = [new Gate(), new Gate()];
      const run = await begun(branching(), {
        ...holding(gate),
        trainBatch: async ({ step }, { usual }) => {
          if (step !== 2) return usual();
          await training.pass();
          throw new RatchetError('ModelUnsupported', 'no such thing');
        },
      });
      await Promise.all([gate.reached, training.reached]);
      if (how === 'fails') training.open();
      else await run.handle.cancel();
      const end = await failureOf(run.result());
      assert.match(await failureOf(childOf(run).result()), /Cancelled/);
      return end;
    });
    const [failed, cancelled] = await Promise.all(ends);
    assert.match(failed!, /no such thing/);
    assert.match(cancelled!, /Cancelled/);
  });

  test('a rewind leaves it, and takes back the prompt that came after', async () => {
    const gate = new Gate();
    const run = await begun(branching(), {
      trainBatch: async ({ step, run: { lineage } }, { usual }) => {
        if (step === 3 && lineage === 'main') await gate.pass();
        return usual();
      },
    });
    await gate.reached;
    assert.equal((await run.status()).prompts?.[0]?.inUse?.foundAt, 1);
    await run.tell('rewind', 0);
    gate.open();
    await run.result();
    const later = run.inputs('leaseGroups').filter((input) => input.run.lineage === 'l2');
    assert.equal(later[0]!.prompts, undefined);
  });

  test('can be asked for, one of an environment at a time; what cannot be is refused', async () => {
    const [gate, training] = [new Gate(), new Gate()];
    const run = await begun(branching({ atSteps: [] }), {
      ...holding(gate),
      trainBatch: async ({ step }, { usual }) => {
        if (step === 2) await training.pass();
        return usual();
      },
    });
    await training.reached;
    assert.match(await failureOf(run.tell('gepa-branch', 'other')), /expected one of reverse-text, got "other"/);
    assert.match(
      await run.tell('gepa-branch', null),
      /^Branched off v1: a better prompt is looked for on reverse-text, 20 calls at most each/,
    );
    await gate.reached;
    assert.match(await failureOf(run.tell('gepa-branch', 'reverse-text')), /is under way already/);
    training.open();
    await run.result();
  });

  test('without [gepa] none can be asked for', async () => {
    const gate = new Gate();
    const run = await begin({
      fakes: {
        trainBatch: async (_, { usual }) => {
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    assert.match(await failureOf(run.tell('gepa-branch', null)), /the run file has no \[gepa\]/);
    gate.open();
    await run.result();
  });

  test('that was due when the run died is begun by the execution that continues', async () => {
    const gate = new Gate();
    const first = await begun(branching(), {
      holdVersion: async (_, { usual }) => {
        await gate.pass();
        return usual();
      },
      playGroups: async ({ round }, { usual }) => {
        if (round.step === 2) await gate.pass();
        return usual();
      },
    });
    await gate.reached;
    await first.atStep(1);
    await first.handle.terminate();
    let second: BegunRun | null = null;
    second = await begin({ fake: first.fake, fakes: leasingAfter(() => second!, 2) });
    await second.result();
    assert.deepEqual(promptsOf(second).at(-1), [3, 1]);
  });

  test('servers that hold one version are its alone while it runs', async () => {
    const gate = new Gate();
    let isTogether = false;
    const run = await begun(branching(), {
      holdVersion: () => 'single',
      playGroups: async ({ round }, { usual }) => {
        if (round.step === 1) return usual();
        isTogether ||= run.inputs('answerSearch').length > 0 && run.inputs('recordTrial').length === 0;
        return usual();
      },
    });
    gate.open();
    await run.result();
    assert.equal(isTogether, false);
    assert.match((await run.told('warning'))[0]!, /no training rollout is sampled while it runs$/);
  });
});
