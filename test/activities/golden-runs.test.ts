/** Run files of other systems: ten steps on recorded rollouts, number by number what each system's own code computes from them. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { accept } from '../config/read-run.ts';
import { type GoldenRow, type GoldenStep, goldenSteps, goldenText, playGolden, type Without } from './golden-run.ts';

interface Golden {
  /** Of the run file, and of what the peer recorded from it. */
  readonly name: string;
  readonly dialect: string;
  readonly without?: Without;
  /** turns: each turn is a row there, and here turns that go on share one, which is the same but for the work. The trained tokens are compared. */
  readonly rows?: 'turns';
  /** Figures that are other numbers on purpose, and the line with which `check` says so before the run. */
  readonly differs?: Readonly<Partial<Record<keyof GoldenStep, RegExp>>>;
}

const golden: readonly Golden[] = [
  { name: 'prime-rl', dialect: 'prime-rl' },
  {
    name: 'prime-rl-0.4',
    dialect: 'prime-rl-0.4',
    without: { failures: true, rewriting: true },
    differs: { loss: /prime-rl logs −ρ·A·ln π, which has the same gradient/ },
  },
  { name: 'vf-rl', dialect: 'vf-rl', without: { failures: true }, rows: 'turns' },
];

/** How near a figure must be to that of home: a fraction of it. */
const within = { learningRate: 1e-6, loss: 1e-4, gradientNorm: 1e-4, entropy: 1e-5, masked: 1e-5 } as const;
const figures = Object.keys(within) as (keyof typeof within)[];

describe('a run file trains here what it trains at home', () => {
  for (const { name, dialect, without, rows: theirs, differs = {} } of golden) {
    test(`${name}.toml: ten steps on the same rollouts give the same numbers`, async (t) => {
      const { spec, readAs, warnings } = accept(await goldenText(`${name}.toml`), { file: `${name}.toml` });
      assert.equal(readAs.dialect, dialect);
      for (const line of Object.values(differs)) assert.match(warnings.join('\n'), line);
      const home = await goldenSteps(name);
      const ours = await playGolden(t, spec, without);
      assert.equal(ours.length, home.length);
      for (const [i, { rows, ...found }] of ours.entries()) {
        const { rows: expectedRows, ...expected } = home[i]!;
        if (process.env['RATCHET_GOLDEN'] === 'show') console.log(name, i + 1, found, expected);
        const compared = theirs === 'turns' ? trainedTokens : (all: readonly GoldenRow[]) => all.map(rounded);
        assert.deepEqual(compared(rows), compared(expectedRows), `rows of step ${i + 1}`);
        for (const figure of figures.filter((one) => differs[one] === undefined)) {
          const what = `${figure} of step ${i + 1}: ${found[figure]}, at home ${expected[figure]}`;
          const difference = Math.abs(found[figure] - expected[figure]);
          assert.ok(difference <= within[figure] * Math.max(1e-2, Math.abs(expected[figure])), what);
        }
      }
    });
  }
});

/** Each with all that stands before it, and its advantage; in no order. */
function trainedTokens(rows: readonly GoldenRow[]): string[] {
  return rows
    .map(rounded)
    .flatMap(({ tokens, mask, advantages }) =>
      mask.flatMap((one, t) => (one === 1 ? [`${tokens.slice(0, t + 1).join(' ')}: ${advantages[t]!}`] : [])),
    )
    .sort();
}

function rounded({ tokens, mask, advantages }: GoldenRow): GoldenRow {
  return { tokens, mask, advantages: advantages.map((advantage) => Number(advantage.toFixed(6))) };
}
