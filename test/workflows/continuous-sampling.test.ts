/** Groups sampled across steps: what `max_async_level` above 1 does, and 1 where rollouts are slow. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { Context } from '@temporalio/activity';
import type { LeasedChunk, RoundChunk } from '../../core/rl/sampling/chunks.ts';
import { tellParts } from '../../activities/around/tell-parts.ts';
import { decodeRanges, encodeRanges } from '../../core/rl/ledger.ts';
import { type PlayedPart, restrictPart } from '../../core/rl/rollout/played-part.ts';
import { rolloutsWorkflowId } from '../../core/names.ts';
import type { SamplingRound } from '../../core/rl/run-state.ts';
import { RatchetError } from '../../core/errors.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { type Fakes, Gate, holdingStep, type Input, refOf } from './fake-run.ts';
import { groupsIn } from './fake-training.ts';
import { aWhile, failureOf, timesContinued, until } from './look.ts';
import { begin, type BegunRun, closeServer, shortHistoryQueue } from './server.ts';

after(closeServer);

/** Batches of 16 groups, in chunks of 8. */
const continuous = { maxSteps: 6, maxAsyncLevel: 2, batchSize: 64 };

/** The first leased group stays unfinished until it is released; the others of its chunk are reported. */
function holdingFirst(gate: Gate): Fakes {
  return {
    playGroups: async ({ run: { lineage }, round, chunk, tells }, { usual }) => {
      const played = await usual();
      if (!isFirst(round, chunk)) return played;
      for (const part of played.parts) await tellOthers(tells, lineage, part);
      await gate.pass();
      return played; // all of it once more
    },
  };
}

/** Reports all groups of a part except the first leased one. */
async function tellOthers(tells: string | undefined, lineage: string, part: PlayedPart): Promise<void> {
  const ended = restrictPart(part, new Set(decodeRanges(part.ordinals).filter((ordinal) => ordinal > 1)));
  if (ended) assert.ok(await tellParts(tells, { lineage }, ended));
}

const isFirst = (round: SamplingRound, chunk: RoundChunk): boolean => round.first === 1 && chunk.index === 0;

function trained(run: BegunRun): number[][] {
  const steps = run.inputs('trainBatch').map(({ step, packed }) => [step, packed] as const);
  // A busy machine may have tried a step again.
  return [...new Map(steps).values()].map((packed) => decodeRanges(groupsIn(run.fake, packed)));
}

/** Workflows that generate its rounds, or did. */
async function flowsOf({ client, handle }: BegunRun): Promise<{ workflowId: string; status: string }[]> {
  const found = [];
  const query = `WorkflowType='playRounds' AND WorkflowId BETWEEN '${handle.workflowId}.' AND '${handle.workflowId}.~'`;
  for await (const { workflowId, status } of client.workflow.list({ query })) {
    found.push({ workflowId, status: status.name });
  }
  return found;
}

/** Whether a signal, or the result of an activity, with this text has come to the run. */
async function hasHeard({ handle }: BegunRun, text: string): Promise<boolean> {
  const { events } = await handle.fetchHistory();
  return (events ?? []).some((event) => {
    const { workflowExecutionSignaledEventAttributes: signal, activityTaskCompletedEventAttributes: done } = event;
    const payloads = [...(signal?.input?.payloads ?? []), ...(done?.result?.payloads ?? [])];
    return payloads.some(({ data }) =>
      Buffer.from(data ?? [])
        .toString()
        .includes(text),
    );
  });
}

/** Takes what was left out where round after round keeps nothing. */
const widening: RunSpec['filter'] = {
  minRewardVariance: 0,
  minReward: 0.2,
  maxReward: 0.8,
  onlineDifficultyFiltering: false,
  keepsEqual: false,
  onStarvation: 'widen',
};

/** Drops all groups, like the difficulty filter. */
function tooEasy(part: PlayedPart): PlayedPart {
  const { filtered, ordinals } = part;
  const groups = decodeRanges(ordinals).length;
  return {
    ...part,
    filtered: {
      ...filtered,
      kept: { ...filtered.kept, ordinals: '' },
      ended: { 'filtered:too_easy': ordinals },
      solved: { all: groups, none: 0, some: 0 },
    },
  };
}

/** Keeps only groups with even ordinals, like the difficulty filter. */
function everyOther(part: PlayedPart): PlayedPart {
  const { filtered, ordinals } = part;
  const [kept, dropped] = [0, 1].map((odd) =>
    encodeRanges(decodeRanges(ordinals).filter((ordinal) => ordinal % 2 === odd)),
  );
  return {
    ...part,
    filtered: { ...filtered, kept: { ...filtered.kept, ordinals: kept! }, ended: { 'filtered:too_easy': dropped! } },
  };
}

/** Groups; a lease that was asked for again on a busy machine counts once. */
function leasedBy(run: BegunRun): number {
  return Math.max(0, ...run.inputs('leaseGroups').map(({ curriculum, count }) => curriculum.nextOrdinal + count - 1));
}

const firstsOf = (inputs: readonly Input<'playGroups'>[]): number[] => inputs.map(({ round }) => round.first);

describe('groups sampled across steps', { concurrency: 8 }, () => {
  test('no step waits for one straggler: it is trained with the step that it comes for', async () => {
    const gate = new Gate();
    const run = await begin({ settings: continuous, fakes: holdingFirst(gate) });
    await run.atStep(3);
    assert.ok(trained(run).every((groups) => groups.length === 16 && groups[0]! > 1));
    gate.open();
    const { ledger } = await run.result();
    const groups = trained(run).flat();
    assert.ok(groups.includes(1), 'the straggler is trained');
    assert.equal(new Set(groups).size, groups.length, 'nothing is trained twice');
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 6 * 16]);
    const open = run.fake.commits().map(({ state }) => (state.open ?? []).map(({ first }) => first));
    assert.ok(open[1]!.includes(1), 'its commit names what is in play');
    const shares = run.fake.commits().flatMap(({ metrics }) => metrics['window/utilisation'] ?? []);
    assert.ok(
      shares.some((share) => share > 0) && shares.every((share) => share >= 0 && share < 2),
      `of the window: ${shares.join(', ')}`,
    );
  });

  test('a step waits for many that are late: what is trained first is not what is quick', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: continuous,
      fakes: {
        playGroups: async ({ round, chunk }, { usual }) => {
          if (isFirst(round, chunk)) await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    const waits = /; step 1 waits for 6 of them, or hard examples would be left out$/;
    await until('it says so', async () => (await run.status()).waitingOn.some(({ what }) => waits.test(what)));
    assert.deepEqual(trained(run), []);
    gate.open();
    const { ledger } = await run.result();
    assert.deepEqual(trained(run)[0]!.slice(0, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 6 * 16]);
  });

  test('groups are trained as they end, whatever becomes of the others of their chunk, and each once', async () => {
    const gate = new Gate();
    const run: BegunRun = await begin({
      settings: continuous,
      fakes: {
        playGroups: async ({ run: { lineage }, round, chunk, tells }, { usual }) => {
          const played = await usual();
          if (!isFirst(round, chunk)) return played;
          const [whole] = played.parts;
          const ended = restrictPart(whole!, new Set([2, 3, 4, 5, 6, 7, 8]))!;
          assert.ok(await tellParts(tells, { lineage }, ended));
          assert.ok(
            await tellParts(tells, { lineage: 'another' }, whole!),
            'of another lineage: it is none of its business',
          );
          await gate.pass();
          return played; // all of it once more
        },
        // The run could end before it hears of the first group.
        trainBatch: async (_, { nth, usual }) => {
          if (nth === 6) await until('the first group is reported', () => hasHeard(run, '"ordinals":"1-8","rollouts"'));
          return usual();
        },
      },
    });
    await run.atStep(3);
    assert.deepEqual(
      trained(run)[0]!.filter((ordinal) => ordinal <= 8),
      [2, 3, 4, 5, 6, 7, 8],
    );
    const named = run.fake.commits().map(({ state }) => (state.open ?? []).find(({ first }) => first === 1));
    assert.match(named[1]?.groups ?? '', /^1(?:,|$)/, 'its commit names what is in play');
    gate.open();
    const { ledger } = await run.result();
    const groups = trained(run).flat();
    assert.ok(groups.includes(1));
    assert.equal(new Set(groups).size, groups.length, 'nothing is trained twice');
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 6 * 16]);
  });

  test('groups that end while those before them are judged again are told of as well', async () => {
    const gate = new Gate();
    let judged: Promise<void> | null = null;
    const run: BegunRun = await begin({
      settings: { ...continuous, maxSteps: 2, maxOffPolicySteps: 20, filter: widening },
      fakes: {
        playGroups: async ({ round, chunk }, { usual }) => {
          if (isFirst(round, chunk)) await gate.pass();
          const played = await usual();
          return { ...played, parts: played.parts.map((part) => (isFirst(round, chunk) ? part : tooEasy(part))) };
        },
        // Groups end as fast as others are leased, and the filter is widened all the same.
        leaseGroups: async ({ curriculum: { nextOrdinal } }, { usual }) => {
          const isHeard = (): Promise<boolean> => hasHeard(run, `-${nextOrdinal - 1}","rollouts"`);
          if (nextOrdinal > 1) await until('those before have ended', async () => gate.isOpen || (await isHeard()));
          return usual();
        },
        filterGroups: async (_, { usual }) => {
          gate.open();
          judged ??= until('the first chunk is told of', () => hasHeard(run, '"ordinals":"1-8"')).then(aWhile);
          await judged;
          return usual();
        },
      },
    });
    const { ledger } = await run.result();
    assert.ok(judged, 'they were judged again');
    const before = run.inputs('leaseGroups').filter(({ step }) => step === 1);
    assert.ok(before.length <= 8, `${before.length} leases`);
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 2 * 16]);
  });

  test('sampling is fewer steps ahead where samples are far from what is trained', async () => {
    const gates = [new Gate(), new Gate()];
    const begun = [null, 0.1].map((maxMismatchKl, i) =>
      begin({
        settings: { ...continuous, maxSteps: 10, maxAsyncLevel: 8, maxConcurrent: 512, maxMismatchKl },
        fakes: {
          playGroups: async ({ round }, { usual }) => {
            if (round.step > 5) await gates[i]!.pass();
            return usual();
          },
          packBatch: async ({ step }, { usual }) => ({ ...(await usual()), metrics: { 'off_policy/mean': step - 1 } }),
          trainBatch: async (_, { usual }) => {
            const trained = await usual();
            const step = trained.policy?.step ?? 0;
            return { ...trained, metrics: { ...trained.metrics, mismatch_kl: 0.2 * (step - 1) + 0.01 } };
          },
        },
      }),
    );
    const [free, held] = await Promise.all(begun);
    const ahead = async (run: BegunRun, wanted: (groups: number) => boolean): Promise<void> => {
      const untrained = (): number => leasedBy(run) - trained(run).flat().length;
      await until(`${untrained()} groups are ahead`, () =>
        Promise.resolve(run.fake.commits().length > 4 && wanted(untrained())),
      );
    };
    await ahead(free!, (groups) => groups > 3 * 16);
    await ahead(held!, (groups) => groups > 0 && groups <= 2 * 16);
    await aWhile();
    await ahead(held!, (groups) => groups > 0 && groups <= 2 * 16);
    const drift = held!.fake.commits().map(({ state }) => state.drift);
    assert.deepEqual([drift[0], drift[1]], [undefined, { least: 0.01, perVersion: null, ahead: 1 }]);
    assert.ok(Math.abs(drift[3]!.perVersion! - 0.2) < 1e-9, `${drift[3]!.perVersion} nats a version`);
    for (const gate of gates) gate.open();
    for (const { ledger } of await Promise.all([free!.result(), held!.result()])) {
      assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 10 * 16]);
    }
  });

  test('a step trains on half a batch where that is asked for, once groups worth a batch have ended', async () => {
    const run = await begin({
      settings: { ...continuous, batchFill: 'half' },
      fakes: {
        playGroups: async (_, { usual }) => {
          const played = await usual();
          return { ...played, parts: played.parts.map(everyOther) };
        },
      },
    });
    const { ledger } = await run.result();
    const sizes = trained(run).map((groups) => groups.length);
    assert.ok(
      sizes.every((size) => size >= 8 && size <= 16) && sizes.some((size) => size < 16),
      `groups of each step: ${sizes.join(', ')}`,
    );
    assert.ok(ledger.isSound, 'all groups are accounted for');
  });

  test('sampling is as far ahead where groups end faster than others are leased', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: continuous,
      fakes: {
        ...holdingStep(gate),
        leaseGroups: async ({ curriculum }, { usual }) => {
          if (curriculum.nextOrdinal === 17)
            await until('the first batch has ended', () => hasHeard(run, '"ordinals":"9-16","rollouts"')).then(aWhile);
          return usual();
        },
      },
    });
    await until('the next batch is taken', () => run.inputs('packBatch').length === 2);
    await until('the third is leased while step 1 trains', () => leasedBy(run) === 3 * 16);
    assert.equal(run.fake.commits().length, 1, 'no step is committed yet');
    gate.open();
    const { ledger } = await run.result();
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 6 * 16]);
  });

  test('a batch that is taken while others are leased has nothing leased twice', async () => {
    const gate = new Gate();
    let isThirdLeased = false;
    const ended = (ordinals: string): Promise<void> =>
      until(`groups ${ordinals} have ended`, () => hasHeard(run, `"ordinals":"${ordinals}","rollouts"`)).then(aWhile);
    const run = await begin({
      settings: continuous,
      fakes: {
        ...holdingStep(gate),
        leaseGroups: async ({ curriculum }, { usual }) => {
          // By the first group and not by the call: a busy machine may try a lease again.
          if (curriculum.nextOrdinal === 17) await ended('9-16'); // the first batch is taken with the second leased
          if (curriculum.nextOrdinal !== 33) return usual();
          await until('the second batch is taken', () => run.inputs('packBatch').length === 2).then(aWhile);
          isThirdLeased = true;
          return usual();
        },
        packBatch: async (_, { nth, usual }) => {
          if (nth === 1) await ended('25-32');
          return usual();
        },
      },
    });
    await until('a third is leased', () => isThirdLeased);
    await aWhile();
    assert.equal(leasedBy(run), 3 * 16);
    gate.open();
    const { ledger } = await run.result();
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 6 * 16]);
  });

  const bounds = [{}, { maxAsyncLevel: 64, maxOffPolicySteps: 2 }].map((bound) => ({ ...continuous, ...bound }));
  for (const settings of bounds) {
    const by = `max_async_level ${settings.maxAsyncLevel}`;
    test(`sampling stays as many batches ahead of the newest version as may be trained, and waits there: ${by}`, () =>
      staysTwoAhead(settings));
  }

  async function staysTwoAhead(settings: typeof continuous): Promise<void> {
    const gate = new Gate();
    const run: BegunRun = await begin({
      settings,
      fakes: {
        ...holdingStep(gate),
        playGroups: async ({ round, chunk: { index } }, { usual }) => {
          // Stragglers of a batch that is taken hold up nobody: more would be leased. Later, groups before these may be given up unheard.
          const first = round.first + index * 8;
          const isHeard = (): Promise<boolean> => hasHeard(run, `-${first - 1}","rollouts"`);
          if (first > 1) await until('those before have ended', async () => gate.isOpen || (await isHeard()));
          return usual();
        },
      },
    });
    await until('the next batch is taken', () => run.inputs('packBatch').length === 2);
    await until('a third is leased', () => leasedBy(run) >= 3 * 16);
    await aWhile();
    const leased = run.inputs('leaseGroups');
    assert.equal(leasedBy(run), 3 * 16);
    assert.ok(leased.every(({ step }) => step <= 3));
    assert.equal(run.inputs('packBatch').length, 2, 'the third waits: what is late may be in it');
    gate.open();
    const { ledger } = await run.result();
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 6 * 16]);
  }

  test('what was leased long ago and begun late is as old as its first token', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { ...continuous, maxOffPolicySteps: 3 },
      fakes: {
        playGroups: async ({ run: { lineage }, round, chunk, tells }, { usual }) => {
          const played = await usual();
          if (!isFirst(round, chunk)) return played;
          const [part] = played.parts;
          const others = restrictPart(part!, new Set([3, 4, 5, 6, 7, 8]))!;
          assert.ok(await tellParts(tells, { lineage }, others));
          await gate.pass(); // the first two wait for a server, and are begun with what is served by then
          const kept = { ...part!.filtered.kept, oldest: [-1, 2, 2, 2, 2, 2, 2, 2] };
          return { ...played, parts: [{ ...part!, filtered: { ...part!.filtered, kept } }] };
        },
        trainBatch: async (_, { nth, usual }) => {
          if (nth === 3) gate.open(); // from v2
          if (nth === 3) await until('the run has heard of the late ones', () => hasHeard(run, '"oldest":[-1,2,2'));
          return usual();
        },
      },
    });
    const { ledger } = await run.result();
    const groups = trained(run).flat();
    assert.deepEqual(
      [1, 2, 3, 4, 5, 6, 7, 8].filter((ordinal) => groups.includes(ordinal)),
      [2, 3, 4, 5, 6, 7, 8],
      'of one of them a token was sampled long ago',
    );
    assert.deepEqual([ledger.isSound, ledger.counts['stale'], ledger.counts['trained']], [true, 1, 6 * 16]);
  });

  test('what has become too old to be trained is given up while it is played, and the ledger says so', async () => {
    const gate = new Gate();
    let isCancelled = false;
    const run = await begin({
      // One of 60 groups may become stale.
      settings: { ...continuous, batchSize: 80, maxOffPolicySteps: 3, inflightUpdates: 'never' },
      fakes: {
        playGroups: async ({ run: { lineage }, round, chunk, tells }, { usual }) => {
          const played = await usual();
          if (!isFirst(round, chunk)) return played;
          Context.current().cancelled.catch(() => (isCancelled = true));
          for (const part of played.parts) await tellOthers(tells, lineage, part);
          await gate.pass();
          return played;
        },
        // The run's end would tell it too.
        trainBatch: async (_, { nth, usual }) => {
          if (nth === 6) await until('its activity is told', () => isCancelled);
          return usual();
        },
      },
    });
    const { ledger } = await run.result();
    assert.deepEqual([ledger.isSound, ledger.counts['stale'], ledger.counts['trained']], [true, 1, 6 * 20]);
    assert.ok(!trained(run).flat().includes(1));
  });

  test('a long history continues as new with rounds in play: nothing is leased twice', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { ...continuous, maxSteps: 12, maxOffPolicySteps: 20 },
      taskQueue: shortHistoryQueue,
      fakes: holdingFirst(gate),
    });
    const inPlay = (): string[] =>
      run.fake.commits().flatMap(({ state }) => (state.open ?? []).flatMap(({ groups = [] }) => groups));
    const isPlayed = (groups: string): boolean => decodeRanges(groups).includes(1);
    await until('a commit names the straggler', () => inPlay().some(isPlayed));
    const before = await timesContinued(run);
    await until('it is continued with the straggler in play', async () => (await timesContinued(run)) > before);
    gate.open();
    const { ledger } = await run.result();
    const firsts = run.inputs('leaseGroups').map(({ curriculum }) => curriculum.nextOrdinal);
    assert.equal(new Set(firsts).size, firsts.length, 'nothing is leased twice');
    const groups = trained(run).flat();
    assert.equal(new Set(groups).size, groups.length, 'nothing is trained twice');
    assert.ok(groups.includes(1));
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 12 * 16]);
  });

  test('an execution after a loss takes up the rounds that the commit names, and those that were leased since', async () => {
    const gate = new Gate();
    const first = await begin({ settings: { ...continuous, maxSteps: 2 }, fakes: holdingFirst(gate) });
    await first.result();
    const [open] = first.fake.commits().at(-1)!.state.open ?? [];
    assert.equal(open?.first, 1, 'it ended with the straggler in play');
    first.fake.spec.maxSteps = 4;
    const second = await begin({ fake: first.fake });
    const { ledger } = await second.result();
    assert.ok(firstsOf(second.inputs('playGroups')).includes(1));
    assert.ok(trained(second).flat().includes(1));
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 4 * 16]);
    gate.open();
  });

  test('what is played for a run that was terminated ends when the run is begun again, and nothing is played beside it', async () => {
    const gate = new Gate();
    const fakes = holdingFirst(gate);
    const first = await begin({ settings: { ...continuous, maxOffPolicySteps: 20 }, fakes });
    await first.atStep(1);
    const [left] = await flowsOf(first);
    assert.equal(left?.status, 'RUNNING');
    await first.handle.terminate('by an operator');
    const second = await begin({ fake: first.fake, fakes });
    await until('the one that was left has ended', async () => {
      return (await flowsOf(second)).some(
        ({ workflowId, status }) => workflowId === left.workflowId && status === 'CANCELLED',
      );
    });
    gate.open();
    const { ledger } = await second.result();
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 6 * 16]);
  });

  test('a run that continues as new has its groups played on: nothing in play is begun again', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { ...continuous, maxSteps: 12, maxOffPolicySteps: 20 },
      taskQueue: shortHistoryQueue,
      fakes: holdingFirst(gate),
    });
    await until('it has continued as new twice', async () => (await timesContinued(run)) >= 2);
    await aWhile();
    const begun = (): number => run.inputs('playGroups').filter(({ round, chunk }) => isFirst(round, chunk)).length;
    assert.equal(begun(), 1, 'the straggler is where it was');
    gate.open();
    const { ledger } = await run.result();
    assert.equal(begun(), 1);
    assert.ok(trained(run).flat().includes(1), 'and it is trained');
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 12 * 16]);
    await until('nothing is played for nobody', async () =>
      (await flowsOf(run)).every(({ status }) => status !== 'RUNNING'),
    );
  });

  test('so are groups that may have no other weights than they began with', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { ...continuous, maxSteps: 12, maxOffPolicySteps: 20, inflightUpdates: 'never' },
      taskQueue: shortHistoryQueue,
      fakes: holdingFirst(gate),
    });
    await until('it has continued as new twice', async () => (await timesContinued(run)) >= 2);
    await aWhile();
    const begun = (): Input<'playGroups'>[] =>
      run.inputs('playGroups').filter(({ round, chunk }) => isFirst(round, chunk));
    assert.deepEqual([begun().length, begun()[0]?.takesNewest], [1, false], 'the straggler is where it was');
    gate.open();
    const { ledger } = await run.result();
    assert.equal(begun().length, 1);
    assert.ok(trained(run).flat().includes(1), 'and it is trained');
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 12 * 16]);
  });

  test('servers that hold one version have the newest before such a run continues as new', async () => {
    let inPlay: SamplingRound[] = [];
    const changed: number[] = [];
    const run = await begin({
      settings: { ...continuous, maxSteps: 10, maxOffPolicySteps: 20, inflightUpdates: 'never' },
      taskQueue: shortHistoryQueue,
      fakes: {
        broadcastWeights: async ({ policy }, { usual }) => {
          changed.push(...inPlay.filter(({ policyStep }) => policyStep < policy.step).map(({ first }) => first));
          return { ...(await usual()), holdsOne: true };
        },
        playGroups: async ({ round }, { usual }) => {
          inPlay.push(round);
          await aWhile();
          const played = await usual();
          inPlay = inPlay.filter((one) => one !== round);
          return played;
        },
      },
    });
    const { ledger } = await run.result();
    assert.ok((await timesContinued(run)) >= 1, 'it continued as new');
    const begun = run.inputs('playGroups').map(({ round, chunk }) => `${round.first} ${chunk.index}`);
    assert.equal(new Set(begun).size, begun.length, 'nothing is begun again');
    assert.deepEqual(changed, [], 'rounds in play while later weights came');
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 10 * 16]);
  });

  test('a workflow that plays rounds and is lost has its rounds handed to another one', async () => {
    const [gate, last] = [new Gate(), new Gate()];
    const fakes: Fakes = {
      ...holdingFirst(gate),
      trainBatch: async ({ step }, { usual }) => {
        if (step === 2) await last.pass(); // the run does not end before its rounds are handed over
        return usual();
      },
    };
    const run = await begin({ settings: { ...continuous, maxOffPolicySteps: 20, heartbeatTimeoutS: 2 }, fakes });
    await run.atStep(1);
    const [flow] = await flowsOf(run);
    await run.client.workflow.getHandle(flow!.workflowId).terminate('lost');
    await until('its rounds are played by another', () => {
      return run.inputs('playGroups').filter(({ round, chunk }) => isFirst(round, chunk)).length === 2;
    });
    gate.open();
    last.open();
    const { ledger } = await run.result();
    const groups = trained(run).flat();
    assert.ok(groups.includes(1));
    assert.equal(new Set(groups).size, groups.length, 'nothing is trained twice');
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 6 * 16]);
    assert.ok((await flowsOf(run)).length >= 2);
  });

  test('what is played for a run ends with it: when it finishes, fails, or is cancelled', async () => {
    for (const end of ['finishes', 'fails', 'is cancelled'] as const) {
      const gate = new Gate();
      const failing: Fakes = {
        trainBatch: ({ step }, { usual }) => {
          if (step === 2) throw new RatchetError('CheckpointDamaged', 'it is broken');
          return usual();
        },
      };
      const run = await begin({
        settings: { ...continuous, maxSteps: end === 'finishes' ? 2 : 6, maxOffPolicySteps: 20 },
        fakes: { ...holdingFirst(gate), ...(end === 'fails' ? failing : {}) },
      });
      await run.atStep(1);
      await until(`a workflow plays what is open when it ${end}`, async () => (await flowsOf(run)).length > 0);
      if (end === 'is cancelled') await run.handle.cancel();
      await run.handle.result().catch(() => undefined);
      await until(`a run that ${end} leaves nothing`, async () =>
        (await flowsOf(run)).every(({ status }) => status !== 'RUNNING'),
      );
      gate.open();
    }
  });

  test('a run that is cancelled while that workflow starts leaves none', async () => {
    const gate = new Gate();
    for (let tries = 0; tries < 3; tries++) {
      const run = await begin({ settings: { ...continuous, maxOffPolicySteps: 20 }, fakes: holdingFirst(gate) });
      const { runId } = await run.handle.describe();
      const flow = run.client.workflow.getHandle(rolloutsWorkflowId(run.handle.workflowId, runId, 1));
      // It is there before the run has heard of it.
      await until('it is there', async () => (await flow.describe().catch(() => null)) !== null);
      await run.handle.cancel();
      await run.handle.result().catch(() => undefined);
      await until('it has ended', async () => (await flow.describe()).status.name !== 'RUNNING');
    }
    gate.open();
  });

  test('a server that is away pauses the run, and what waits for it is played on when the run is resumed', async () => {
    const notReady = { since: '2026-01-01T00:00:00Z', message: 'connection refused' };
    const run = await begin({
      settings: continuous,
      fakes: {
        playGroups: async ({ round, chunk, attempt }, { usual }) => {
          const played = await usual();
          if (!isFirst(round, chunk) || attempt !== 1) return played;
          return { ...played, parts: [], unfinished: { ...refOf('unfinished'), count: 3 }, rollouts: 1, notReady };
        },
      },
    });
    assert.match(await run.paused(), /^no-signal: the inference server is not ready since .*: connection refused/);
    await run.tell('resume');
    const { ledger } = await run.result();
    assert.ok(trained(run).flat().includes(1));
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 6 * 16]);
  });

  test('what an activity refuses fails the run, in its words', async () => {
    const run = await begin({
      settings: continuous,
      fakes: {
        playGroups: ({ round, chunk }, { usual }) => {
          if (isFirst(round, chunk)) throw new RatchetError('InferenceRejected', 'no such model');
          return usual();
        },
      },
    });
    assert.match(await failureOf(run.handle.result()), /InferenceRejected: no such model/);
  });

  test('at level 1 slow rollouts are sampled across steps as well', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { ...continuous, maxAsyncLevel: 1 },
      fakes: {
        playGroups: async ({ round, chunk }, { usual }) => {
          if (round.first > 16 && decodeRanges((chunk as LeasedChunk).ordinals).includes(34)) await gate.pass();
          const played = await usual();
          return { ...played, parts: played.parts.map((part) => ({ ...part, generateS: chunk.count > 0 ? 5 : 0 })) };
        },
      },
    });
    await run.atStep(5);
    gate.open();
    const { ledger } = await run.result();
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 6 * 16]);
    const sizes = run.inputs('leaseGroups').map(({ groupsPerChunk }) => groupsPerChunk);
    assert.deepEqual([sizes[0], sizes.at(-1)], [8, 1], 'chunks are of a few groups by then');
  });

  test('nothing more is leased while the run is paused, and it continues when it is resumed', async () => {
    const gate = new Gate();
    const run = await begin({ settings: continuous, fakes: holdingStep(gate, 2) });
    await until('step 2 trains', () => run.inputs('trainBatch').length === 2);
    await until('as much is sampled as may be', () => run.inputs('packBatch').length === 3);
    await aWhile();
    await run.tell('pause');
    await aWhile();
    const leased = run.inputs('leaseGroups').length;
    gate.open();
    await run.atStep(2);
    await aWhile();
    assert.equal(run.inputs('leaseGroups').length, leased);
    await run.tell('resume');
    const { ledger } = await run.result();
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 6 * 16]);
  });

  test('a run that is to stop leases nothing for a step that is never made', async () => {
    const [training, playing, late] = [new Gate(), new Gate(), new Gate()];
    const run = await begin({
      settings: { ...continuous, maxOffPolicySteps: 20 },
      fakes: {
        ...holdingStep(training, 2),
        playGroups: async ({ round }, { usual }) => {
          if (round.first > 32) await (round.first > 64 ? late : playing).pass();
          const played = await usual();
          return { ...played, parts: played.parts.map((part) => (round.first > 32 ? tooEasy(part) : part)) };
        },
      },
    });
    await until('step 2 trains', () => run.inputs('trainBatch').length === 2);
    await until('as much is sampled as may be', () => leasedBy(run) === 4 * 16);
    await run.tell('stop');
    playing.open(); // none of these makes a third step
    for (const chunk of ['33-40', '41-48', '49-56', '57-64']) {
      await until('the run has heard of them', () => hasHeard(run, `"ordinals":"${chunk}"`));
    }
    await aWhile();
    assert.equal(leasedBy(run), 4 * 16);
    training.open();
    const { ledger, step } = await run.result();
    assert.equal(leasedBy(run), 4 * 16);
    assert.deepEqual([step, ledger.isSound, ledger.counts['trained']], [2, true, 2 * 16]);
  });

  test('a run whose end is put off goes on with the step that was not to be made', async () => {
    const [training, playing] = [new Gate(), new Gate()];
    const run = await begin({
      settings: { ...continuous, maxOffPolicySteps: 20 },
      fakes: {
        ...holdingStep(training, 2),
        playGroups: async ({ round }, { usual }) => {
          if (round.first > 32 && round.first <= 64) await playing.pass();
          const played = await usual();
          const isLeftOut = round.first > 32 && round.first <= 64;
          return { ...played, parts: played.parts.map((part) => (isLeftOut ? tooEasy(part) : part)) };
        },
      },
    });
    await until('step 2 trains', () => run.inputs('trainBatch').length === 2);
    await until('as much is sampled as may be', () => leasedBy(run) === 4 * 16);
    await run.tell('set', { stop_after: 2 });
    playing.open();
    await until('the run says why it waits', async () =>
      (await run.status()).waitingOn.some(({ what }) => what.startsWith('the run ends before step 3, unless')),
    );
    await run.tell('set', { stop_after: 5 });
    training.open();
    const { ledger, step } = await run.result();
    assert.deepEqual([step, ledger.isSound, ledger.counts['trained']], [5, true, 5 * 16]);
  });

  test('the run does not wait for people about examples while groups are in play', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { ...continuous, maxSteps: 3, maxOffPolicySteps: 20 },
      fakes: {
        ...holdingFirst(gate),
        leaseGroups: async (input, { usual }) => {
          // All later draws are from a pool that is never drawn, until those in flight have ended.
          if (input.curriculum.nextOrdinal <= 33 || gate.isOpen) return usual();
          return { round: null, chunks: [], curriculum: input.curriculum };
        },
      },
    });
    await until('nothing is left to draw', () => run.inputs('leaseGroups').length > 3);
    await aWhile();
    assert.equal((await run.status()).pausedBecause, null);
    gate.open();
    const { ledger } = await run.result();
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 3 * 16]);
    assert.deepEqual(await run.told('paused'), []);
  });

  test('nor where the last of them end while others are drawn', async () => {
    const gate = new Gate();
    const { playGroups } = holdingFirst(gate);
    let inPlay = 0;
    const run: BegunRun = await begin({
      settings: { ...continuous, maxSteps: 3, maxOffPolicySteps: 20 },
      fakes: {
        playGroups: async (input, call) => {
          inPlay += 1;
          try {
            return await playGroups!(input, call);
          } finally {
            inPlay -= 1;
          }
        },
        leaseGroups: async (input, { usual }) => {
          if (input.curriculum.nextOrdinal <= 33 || gate.isOpen) return usual();
          // The end of each other group is followed by a draw: the one after the last finds only the first group in play.
          if (inPlay === 1) {
            gate.open();
            await until('the first group has ended', () => inPlay === 0);
            await aWhile();
          }
          return { round: null, chunks: [], curriculum: input.curriculum };
        },
      },
    });
    const { ledger } = await run.result();
    assert.deepEqual([ledger.isSound, ledger.counts['trained']], [true, 3 * 16]);
    assert.deepEqual(await run.told('paused'), []);
  });
});
