import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { Pool, withPoolSettings } from '../../../core/fleet/pool.ts';
import { poolDefaults, type PoolSettings, type RunStanding } from '../../../core/fleet/pool-types.ts';
import { decide } from '../../../core/fleet/schedule.ts';
import { poolNamePattern } from '../../../core/names.ts';
import { beganMs, jain, simulate, type SimulatedRun } from './simulated-fleet.ts';

const hour = 3_600;
const numberRuns = (count: number, of: (i: number) => Omit<SimulatedRun, 'name'>): SimulatedRun[] =>
  Array.from({ length: count }, (_, i) => ({ name: `run-${i}`, ...of(i) }));
const trainersOf = (count: number) => Array.from({ length: count }, (_, i) => ({ name: `gpu-${i}` }));
const withTeams = (teams: PoolSettings['teams']): PoolSettings => ({ ...poolDefaults, teams });

function standing(run: string, more: Partial<RunStanding> = {}): RunStanding {
  return { run, told: 1, team: 'default', priority: 0, labels: {}, startAt: null, turn: 0, state: 'waits', trainer: null, lost: null, ...more }; // prettier-ignore
}

function poolWith(trainers: readonly string[], now = beganMs): Pool {
  const pool = new Pool('gpus', {}, now);
  for (const trainer of trainers) pool.trainer({ trainer, labels: {}, heldBy: null, leaves: false }, now);
  return pool;
}

describe('shares', () => {
  test('runs of any speed share trainers equally, and no trainer is idle', () =>
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 4 }),
        fc.array(fc.integer({ min: 5, max: 240 }), { minLength: 2, maxLength: 10 }),
        (trainers, stepsS) => {
          const forS = 24 * hour;
          const { heldS } = simulate({
            trainers: trainersOf(trainers),
            runs: numberRuns(stepsS.length, (i) => ({ stepS: stepsS[i]! })),
            forS,
          });
          const shares = stepsS.map((_, i) => heldS.get(`run-${i}`) ?? 0);
          assert.ok(jain(shares) >= 0.95, `Jain ${jain(shares)} of ${shares.join(', ')}`);
          const ideal = Math.min(trainers, stepsS.length) * forS;
          const all = shares.reduce((a, b) => a + b, 0);
          assert.ok(all >= 0.999 * ideal, `${all} of ${ideal} s`);
        },
      ),
      { numRuns: 60 },
    ));

  test('four runs on two trainers keep 0.95 of the ideal, with half a minute to restore at each change', () => {
    const forS = 24 * hour;
    const restoreS = 30;
    const runs = numberRuns(4, (i) => ({ stepS: [20, 45, 60, 90][i]! }));
    const { steps, heldS } = simulate({ trainers: trainersOf(2), runs, forS, restoreS });
    const shares = runs.map(({ name, stepS }) => ((steps.get(name) ?? 0) * stepS) / (forS / 2));
    const aggregate = shares.reduce((a, b) => a + b, 0) / 4;
    assert.ok(aggregate >= 0.94, `aggregate ${aggregate}`);
    assert.ok(jain(runs.map(({ name }) => heldS.get(name)!)) >= 0.95);
  });

  test('teams share by their weights, however many runs each has', () => {
    const forS = 96 * hour;
    const runs = numberRuns(7, (i) => ({ stepS: 30, team: i < 5 ? 'many' : 'few' }));
    const settings = withTeams({ many: { quota: null, weight: 1 }, few: { quota: null, weight: 2 } });
    const { heldS } = simulate({ trainers: trainersOf(3), runs, settings, forS });
    const of = (team: string) =>
      runs.filter((run) => run.team === team).reduce((sum, { name }) => sum + heldS.get(name)!, 0) / (3 * forS);
    // Two of three trainers are what two runs can hold at most.
    assert.ok(Math.abs(of('few') - 2 / 3) < 0.02, `few ${of('few')}`);
    assert.ok(Math.abs(of('many') - 1 / 3) < 0.02, `many ${of('many')}`);
  });

  test('a run that comes later has its share from then on, and no more', () => {
    const runs = numberRuns(2, (i) => ({ stepS: 30, comesAtS: i * 12 * hour }));
    const { heldS } = simulate({ trainers: trainersOf(1), runs, forS: 24 * hour });
    assert.ok(Math.abs(heldS.get('run-0')! - 18 * hour) < hour / 2);
    assert.ok(Math.abs(heldS.get('run-1')! - 6 * hour) < hour / 2);
  });

  test('two hundred runs on eight trainers: nobody starves', () => {
    const runs = numberRuns(200, (i) => ({ stepS: 100 + (i % 17) * 10, team: `team-${i % 7}` }));
    // Turns of ten minutes on eight trainers: 200 runs have one each in about four hours.
    const { waitedMaxS, heldS } = simulate({ trainers: trainersOf(8), runs, forS: 24 * hour });
    const longest = Math.max(...waitedMaxS.values());
    assert.ok(longest < 8 * hour, `${longest / hour} h`);
    assert.equal([...heldS.values()].filter((held) => held > 0).length, 200);
  });
});

describe('rules', () => {
  const anyRun = fc.record({
    stepS: fc.integer({ min: 5, max: 200 }),
    team: fc.constantFrom('a', 'b', 'c'),
    priority: fc.integer({ min: -2, max: 2 }),
    labels: fc.constantFrom({}, { gpu: 'h100' }, { gpu: 'h200' }),
    comesAtS: fc.integer({ min: 0, max: 6 * hour }),
    startAt: fc.constantFrom(null, beganMs + 2 * hour * 1000),
  });
  const anyFleet = fc.record({
    runs: fc.array(anyRun, { minLength: 1, maxLength: 12 }).map((found) => numberRuns(found.length, (i) => found[i]!)),
    trainers: fc
      .array(fc.constantFrom<Record<string, string>>({}, { gpu: 'h100' }, { gpu: 'h200', zone: 'b' }), {
        minLength: 1,
        maxLength: 5,
      })
      .map((found) => found.map((labels, i) => ({ name: `gpu-${i}`, labels }))),
    quota: fc.integer({ min: 0, max: 3 }),
  });

  test('a team never holds more than its quota, labels fit, nobody begins early, one run has a trainer', () =>
    fc.assert(
      fc.property(anyFleet, ({ runs, trainers, quota }) => {
        const settings = withTeams({ a: { quota, weight: 1 } });
        const { moments } = simulate({ trainers, runs, settings, forS: 12 * hour });
        const run = new Map(runs.map((one) => [one.name, one]));
        const labelsOf = new Map(trainers.map(({ name, labels }) => [name, labels]));
        for (const { atS, held } of moments) {
          assert.equal(new Set(held.values()).size, held.size);
          assert.ok([...held.keys()].filter((name) => run.get(name)!.team === 'a').length <= quota);
          for (const [name, trainer] of held) {
            const { labels = {}, startAt } = run.get(name)!;
            for (const [key, value] of Object.entries(labels)) assert.equal(labelsOf.get(trainer)![key], value);
            assert.ok((startAt ?? 0) <= beganMs + atS * 1000);
          }
        }
      }),
      { numRuns: 60 },
    ));

  test('no run waits while a trainer that fits is free and its team may hold one', () =>
    fc.assert(
      fc.property(anyFleet, ({ runs, trainers }) => {
        const { moments } = simulate({ trainers, runs, forS: 12 * hour });
        const run = new Map(runs.map((one) => [one.name, one]));
        for (const { atS, held, waiting } of moments) {
          const taken = new Set(held.values());
          const free = trainers.filter(({ name }) => !taken.has(name));
          for (const name of waiting) {
            const { labels = {}, startAt } = run.get(name)!;
            if ((startAt ?? 0) > beganMs + atS * 1000) continue;
            const fits = free.filter((one) =>
              Object.entries(labels).every(([key, value]) => one.labels[key] === value),
            );
            assert.deepEqual(fits, [], `${name} waits at ${atS} s`);
          }
        }
      }),
      { numRuns: 60 },
    ));

  test('a run of higher priority has a trainer after the step under way, and keeps it', () => {
    const runs: SimulatedRun[] = [
      { name: 'low', stepS: 40 },
      { name: 'high', stepS: 40, priority: 5, comesAtS: hour / 2 },
    ];
    const settings = { ...poolDefaults, aging: 0 };
    const { waitedMaxS, heldS } = simulate({ trainers: trainersOf(1), runs, settings, forS: 10 * hour });
    assert.ok(waitedMaxS.get('high')! <= 40);
    assert.ok(heldS.get('low')! <= hour / 2 + 40);
  });

  test('waiting raises a priority: no stream of better runs keeps a run away for ever', () => {
    const runs: SimulatedRun[] = [
      { name: 'low', stepS: 40, priority: -3 },
      ...numberRuns(3, () => ({ stepS: 30, priority: 2 })),
    ];
    const { waitedMaxS, heldS } = simulate({ trainers: trainersOf(1), runs, forS: 48 * hour });
    assert.ok(waitedMaxS.get('low')! < 8 * hour, `${waitedMaxS.get('low')! / hour} h`);
    assert.ok(heldS.get('low')! > 0);
  });

  test('the decision depends on the state alone, and not on the order in which it came to be', () =>
    fc.assert(
      fc.property(anyFleet, fc.integer({ min: 0, max: 1000 }), ({ runs, trainers }, seed) => {
        const build = (order: readonly SimulatedRun[]) => {
          const pool = new Pool('gpus', {}, beganMs);
          for (const { name, labels } of trainers)
            pool.trainer({ trainer: name, labels, heldBy: null, leaves: false }, beganMs);
          for (const { name, stepS: _, comesAtS: _at, ...request } of order) pool.run(standing(name, request), beganMs);
          return decide(pool.carry(), beganMs);
        };
        const mixed = runs.toSorted((a, b) => ((a.stepS * 31 + seed) % 7) - ((b.stepS * 31 + seed) % 7));
        assert.deepEqual(build(mixed), build(runs));
      }),
    ));
});

describe('what runs and trainers tell', () => {
  test('a turn that a run has not heard of is told again, and stays its own', () => {
    const pool = poolWith(['gpu-0']);
    pool.run(standing('a'), beganMs);
    const [first] = pool.decide(beganMs).notices.values();
    pool.run(standing('a', { told: 2, priority: 3 }), beganMs + 1000);
    const [again] = pool.decide(beganMs + 1000).notices.values();
    assert.deepEqual(again, first);
  });

  test('a trainer that did not answer is gone until it says that it is there', () => {
    const pool = poolWith(['gpu-0']);
    pool.run(standing('a'), beganMs);
    const turn = pool.decide(beganMs).notices.get('a')!.turn;
    pool.run(standing('a', { told: 2, turn, lost: 'gpu-0' }), beganMs + 1000);
    assert.deepEqual(pool.decide(beganMs + 1000).notices.size, 0);
    assert.match(pool.whyWaits('a', beganMs + 1000)!, /no trainer has joined/);
    pool.trainer({ trainer: 'gpu-0', labels: {}, heldBy: null, leaves: false }, beganMs + 2000);
    assert.equal(pool.decide(beganMs + 2000).notices.get('a')!.trainer, 'gpu-0');
  });

  test('a pool that is begun anew learns who holds what, and takes no trainer away', () => {
    const pool = new Pool('gpus', {}, beganMs);
    pool.run(standing('waits'), beganMs);
    pool.trainer({ trainer: 'gpu-0', labels: {}, heldBy: 'holds', leaves: false }, beganMs + 10);
    const { notices } = pool.decide(beganMs + 10);
    assert.deepEqual([...notices].map(([run, { trainer, asks }]) => [run, trainer, asks]), [['holds', 'gpu-0', true]]); // prettier-ignore
    const { turn } = notices.get('holds')!;
    pool.run(standing('holds', { team: 'x', priority: 1, turn, state: 'holds', trainer: 'gpu-0' }), beganMs + 20);
    assert.equal(pool.status(beganMs + 20).trainers[0]!.run, 'holds');
    assert.equal(pool.decide(beganMs + 20).notices.size, 0);
  });

  test('a run that says by itself that it holds a trainer is believed, unless another one has it', () => {
    const pool = poolWith(['gpu-0']);
    pool.run(standing('a', { state: 'holds', trainer: 'gpu-0', turn: beganMs - 5 }), beganMs);
    assert.equal(pool.status(beganMs).trainers[0]!.run, 'a');
    pool.run(standing('b', { state: 'holds', trainer: 'gpu-0' }), beganMs);
    assert.equal(pool.status(beganMs).trainers[0]!.run, 'a');
    assert.equal(pool.status(beganMs).waiting[0]!.run, 'b');
  });

  test('a holder of which the trainer knows nothing is asked, and forgotten when it is over', () => {
    const pool = poolWith(['gpu-0']);
    pool.run(standing('a'), beganMs);
    pool.run(standing('b'), beganMs);
    pool.decide(beganMs);
    pool.trainer({ trainer: 'gpu-0', labels: {}, heldBy: null, leaves: false }, beganMs + 60_000);
    assert.equal(pool.decide(beganMs + 60_000).notices.get('a')!.asks, true);
    pool.forget('a', beganMs + 60_001);
    assert.equal(pool.decide(beganMs + 60_001).notices.get('b')!.trainer, 'gpu-0');
  });

  test('a team’s weight is divided among its runs that hold trainers', () => {
    const pool = poolWith(['gpu-0', 'gpu-1']);
    pool.set({ ...poolDefaults, teams: { x: { quota: null, weight: 3 }, idle: { quota: null, weight: 5 } } }, beganMs);
    pool.run(standing('a', { team: 'x' }), beganMs);
    pool.run(standing('b', { team: 'x' }), beganMs);
    pool.run(standing('c', { team: 'y' }), beganMs);
    assert.deepEqual(pool.shares(), { x: 3, idle: 5, y: 1 }); // nobody has a trainer yet
    pool.decide(beganMs);
    const held = pool.status(beganMs).teams.find(({ team }) => team === 'x')!.holds;
    assert.deepEqual(pool.shares(), { x: 3 / held, idle: 5, y: 1 });
  });

  test('an earlier standing that arrives late changes nothing', () => {
    const pool = poolWith([]);
    pool.run(standing('a', { told: 5, priority: 5 }), beganMs);
    pool.run(standing('a', { told: 4, state: 'none' }), beganMs);
    assert.equal(pool.status(beganMs).waiting[0]!.priority, 5);
  });
});

test('settings of a pool are read by name, all or none', () => {
  assert.deepEqual(withPoolSettings(poolDefaults, { slice: 60, 'a.quota': 2, 'a.weight': 3 }), {
    slice: 60,
    aging: 3_600,
    teams: { a: { quota: 2, weight: 3 } },
  });
  const refusal = (set: Parameters<typeof withPoolSettings>[1]) => JSON.stringify(withPoolSettings(poolDefaults, set));
  assert.match(refusal({ 'a.quota': -1 }), /whole number of trainers from 0/);
  assert.match(refusal({ quota: 1 }), /no such setting of a pool; what can be set/);
  assert.match(refusal({ 'a.weight': null }), /a\.weight: expected a number above 0, got none/);
  assert.match(refusal({ slice: null }), /slice: expected seconds above 0, got none/);
  assert.match(refusal({ '.quota': 1 }), /no such setting of a pool/);
});

test('each team that a run file may name can be given a quota', () => {
  for (const team of ['research', 'ml.vision', '2', 'a-b.c_d', 'slice']) {
    assert.ok(poolNamePattern.test(team));
    const settings = withPoolSettings(poolDefaults, { [`${team}.quota`]: 2, [`${team}.weight`]: 3 });
    assert.deepEqual(settings, { ...poolDefaults, teams: { [team]: { quota: 2, weight: 3 } } });
  }
});

test('a pool that is begun anew has its settings from a trainer that kept them, and the newest of them', () => {
  const first = new Pool('gpus', {}, beganMs);
  const joins = { trainer: 'gpu-1', labels: {}, heldBy: null, leaves: false };
  first.trainer(joins, beganMs);
  assert.equal(first.whoHas('gpu-1')!.kept, undefined, 'nobody has made any');
  const settings = withPoolSettings(poolDefaults, { slice: 60, 'research.quota': 2 }) as PoolSettings;
  first.set(settings, beganMs + 1_000);
  const { kept } = first.whoHas('gpu-1')!;
  assert.deepEqual(kept, { settings, setAt: beganMs + 1_000 });
  const anew = new Pool('gpus', {}, beganMs + 5_000);
  anew.trainer({ ...joins, kept }, beganMs + 5_000);
  assert.deepEqual(anew.settings, settings);
  const changed = { ...settings, slice: 90 };
  anew.set(changed, beganMs + 6_000);
  anew.trainer({ ...joins, trainer: 'gpu-2', kept }, beganMs + 7_000);
  assert.deepEqual(anew.settings, changed, 'older ones are not taken');
  assert.deepEqual(new Pool('gpus', anew.carry(), beganMs + 8_000).whoHas('gpu-1')!.kept!.settings, changed);
  const takenOver = new Pool('gpus', { settings }, beganMs);
  takenOver.trainer(joins, beganMs);
  assert.deepEqual(takenOver.whoHas('gpu-1')!.kept!.settings, settings);
});
