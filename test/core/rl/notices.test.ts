/** Notices that a run derives from its metrics. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { LineageWatch, type Notice, type WatchedRow } from '../../../core/rl/notices.ts';

const limits = { entropyShare: 0.1, lengthFactor: 2, mismatchKl: 0.1, evalFall: 0.05 };

type Figures = Readonly<Record<string, number>>;

function watched(rows: readonly (Figures & { readonly step: number })[]): Notice[] {
  const watch = new LineageWatch(limits);
  const timed = rows.map((row): WatchedRow => ({
    ...row,
    lineage: 'main',
    time: new Date(Date.UTC(2026, 0, 1, 0, row.step)).toISOString(),
  }));
  return timed.flatMap((row) => watch.take(row));
}

const steps = (count: number, figures: (step: number) => Figures) =>
  Array.from({ length: count }, (_, i) => ({ step: i + 1, ...figures(i + 1) }));

const length = 'train/agg/all/num_output_tokens/mean';

describe('a run notices', () => {
  test('that its entropy is used up, once, and again after it had recovered', () => {
    const course = (step: number): number => (step <= 20 ? 1 : step <= 30 ? 0.05 : step <= 40 ? 0.6 : 0.05);
    const found = watched(steps(50, (step) => ({ entropy: course(step) })));
    // The mean of 5 steps, 4 at 0.05 and 1 at 1, is 0.24; all 5 at 0.05 are below a tenth of 1.
    assert.deepEqual(
      found.map(({ kind, step }) => [kind, step]),
      [
        ['entropy', 25],
        ['entropy', 45],
      ],
    );
    assert.match(found[0]!.text, /0\.0500 nats per token, 5\.0 % of the 1\.00/);
    assert.equal(found[0]!.time, '2026-01-01T00:25:00.000Z');
  });

  test('nothing of an entropy that falls because most groups are solved, and that it is used up where they are solved no more', () => {
    const solved = 'train/agg/all/solved_all';
    const easy = steps(60, (step) => ({ entropy: 1 / step, [solved]: Math.min(0.8, step / 40) }));
    assert.deepEqual(watched(easy), []);
    const lost = steps(60, (step) => ({ entropy: 1 / step, [solved]: step <= 40 ? 0.8 : 0.1 }));
    assert.deepEqual(
      watched(lost).map(({ kind, step }) => [kind, step]),
      [['entropy', 43]], // 2 × 0.8 and 3 × 0.1 of 5 are below a half
    );
  });

  test('that answers grow at once, and not that they grow slowly', () => {
    const jump = watched(steps(40, (step) => ({ [length]: step <= 30 ? 100 : 300 })));
    assert.deepEqual(
      jump.map(({ kind, step }) => [kind, step]),
      [['length', 33]], // 3 × 300 and 2 × 100 of 5 are 220, and the 20 before are 100
    );
    assert.match(jump[0]!.text, /220 tokens, 2\.2 times the 100 of the 20 steps before/);
    assert.deepEqual(watched(steps(200, (step) => ({ [length]: 100 * 1.02 ** step }))), []);
  });

  test('that rollouts come from far away, and again when that had been over', () => {
    const far = (step: number): Figures => ({
      mismatch_kl: step <= 20 || (step > 40 && step <= 60) ? 0.01 : 0.3,
      'off_policy/mean': 3.5,
    });
    const found = watched(steps(80, far));
    assert.deepEqual(
      found.map(({ kind, step }) => [kind, step]),
      [
        ['mismatch', 22], // 2 × 0.3 and 3 × 0.01 of 5 are above 0.1
        ['mismatch', 62],
      ],
    );
    assert.match(found[0]!.text, /0\.13 nats per token away .*, 3\.5 versions behind: .*max_async_level/);
    const [together] = watched(steps(20, () => ({ mismatch_kl: 0.5, 'off_policy/mean': 0 })));
    assert.match(together!.text, /0\.50 nats per token apart at the same weights/);
    assert.deepEqual(watched(steps(80, () => ({ mismatch_kl: 0.09 }))), []);
  });

  test('that rewards rise while held-out scores fall, beyond chance where that is known', () => {
    const rising = (evals: Readonly<Record<number, Figures>>) => {
      return steps(40, (step) => ({ 'train/reward': step / 40, ...evals[step] }));
    };
    const score = (mean: number, more: Figures = {}): Figures => ({ 'eval/words/reward/mean': mean, ...more });
    const found = watched(rising({ 10: score(0.4), 20: score(0.5), 30: score(0.44), 40: score(0.3) }));
    assert.deepEqual(
      found.map(({ kind, step, environment }) => [kind, step, environment]),
      [['held-out', 30, 'words']], // one notice for the same best
    );
    assert.match(found[0]!.text, /0\.500 at step 20 to 0\.440 .* from 0\.450 to 0\.700/);
    assert.deepEqual(watched(rising({ 20: score(0.5), 30: score(0.46) })), [], 'less than eval_fall');
    assert.deepEqual(watched(rising({ 20: score(0.5), 30: score(0.4, { 'eval/words/vs_best/is_worse': 0 }) })), []);
    const falling = steps(30, (step) => ({
      'train/reward': 1 - step / 40,
      ...(step === 20 ? score(0.5) : step === 30 ? score(0.3) : {}),
    }));
    assert.deepEqual(watched(falling), [], 'the reward falls as well');
  });

  test('nothing of a run of a few steps, or of one without these metrics', () => {
    assert.deepEqual(watched(steps(14, (step) => ({ entropy: step === 14 ? 0 : 1, [length]: step * 10 }))), []);
    assert.deepEqual(watched(steps(100, () => ({ loss: 1 }))), []);
  });
});
