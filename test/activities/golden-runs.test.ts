/** Run files of other systems: ten steps on recorded rollouts, number by number what each system's own code computes from them. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { accept } from '../config/read-run.ts';
import { playGoldenRows } from './golden-rows.ts';
import { type GoldenRow, type GoldenStep, goldenSteps, goldenText, playGolden, type Without } from './golden-run.ts';

interface Golden {
  /** Name of the run file, and of the peer's recording from it. */
  readonly name: string;
  readonly dialect: string;
  readonly without?: Without;
  /**
   * turns: each turn is a row there, and here consecutive turns share one, which only saves work. Compares the trained
   * tokens.
   */
  readonly rows?: 'turns';
  /** Figures that are other numbers on purpose, and the line with which `check` says so before the run. */
  readonly differs?: Readonly<Partial<Record<keyof GoldenStep, RegExp>>>;
}

const golden: readonly Golden[] = [
  // Its loss says kl_tau, which the newest prime-rl no longer has.
  { name: 'prime-rl', dialect: 'prime-rl-0.9' },
  {
    name: 'prime-rl-0.4',
    dialect: 'prime-rl-0.4',
    without: { failures: true, rewriting: true },
    differs: { loss: /prime-rl logs −ρ·A·ln π, which has the same gradient/ },
  },
  { name: 'hosted', dialect: 'hosted' },
  { name: 'vf-rl', dialect: 'vf-rl', without: { failures: true }, rows: 'turns' },
  { name: 'grpo', dialect: 'grpo', without: { failures: true, rewriting: true } },
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
        sameRows(
          theirs === 'turns' ? byToken(rows) : rows,
          theirs === 'turns' ? byToken(expectedRows) : expectedRows,
          i + 1,
        );
        sameFigures(found, expected, i + 1, Object.keys(differs));
      }
    });
  }

  test('prime-rl-sft.toml: ten steps on the same rows are the same sequences, and give the same numbers', async (t) => {
    const { spec, readAs, warnings } = accept(await goldenText('prime-rl-sft.toml'), { file: 'prime-rl-sft.toml' });
    assert.equal(readAs.dialect, 'prime-rl-sft');
    assert.match(warnings.join('\n'), /micro_batch_size = 2: prime-rl leaves out rows/);
    const home = await goldenSteps('prime-rl-sft');
    const ours = await playGoldenRows(t, spec, 'prime-rl-sft.jsonl');
    assert.equal(ours.length, home.length);
    for (const [i, { rows, ...found }] of ours.entries()) {
      assert.deepEqual(rows, home[i]!.rows, `rows of step ${i + 1}`);
      sameFigures(found, home[i]!, i + 1);
    }
  });
});

/** Those that the system computes. */
function sameFigures(
  found: Partial<GoldenStep>,
  expected: Partial<GoldenStep>,
  step: number,
  but: readonly string[] = [],
): void {
  for (const figure of figures) {
    const [here, there] = [found[figure], expected[figure]];
    if (there === undefined || but.includes(figure)) continue;
    const what = `${figure} of step ${step}: ${here}, at home ${there}`;
    assert.ok(Math.abs(here! - there) <= within[figure] * Math.max(1e-2, Math.abs(there)), what);
  }
}

/** Tokens and masks alike, advantages to the rounding of float32. */
function sameRows(found: readonly GoldenRow[], expected: readonly GoldenRow[], step: number): void {
  const placed = (rows: readonly GoldenRow[]) => rows.map(({ tokens, mask }) => ({ tokens, mask }));
  assert.deepEqual(placed(found), placed(expected), `rows of step ${step}`);
  for (const [row, { advantages }] of found.entries()) {
    const there = expected[row]!.advantages;
    const isNear = advantages.every((advantage, t) => Math.abs(advantage - there[t]!) < 2e-6);
    assert.ok(isNear, `advantages in row ${row} of step ${step}: ${advantages.join(' ')}, at home ${there.join(' ')}`);
  }
}

/** Each trained token as a row of its own, with all that stands before it, in one order. */
function byToken(rows: readonly GoldenRow[]): GoldenRow[] {
  const tokens = rows.flatMap((row) =>
    row.mask.flatMap((one, t) =>
      one === 0 ? [] : [{ tokens: row.tokens.slice(0, t + 1), mask: [1], advantages: [row.advantages[t]!] }],
    ),
  );
  return tokens.sort(
    (a, b) => a.tokens.join(' ').localeCompare(b.tokens.join(' ')) || a.advantages[0]! - b.advantages[0]!,
  );
}
