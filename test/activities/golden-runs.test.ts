/** Run files of other systems: ten steps on recorded rollouts, number by number what each system's own code computes from them. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { accept } from '../config/read-run.ts';
import { type GoldenRow, goldenSteps, goldenText, playGolden, type Without } from './golden-run.ts';

interface Golden {
  /** Of the run file, and of what the peer recorded from it. */
  readonly name: string;
  readonly dialect: string;
  readonly without?: Without;
}

const golden: readonly Golden[] = [{ name: 'prime-rl', dialect: 'prime-rl' }];

describe('a run file trains here what it trains at home', () => {
  for (const { name, dialect, without } of golden) {
    test(`${name}.toml: ten steps on the same rollouts give the same numbers`, async (t) => {
      const { spec, readAs } = accept(await goldenText(`${name}.toml`), { file: `${name}.toml` });
      assert.equal(readAs.dialect, dialect);
      const home = await goldenSteps(name);
      const ours = await playGolden(t, spec, without);
      assert.equal(ours.length, home.length);
      for (const [i, step] of ours.entries()) {
        const there = home[i]!;
        if (process.env['RATCHET_GOLDEN'] === 'show') {
          const { rows: a, ...figures } = step;
          const { rows: b, ...expected } = there;
          console.log(name, i + 1, a.length, b.length, figures, expected);
          continue;
        }
        const of = (figure: string): string => `${figure} of step ${i + 1}`;
        assert.deepEqual(step.rows.map(rounded), there.rows, of('rows'));
        near(step.learningRate, there.learningRate, 1e-6, of('learning rate'));
        near(step.loss, there.loss, 1e-4, of('loss'));
        near(step.gradientNorm, there.gradientNorm, 1e-4, of('gradient norm'));
        near(step.entropy, there.entropy, 1e-5, of('entropy'));
        near(step.masked, there.masked, 1e-5, of('share of masked tokens'));
      }
    });
  }
});

function rounded({ tokens, mask, advantages }: GoldenRow): GoldenRow {
  return { tokens, mask, advantages: advantages.map((advantage) => Number(advantage.toFixed(6))) };
}

/** Within a fraction of the expected value. */
function near(found: number, expected: number, within: number, what: string): void {
  const difference = Math.abs(found - expected);
  assert.ok(difference <= within * Math.max(1e-2, Math.abs(expected)), `${what}: ${found}, at home ${expected}`);
}
