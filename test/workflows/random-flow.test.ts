/**
 * Runs of settings, delays, failures, filters and people's wishes that are drawn at random, by a seed: whatever comes, the ledger is sound, nothing
 * is trained twice, and a batch has as many groups as it is to have. `RATCHET_SEEDS=5,6` takes others.
 */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { Context } from '@temporalio/activity';
import { tellParts } from '../../activities/around/tell-parts.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { hash32, randomStream, uniform } from '../../core/random.ts';
import type { FilteredGroups } from '../../core/rl/filters/filter-groups.ts';
import { decodeRanges, encodeRanges } from '../../core/rl/ledger.ts';
import type { KeptGroups, ObjectRef, SamplingRound } from '../../core/rl/run-state.ts';
import { type FakeRun, type Fakes, type Input, type Output, refOf } from './fake-run.ts';
import { partOf } from './fake-training.ts';
import { aWhile } from './look.ts';
import { begin, type BegunRun, closeServer, shortHistoryQueue } from './server.ts';

after(closeServer);

const seeds = (process.env['RATCHET_SEEDS'] ?? '2').split(',').map(Number);

type Draw = <T>(...of: readonly T[]) => T;

function drawing(...key: readonly (number | string)[]): Draw {
  const next = randomStream(...key);
  return (...of) => of[Math.floor(next() * of.length)]!;
}

/** A world that is drawn. */
interface World {
  readonly settings: Partial<RunSpec>;
  readonly taskQueue: string | undefined;
  /** Share of the groups that the filter keeps. */
  readonly keeps: number;
  /** Mean milliseconds of a group. */
  readonly playMs: number;
  readonly trainMs: number;
  /** Shares of what is asked for. */
  readonly fails: number;
  readonly isRefused: number;
  readonly hasNoSignal: number;
  /** One group in so many hangs to the end. */
  readonly hangs: number;
}

function drawWorld(seed: number): World {
  const draw = drawing(seed, 'world');
  const environments = draw(1, 1, 2, 3);
  const hasPools = draw(false, true);
  const pools = { easyThreshold: 0.9, hardThreshold: null, easyFraction: 0, hardFraction: 0 };
  const own = draw(false, false, true);
  const batchFill = draw<RunSpec['batchFill']>('full', 'full', 'half', 'once');
  const drawLater = drawing(seed, 'mismatch');
  return {
    settings: {
      maxSteps: draw(5, 7, 9),
      batchSize: 4 * draw(2, 4, 8, 16),
      maxAsyncLevel: draw(1, 2, 2, 4, 8),
      maxOffPolicySteps: draw(1, 2, 4, 8),
      inflightUpdates: draw('never', 'turn'),
      oversamplingFactor: draw(1, 1, 1.5),
      maxConcurrent: draw(null, null, 16),
      maxMismatchKl: drawLater(null, 0.02, 0.1, 1),
      tokenBatchSize: draw(null, null, null, 200),
      batchFill,
      filter: {
        minRewardVariance: 0,
        minReward: 0.2,
        maxReward: 0.8,
        onlineDifficultyFiltering: false,
        keepsEqual: false,
        onStarvation: draw('widen', 'pause'),
      },
      environments: Array.from({ length: environments }, (_, i) => ({
        id: 'reverse-text',
        name: `words-${i}`,
        args: {},
        weight: 1,
        pools: hasPools ? pools : null,
        ...(own ? { rolloutsPerExample: 4 + 4 * i } : {}),
      })),
    },
    taskQueue: draw(undefined, shortHistoryQueue),
    keeps: draw(1, 0.7, 0.4, 0.1),
    playMs: draw(5, 40, 150),
    trainMs: draw(5, 50, 300),
    fails: draw(0, 0, 0.1),
    isRefused: draw(0, 0, 0.1),
    hasNoSignal: draw(0, 0, 0.2),
    hangs: draw(0, 0, 20),
  };
}

/** A deterministic filter of groups. */
function judge(
  { settings, keeps }: World,
  seed: number,
  of: {
    readonly round: SamplingRound;
    readonly scored: ObjectRef;
    readonly ordinals: string;
    readonly widened?: boolean;
  },
): FilteredGroups {
  const { round, scored, ordinals, widened = false } = of;
  const all = decodeRanges(ordinals);
  const isDropped = (ordinal: number): boolean =>
    uniform(seed, 'signal', ordinal) > 0.9 || (!widened && uniform(seed, 'keeps', ordinal) >= keeps);
  const kept = all.filter((ordinal) => !isDropped(ordinal));
  const ended = encodeRanges(all.filter(isDropped));
  const isCounted = settings.tokenBatchSize !== null || settings.environments!.some((one) => one.rolloutsPerExample);
  const sizeOf = (ordinal: number): number => 4 + (hash32(seed, 'size', ordinal) % 40);
  const sizes = isCounted ? { sizes: kept.map(sizeOf) } : {};
  const groups: KeptGroups = { scored, policyStep: round.policyStep, ordinals: encodeRanges(kept), ...sizes };
  return {
    kept: groups,
    ended: ended === '' ? {} : { 'filtered:too_easy': ended },
    solved: { all: all.length - kept.length, none: 0, some: kept.length },
    ...(isCounted ? { size: all.map(sizeOf).reduce((sum, size) => sum + size, 0) } : {}),
  };
}

/** Groups end one by one and are reported by signal or with the end of their chunk, and some by both. */
function fakesOf(world: World, seed: number): Fakes & { fake?: FakeRun } {
  const fakes: Fakes & { fake?: FakeRun } = {
    playGroups: async (input, { usual, nth }) => {
      if (uniform(seed, 'fails', nth) < world.fails) throw new Error('a worker is gone');
      const whole = await usual();
      if (input.tells === undefined) return playedWhole(world, seed, fakes.fake!, { input, whole });
      return playedOneByOne(world, seed, fakes.fake!, { input, whole });
    },
    filterGroups: async ({ round, scored, widened, curriculum }) => {
      await delay(uniform(seed, 'filter', scored.key) * 60);
      const ordinals = fakes.fake!.stored.get(scored.key) as string;
      const judged = judge(world, seed, { round, scored, ordinals, ...(widened ? { widened } : {}) });
      return { ...judged, ...(curriculum ? { curriculum } : {}) };
    },
    packBatch: async ({ step, trained }, { usual, nth }) => {
      await delay(uniform(seed, 'pack', step, nth) * 40);
      return {
        ...(await usual()),
        metrics: { 'off_policy/mean': 2 * uniform(seed, 'behind', step, nth) },
        hasSignal: !(trained.length > 0 && uniform(seed, 'none', step, nth) < world.hasNoSignal),
      };
    },
    trainBatch: async (_, { usual, nth }) => {
      await delay(2 * world.trainMs * uniform(seed, 'train', nth));
      const usually = await usual();
      const made = { ...usually, metrics: { ...usually.metrics, mismatch_kl: 0.2 * uniform(seed, 'drift', nth) } };
      if (uniform(seed, 'refused', nth) >= world.isRefused) return made;
      return { ...made, policy: null, reason: 'the loss is not a number' };
    },
  };
  return fakes;
}

async function playedWhole(
  world: World,
  seed: number,
  fake: FakeRun,
  { input: { round }, whole }: { readonly input: Input<'playGroups'>; readonly whole: Output<'playGroups'> },
): Promise<Output<'playGroups'>> {
  await delay(world.playMs * uniform(seed, 'whole', round.first));
  const parts = whole.parts.map((part) => {
    const { scored, ordinals } = part;
    fake.stored.set(scored.key, ordinals);
    return { ...part, filtered: judge(world, seed, { round, scored, ordinals }) };
  });
  return { ...whole, parts };
}

async function playedOneByOne(
  world: World,
  seed: number,
  fake: FakeRun,
  { input, whole }: { readonly input: Input<'playGroups'>; readonly whole: Output<'playGroups'> },
): Promise<Output<'playGroups'>> {
  const { run, round, only, tells } = input;
  const wanted = new Set(only === undefined ? [] : decodeRanges(only));
  const all = whole.parts.flatMap(({ ordinals }) => decodeRanges(ordinals));
  const key = `${run.lineage}/${round.first}`;
  const { cancelled } = Context.current();
  const play = async (ordinal: number): Promise<Output<'playGroups'>['parts']> => {
    const isHanging = world.hangs > 0 && uniform(seed, 'hangs', ordinal) < 1 / world.hangs;
    const normal = -Math.log(1 - uniform(seed, 'plays', run.lineage, ordinal));
    await Promise.race([isHanging ? new Promise(() => undefined) : delay(world.playMs * normal), cancelled]);
    const ordinals = `${ordinal}`;
    const scored = refOf(`${round.leases.key}.${run.lineage}.${ordinal}.scored`);
    fake.stored.set(scored.key, ordinals);
    const generateS = uniform(seed, 'slow', Math.floor(ordinal / 40)) < 0.5 ? 5 : 0.1;
    const part = {
      ...partOf(scored, judge(world, seed, { round, scored, ordinals }), { ordinals, rollouts: 4 }),
      generateS,
    };
    fake.parts.set(key, [...(fake.parts.get(key) ?? []).filter((one) => one.ordinals !== ordinals), part]);
    const how = uniform(seed, 'told', ordinal);
    if (how < 0.8) await tellParts(tells, { lineage: run.lineage }, part);
    return how < 0.7 ? [] : [part];
  };
  const parts = await Promise.all(all.filter((ordinal) => only === undefined || wanted.has(ordinal)).map(play));
  return { ...whole, parts: parts.flat() };
}

/** Actions of people and machines on the run meanwhile. */
async function disturb(run: BegunRun, draw: Draw): Promise<void> {
  await delay(draw(50, 200, 500, 1_000));
  const flows = async (): Promise<void> => {
    const query = `WorkflowType='playRounds' AND ExecutionStatus='Running' AND WorkflowId BETWEEN '${run.name}.' AND '${run.name}.~'`;
    for await (const { workflowId } of run.client.workflow.list({ query })) {
      await run.client.workflow.getHandle(workflowId).terminate('lost');
    }
  };
  const newest = run.client.workflow.getHandle(run.name);
  await draw<() => Promise<unknown>>(
    () => run.tell('pause').then(aWhile),
    () => run.tell('rewind', Math.max(0, (run.fake.head()?.commit.step ?? 0) - draw(0, 1, 2))),
    () => run.tell('set', { max_steps: draw(6, 10) }),
    () => run.tell('stop'),
    () => newest.terminate('lost'),
    flows,
  )().catch(() => undefined); // it may be over, or refuse
}

/** Runs to the end, which may take several executions. */
async function playToItsEnd(seed: number): Promise<{ readonly run: BegunRun; readonly world: World }> {
  const world = drawWorld(seed);
  const draw = drawing(seed, 'people');
  const fakes = fakesOf(world, seed);
  const begun = { fakes, ...(world.taskQueue ? { taskQueue: world.taskQueue } : {}) };
  let run = await begin({ ...begun, settings: world.settings });
  fakes.fake = run.fake;
  const { spec } = run.fake;
  let disturbances = draw(0, 1, 2, 3);
  for (let starts = 1; ; starts++) {
    while (disturbances-- > 0) await disturb(run, draw);
    await goOnToTheEnd(run, seed);
    if ((run.fake.head()?.commit.step ?? 0) >= spec.maxSteps) return { run, world };
    assert.ok(starts < 5, `seed ${seed} ends too early: ${JSON.stringify(run.fake.head()?.commit.step)}`);
    run = await begin({ ...begun, fake: run.fake });
  }
}

/** Resumes it as often as it pauses. */
async function goOnToTheEnd(run: BegunRun, seed: number): Promise<void> {
  const newest = run.client.workflow.getHandle(run.name);
  for (let looks = 0; looks < 1200; looks++) {
    const { status } = await newest.describe();
    if (status.name === 'FAILED')
      assert.fail(`seed ${seed}: ${JSON.stringify(await newest.result().catch((e: Error) => String(e.cause)))}`);
    if (status.name !== 'RUNNING') return;
    const seen = await run.status().catch(() => null);
    if (seen?.pausedBecause != null) await run.tell('resume').catch(() => undefined);
    await delay(100);
  }
  assert.fail(`seed ${seed} hangs: ${JSON.stringify(await run.status())}`);
}

function check(seed: number, { run, world }: { readonly run: BegunRun; readonly world: World }): void {
  const { fake } = run;
  const { batchFill, tokenBatchSize, environments, batchSize } = fake.spec;
  for (const lineage of fake.lineages.keys()) {
    const open = new Set<number>();
    let issued = 0;
    const trained: number[] = [];
    for (const { outcomes, origin } of fake.commits(lineage)) {
      for (const ordinal of decodeRanges(outcomes.issued)) {
        assert.equal(ordinal, (issued += 1), `seed ${seed}: issued in order`);
        open.add(ordinal);
      }
      const ended = Object.values(outcomes.ended).flatMap((ranges) => decodeRanges(ranges ?? ''));
      for (const ordinal of ended) assert.ok(open.delete(ordinal), `seed ${seed}: ${ordinal} ended and was not open`);
      assert.equal(outcomes.pending, encodeRanges([...open]), `seed ${seed}: ${lineage} at step ${outcomes.step}`);
      const own = decodeRanges(outcomes.ended.trained ?? '');
      trained.push(...own);
      const isByGroups =
        batchFill === 'full' &&
        tokenBatchSize === null &&
        environments.every((one) => one.rolloutsPerExample === undefined);
      if (isByGroups && world.keeps >= 0.4 && outcomes.step > (origin?.step ?? 0))
        assert.equal(own.length, batchSize / 4, `seed ${seed}: step ${outcomes.step}`);
    }
    assert.equal(new Set(trained).size, trained.length, `seed ${seed}: nothing is trained twice`);
  }
}

describe('rollouts flow, whatever comes', { concurrency: 4 }, () => {
  for (const seed of seeds) {
    test(`seed ${seed}`, async () => check(seed, await playToItsEnd(seed)));
  }
});
