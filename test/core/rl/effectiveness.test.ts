import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { describeEffectiveness, effectivenessOf, type TimedCommit } from '../../../core/rl/effectiveness.ts';
import { lostMetrics, lostOf, nothingLost } from '../../../core/rl/lost-work.ts';

interface Step {
  /** Seconds from the commit before to this one. */
  readonly seconds: number;
  readonly metrics?: Readonly<Record<string, number>>;
}

/** A lineage's commits: its first, then one for each step. */
function lineage(steps: readonly Step[], first: Partial<TimedCommit> = {}): TimedCommit[] {
  let at = Date.parse('2026-01-01T00:00:00Z');
  const commits: TimedCommit[] = [{ step: 0, committedAt: new Date(at).toISOString(), metrics: {}, ...first }];
  for (const { seconds, metrics = {} } of steps) {
    at += Math.round(seconds * 1000);
    commits.push({ step: commits.length + (first.step ?? 0), committedAt: new Date(at).toISOString(), metrics });
  }
  return commits;
}

/** A step of this many seconds, of which it waits 0.1 s for nothing it can name. */
function usual(seconds: number): Step {
  const atWork = Math.max(0, seconds - 0.1);
  const metrics = {
    'rollout/generation_time': atWork / 2,
    'time/wait_for_batch': atWork / 2,
    'time/train': atWork / 2,
    'time/step': seconds,
  };
  return { seconds, metrics };
}

const late = (step: Step, seconds: number, metrics: Readonly<Record<string, number>> = {}): Step => ({
  seconds: step.seconds + seconds,
  metrics: { ...step.metrics, ...metrics },
});

const near = (actual: number | null, expected: number) =>
  assert.ok(actual !== null && Math.abs(actual - expected) < 2e-3, `${actual}, expected ${expected}`);

const duration = fc.double({ min: 0.2, max: 100, noNaN: true });

describe('effective training time', () => {
  test('a run that nothing disturbed has 1, however unequal its steps are', () =>
    fc.assert(
      fc.property(fc.array(duration, { minLength: 1, maxLength: 8 }), (durations) => {
        const { ettr, lost, steps } = effectivenessOf(lineage(durations.map(usual)));
        near(ettr, 1);
        assert.deepEqual([lost, steps], [nothingLost, durations.length]);
      }),
    ));

  test('it is step time × steps ÷ wall time where equal steps lost time to faults that they report', () =>
    fc.assert(
      fc.property(
        duration,
        fc.array(fc.double({ min: 0, max: 50, noNaN: true }), { minLength: 2, maxLength: 12 }),
        (seconds, losses) => {
          const steps = losses.map((loss, i) =>
            i === 0 ? usual(seconds) : late(usual(seconds), loss, { 'recovery/count': 1, 'lost/seconds': loss }),
          );
          const wall = seconds * losses.length + losses.slice(1).reduce((sum, loss) => sum + loss, 0);
          near(effectivenessOf(lineage(steps)).ettr, (seconds * losses.length) / wall);
        },
      ),
    ));

  test('it is between 0 and 1 whatever the commits say', () =>
    fc.assert(
      fc.property(
        fc.array(
          fc.record({
            seconds: fc.double({ min: -10, max: 1e6, noNaN: true }),
            metrics: fc.dictionary(
              fc.constantFrom('recovery/count', 'lost/seconds', 'time/paused', 'time/train', 'time/wait_for_batch'),
              fc.double({ min: 0, max: 1e5, noNaN: true }),
            ),
          }),
          { minLength: 1, maxLength: 6 },
        ),
        (steps) => {
          const { ettr, ettrWithPauses } = effectivenessOf(lineage(steps));
          for (const share of [ettr, ettrWithPauses])
            assert.ok(share === null || (share >= 0 && share <= 1), `${share}`);
          if (ettr !== null) assert.ok(ettrWithPauses !== null && ettrWithPauses <= ettr);
        },
      ),
    ));

  test('a server or a machine that was off shows, though no step knows of it', () => {
    const steps = [usual(4), usual(5), late(usual(4), 60), usual(6)];
    near(effectivenessOf(lineage(steps)).ettr, (4 + 5 + 6 + 5) / (19 + 60));
  });

  test('a step that takes longer since it generates more, or beside an evaluation, is no disturbance', () => {
    const rounds = lineage([usual(1), usual(1), usual(30), usual(1)]);
    near(effectivenessOf(rounds).ettr, 1);
    const beside = lineage([usual(2), usual(2), late(usual(2), 0.9), usual(2)]);
    near(effectivenessOf(beside).ettr, 1);
  });

  test('what a person paused is not counted against it, and both are told', () => {
    const steps = [usual(5), late(usual(5), 90, { 'time/paused': 90 }), usual(5)];
    const effectiveness = effectivenessOf(lineage(steps));
    near(effectiveness.ettr, 1);
    near(effectiveness.ettrWithPauses, 15 / 105);
    assert.equal(
      describeEffectiveness(effectiveness),
      'effective training time (ETTR) 1.00 · 0.14 with 90.0 s paused · no recoveries',
    );
  });

  test('a run of one disturbed step is worth what its own work took', () => {
    const step = late(usual(10), 30, { 'recovery/count': 1, 'lost/seconds': 30 });
    near(effectivenessOf(lineage([step])).ettr, 9.9 / 40);
  });

  test('an orchestrator that was started during a step marks it, also the only long one of two', () => {
    const steps = [late(usual(3), 3600, { 'recovery/restarts': 1 }), usual(3)];
    near(effectivenessOf(lineage(steps)).ettr, 6 / 3606);
    near(effectivenessOf(lineage([usual(3), late(usual(3), 3600)])).ettr, 6 / 3606);
  });

  test('generation of the next step beside training explains nothing of this one', () => {
    const ahead = { 'rollout/generation_time': 10, 'time/wait_for_batch': 0.1, 'time/train': 10 };
    const steps = Array.from({ length: 5 }, (_, i) => ({ seconds: i === 3 ? 40 : 10.2, metrics: ahead }));
    near(effectivenessOf(lineage(steps)).ettr, (5 * 10.2) / (4 * 10.2 + 40));
  });

  test('a lineage begun somewhere counts its own steps alone, from when its first one began', () => {
    const origin = { run: 'words', lineage: 'main', step: 4, sha256: '0' };
    const taken = { step: 4, origin, metrics: { 'recovery/count': 3, 'lost/rollouts': 9, 'time/step': 5 } };
    const { ettr, lost, steps, wallSeconds } = effectivenessOf(lineage([late(usual(5), 86_400), usual(5)], taken));
    near(ettr, 1);
    assert.deepEqual([lost, steps], [nothingLost, 2]);
    near(wallSeconds, 10);
  });

  test('before its first step a run has none, and what its warm-up lost is told', () => {
    assert.equal(describeEffectiveness(effectivenessOf([])), 'effective training time (ETTR) – · no recoveries');
    const { ettr, lost } = effectivenessOf(lineage([], { metrics: { 'recovery/count': 1, 'lost/seconds': 7 } }));
    assert.deepEqual([ettr, lost.recoveries, lost.seconds], [null, 1, 7]);
  });

  test('it is told in one line', () => {
    const metrics = { 'recovery/count': 2, 'lost/rollouts': 12, 'lost/tokens': 3400, 'lost/seconds': 8.1 };
    const line = describeEffectiveness(effectivenessOf(lineage([usual(200), late(usual(200), 8.1, metrics)])));
    assert.equal(
      line,
      'effective training time (ETTR) 0.98 · 2 recoveries · lost in flight: 12 rollouts, 3,400 tokens, 8.1 s · not effective: 8.1 s in 1 step (2) that did work again',
    );
  });

  test('where nothing was lost it says where the rest of the time went, by cause, the longest steps first', () => {
    const steps = [usual(4), usual(4), late(usual(4), 9), usual(4), late(usual(4), 12), usual(4)];
    const waited = describeEffectiveness(effectivenessOf(lineage(steps)));
    assert.match(
      waited,
      /^effective training time \(ETTR\) 0\.53 · no recoveries · not effective: 21\.0 s in 2 steps \(5, 3\) that waited beside /,
    );
    const restarted = [usual(4), late(usual(4), 30, { 'recovery/restarts': 1 }), usual(4)];
    assert.match(
      describeEffectiveness(effectivenessOf(lineage(restarted))),
      /no recoveries · not effective: 30\.0 s in 1 step \(2\) whose orchestrator was started anew$/,
    );
    assert.match(describeEffectiveness(effectivenessOf(lineage([usual(4), usual(4)]))), /1\.00 · no recoveries$/);
  });

  test('the rest and the effective time are all of the time', () =>
    fc.assert(
      fc.property(fc.array(fc.tuple(duration, fc.nat(40)), { minLength: 1, maxLength: 9 }), (drawn) => {
        const steps = drawn.map(([seconds, more]) =>
          late(usual(seconds), more, more > 30 ? { 'recovery/count': 1 } : {}),
        );
        const { ettr, wallSeconds, rest } = effectivenessOf(lineage(steps));
        near(ettr! + rest.reduce((sum, { seconds }) => sum + seconds, 0) / wallSeconds, 1);
      }),
    ));
});

describe('work lost', () => {
  const count = fc.nat(9999);
  const parts = { recoveries: count, rollouts: count, tokens: count, seconds: count };
  const lost = fc.record(parts, { noNullPrototype: true });

  test('a commit tells it as metrics, and what did not happen is left out', () =>
    fc.assert(
      fc.property(lost, (one) => {
        assert.deepEqual(lostOf(lostMetrics(one)), one);
        assert.ok(Object.values(lostMetrics(one)).every((value) => value > 0));
      }),
    ));
});
