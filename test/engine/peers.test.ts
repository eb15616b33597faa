/** Results of peers' own code for the same rollouts (test/data/algorithms: which versions, and how it was recorded). */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { batchOf, type PackedRow } from '../../core/rl/learning/batch.ts';
import { correctionMetrics, correctRow } from '../../core/rl/learning/correction.ts';
import { CorrectionSpec, type LossSettings } from '../../config/run-spec.ts';
import { LogprobLoss } from '../../engine/index.ts';
import { floats, floatScalar, longs, openSession } from '../../engine/onnx/session.ts';
import { buildHeadGraph, gradientName } from '../../engine/train/train-graph.ts';

type Rows = readonly (readonly number[])[];
type Pair = readonly [number, number];

interface Golden {
  readonly rows: { readonly sampler: Rows; readonly policy: Rows; readonly advantages: readonly number[] };
  readonly verl: {
    readonly weights: { readonly token: Rows; readonly sequence: Rows };
    readonly divergences: Readonly<Record<string, { readonly most: number; readonly kept: Rows }>>;
    readonly masks: Readonly<Record<string, { readonly bounds: Pair; readonly kept: Rows }>>;
  };
  readonly trl: Readonly<Record<string, { readonly bounds: Pair; readonly ratios: Rows }>>;
  readonly entropy: {
    readonly hidden: Rows;
    readonly weight: Rows;
    readonly mask: readonly number[];
    readonly temperature: number;
    readonly coef: number;
    readonly loss: number;
    readonly gradients: { readonly hidden: Rows; readonly weight: Rows };
  };
  readonly primeRl04: { readonly settings: Readonly<Record<string, number>>; readonly gradients: Rows };
}
const golden = JSON.parse(readFileSync(new URL('../data/algorithms/golden.json', import.meta.url), 'utf8')) as Golden;
const { sampler, policy } = golden.rows;

/** After an unsampled token, since a row's first has nothing before it. */
const after = (row: readonly number[]): number[] => [0, ...row];
const rows = (advantages: readonly number[] = sampler.map(() => 1)): PackedRow[] =>
  sampler.map((logprobs, r) => ({
    tokenIds: after(logprobs).map((_, t) => t + 1),
    lossMask: after(logprobs).map((_, t) => Number(t > 0)),
    behaviorLogprobs: after(logprobs),
    advantages: after(logprobs).map((_, t) => (t > 0 ? advantages[r]! : 0)),
  }));

/** Weights of the correction: what remains of advantages of 1. */
function weightsBy(correction: Partial<CorrectionSpec>): number[][] {
  const settings = { ...CorrectionSpec.parse(correction), oldLogprobs: 'trainer' as const };
  return rows().map((row, r) => correctRow(row, after(policy[r]!), settings).sample.advantages.slice(1));
}

function assertClose(actual: Rows, expected: Rows, within = 1e-9): void {
  assert.equal(actual.length, expected.length);
  actual.forEach((row, r) => {
    assert.equal(row.length, expected[r]!.length);
    row.forEach((value, t) => assert.ok(Math.abs(value - expected[r]![t]!) < within, `row ${r}, token ${t}: ${value}`));
  });
}

describe('a correction for the sampler weighs tokens', () => {
  for (const weight of ['token', 'sequence'] as const) {
    test(`by ${weight} as verl’s rollout_is`, () => {
      assertClose(weightsBy({ weight, weightMax: 2 }), golden.verl.weights[weight]);
    });
  }

  const maskOf = { token_k1: 'tokenMask', seq_sum_k1: 'sequenceMask', seq_mean_k1: 'geometricMask' } as const;
  for (const [option, mask] of Object.entries(maskOf)) {
    test(`and leaves out those that verl’s rollout_rs ${option} leaves out`, () => {
      const { bounds, kept } = golden.verl.masks[option]!;
      assert.ok(kept.flat().includes(0) && kept.flat().includes(1));
      assertClose(weightsBy({ weight: 'none', [mask]: bounds }), kept);
    });
  }

  for (const [option, { most, kept }] of Object.entries(golden.verl.divergences)) {
    test(`and leaves out those that verl’s rollout_rs ${option} leaves out`, () => {
      assert.ok(kept.flat().includes(0) && kept.flat().includes(1));
      assertClose(weightsBy({ weight: 'none', divergenceMask: { [option]: most } }), kept);
    });
  }

  for (const [mode, { bounds, ratios }] of Object.entries(golden.trl)) {
    test(`as TRL’s ${mode}`, () => {
      const [level, kind] = mode.split('_') as ['token' | 'sequence', 'truncate' | 'mask'];
      const [least, most] = bounds;
      const cut = kind === 'truncate' ? { weightMin: least } : { [`${level}Mask`]: bounds };
      assertClose(weightsBy({ weight: level, weightMax: most, ...cut }), ratios);
    });
  }
});

test('prime-rl 0.4’s loss with its masks of tokens and of whole rows has the same gradient', async (t) => {
  const { settings, gradients } = golden.primeRl04;
  const pair = (name: string): [number, number] => [settings[`${name}_mask_low`]!, settings[`${name}_mask_high`]!];
  const [maskLow, maskHigh] = pair('token');
  const masks = { geometricMask: pair('geo'), extremeMask: pair('sequence') };
  const correction = { ...CorrectionSpec.parse({ weight: 'none', ...masks }), oldLogprobs: 'sampler' as const };
  const loss: LossSettings = { type: 'importance_sampling', clipHigh: 1, maskLow, maskHigh, aggregation: 'token' };
  const now = policy.map(after);
  const corrected = rows(golden.rows.advantages).map((row, r) => correctRow(row, now[r]!, correction));
  assert.ok(correctionMetrics(corrected.map(({ tally }) => tally!))['correction/masked_rows']! > 0);
  const engine = new LogprobLoss();
  t.after(() => engine.close());
  const pass = await engine.pass(
    batchOf(corrected.map(({ sample }) => sample)),
    { loss, temperature: 1, klBeta: 0 },
    now,
  );
  assertClose(
    pass.gradients.map((row) => Array.from(row.slice(1))),
    gradients,
    1e-7,
  );
});

test('the bonus for entropy is TRL’s, and so are its gradients', async () => {
  const { hidden, weight, mask, temperature, coef, loss, gradients } = golden.entropy;
  const [positions, columns] = [hidden.length, hidden[0]!.length];
  const output = { hiddenSize: columns, vocabularySize: weight.length, tiedEmbeddings: false };
  const session = await openSession(buildHeadGraph(output, 'importance_sampling_entropy'), { threads: 1 });
  const matrix = (rows: Rows) => floats(Float32Array.from(rows.flat()), [rows.length, columns]);
  const vector = (of: (position: number) => number) =>
    floats(
      Float32Array.from(mask, (_, i) => of(i)),
      [positions],
    );
  const given = {
    hidden: matrix(hidden),
    'lm_head.weight': matrix(weight),
    targets: longs(
      BigInt64Array.from(mask, () => 2n),
      [positions],
    ),
    inverse_temperature: floats(
      Float32Array.from(mask, () => 1 / temperature),
      [positions, 1],
    ),
    mask: vector((i) => mask[i]!),
    entropy_weight: floatScalar(coef / mask.reduce((sum, value) => sum + value, 0)),
    inverse_normalizer: floatScalar(1),
    // Nothing else has a gradient: no token has an advantage.
    ...Object.fromEntries(
      ['weights', 'behavior_logprobs', 'sampled_logprobs', 'advantages', 'teacher_logprobs', 'teacher_weights'].map(
        (name) => [name, vector(() => 0)],
      ),
    ),
    clip_low: floatScalar(0),
    clip_high: floatScalar(9),
    kl_tau: floatScalar(0),
  };
  const known = Object.entries(given).filter(([name]) => session.inputNames.includes(name));
  const found = await session.run(Object.fromEntries(known));
  await session.release();
  const rowsOf = (name: string): number[][] => {
    const values = Array.from(found[name]!.data as Float32Array);
    return Array.from({ length: values.length / columns }, (_, i) => values.slice(i * columns, (i + 1) * columns));
  };
  assertClose([[(found['metrics']!.data as Float32Array)[0]!]], [[loss]], 1e-6);
  assertClose(rowsOf(gradientName('hidden')), gradients.hidden, 1e-6);
  assertClose(rowsOf(gradientName('lm_head.weight')), gradients.weight, 1e-6);
});
