import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { factsOf, type TrainSample } from '../../core/rl/learning/batch.ts';
import type { LossSettings } from '../../config/run-spec.ts';
import { aggregationOf, EngineOptimizer, type TrainMetrics, type TrainOptions } from '../../engine/index.ts';
import { floats, floatScalar, ints, longs, openSession } from '../../engine/onnx/session.ts';
import { gather } from '../../engine/train/micro-batches.ts';
import { buildTrainGraph, type GradientKind, gradientName, metricNames } from '../../engine/train/train-graph.ts';
import { losses } from '../../core/rl/losses.ts';
import { microBatchesOf, optimizer, randomBatch, randomParameters, temporaryFolder, tinyConfig } from './models.ts';

const config = { ...tinyConfig, layerCount: 1 };
const parameters = randomParameters(config, 4);
const samples = randomBatch(config, 8, 2);
const [micro] = await microBatchesOf(samples);
assert.ok(micro);
const mask = gather(micro, (row) => samples[row]!.lossMask);
const advantages = gather(micro, (row) => samples[row]!.advantages);
const tokens = {
  tokens: ints(micro.tokens, [micro.rows.length, micro.width]),
  selected: longs(micro.selected, [micro.selected.length]),
  targets: longs(micro.targets, [micro.targets.length]),
};
const vector = (values: Float32Array): ReturnType<typeof floats> => floats(values, [values.length]);

/** Loss of one token and its derivative by ℓ, in plain double precision: the formulas of the papers, written out. */
interface Plain {
  readonly loss: number;
  readonly slope: number;
}
interface Token {
  readonly logprob: number;
  readonly behavior: number;
  readonly advantage: number;
}
const bounds = { clipLow: 0.8, clipHigh: 1.28 };
/** Bounds of dppo and ipo, in probability. */
const moves = { clipLow: 0.01, clipHigh: 0.012 };
const klTau = 0.3;
/** Beyond some of the ratios below that are kept. */
const ratioMax = 1.5;

function trustRegion(
  { logprob, behavior, advantage }: Token,
  isOut: (moved: number) => boolean,
  { tau = klTau, cap = Infinity } = {},
): Plain {
  const d = logprob - behavior;
  const gain = isOut(Math.exp(logprob) - Math.exp(behavior)) ? 0 : -Math.min(Math.exp(d), cap) * advantage;
  return { loss: gain + tau * d * d, slope: gain + 2 * tau * d };
}

const plainLosses: Record<'cispo' | 'grpo' | 'importance_sampling' | 'dppo' | 'ipo' | 'dro', (token: Token) => Plain> =
  {
    cispo({ logprob, behavior, advantage }) {
      const weight = Math.min(Math.exp(logprob - behavior), bounds.clipHigh) * advantage;
      return { loss: -weight * logprob, slope: -weight };
    },
    /**
     * Same as torch.minimum(ratio * A, ratio.clamp(low, high) * A): the smaller branch has the gradient, both halves if
     * equal.
     */
    grpo({ logprob, behavior, advantage }) {
      const ratio = Math.min(Math.exp(logprob - behavior), ratioMax);
      const clipped = Math.min(Math.max(ratio, bounds.clipLow), bounds.clipHigh);
      const inside = ratio >= bounds.clipLow && ratio <= bounds.clipHigh ? 1 : 0;
      const [first, second] = [ratio * advantage, clipped * advantage];
      const share = first < second ? 1 : first > second ? 0 : 0.5;
      const slope = share * ratio * advantage + (1 - share) * inside * ratio * advantage;
      return { loss: -Math.min(first, second), slope: -slope };
    },
    importance_sampling({ logprob, behavior, advantage }) {
      const ratio = Math.exp(logprob - behavior);
      const kept = ratio >= bounds.clipLow && ratio <= bounds.clipHigh ? ratio : 0;
      return { loss: -kept * advantage, slope: -kept * advantage };
    },
    dppo: (token) =>
      trustRegion(token, (moved) => (token.advantage > 0 ? moved > moves.clipHigh : moved < -moves.clipLow)),
    ipo: (token) => trustRegion(token, (moved) => moved > moves.clipHigh || moved < -moves.clipLow, { cap: ratioMax }),
    dro({ logprob, behavior, advantage }) {
      const d = logprob - behavior;
      return { loss: klTau * d * d - advantage * logprob, slope: 2 * klTau * d - advantage };
    },
  };

async function runGraph(
  kind: GradientKind,
  feeds: Record<string, ReturnType<typeof floats>>,
): Promise<{ metrics: Record<string, number>; gradient: Map<string, Float32Array> }> {
  const session = await openSession(buildTrainGraph(config, kind), { threads: 1 });
  const output = await session.run({ ...parameters.tensors, ...tokens, mask: vector(mask), ...feeds });
  await session.release();
  const values = output['metrics']!.data as Float32Array;
  const metrics = Object.fromEntries(metricNames(kind).map((name, i) => [name, values[i]!]));
  const gradient = new Map(
    parameters.layout.map(({ name }) => [name, output[gradientName(name)]!.data as Float32Array]),
  );
  return { metrics, gradient };
}

const inverseOf = (temperature: number) =>
  floats(new Float32Array(mask.length).fill(1 / temperature), [mask.length, 1]);

async function logprobsAt(temperature: number): Promise<Float32Array> {
  const session = await openSession(buildTrainGraph(config, 'score'), { threads: 1 });
  const feeds = { ...parameters.tensors, ...tokens, inverse_temperature: inverseOf(temperature) };
  const output = await session.run(feeds);
  await session.release();
  return output['logprobs']!.data as Float32Array;
}

function requireClose(actual: ReadonlyMap<string, Float32Array>, expected: ReadonlyMap<string, Float32Array>): void {
  for (const [name, values] of expected) {
    const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const given = actual.get(name)!;
    values.forEach((value, i) => assert.ok(Math.abs(value - given[i]!) <= 1e-5 * largest + 1e-9, `${name}[${i}]`));
  }
}

describe('losses agree with their formulas in double precision', () => {
  for (const type of ['cispo', 'grpo', 'importance_sampling', 'dppo', 'ipo', 'dro'] as const) {
    for (const beta of [null, 0.5]) {
      for (const temperature of [1, 0.7]) {
        test(`${type}${beta === null ? '' : ' with KL'} at temperature ${temperature}`, async () => {
          const logprobs = await logprobsAt(temperature);
          // Ratios on both sides of both bounds, at advantages of both signs.
          const behavior = logprobs.map((logprob, i) => logprob - [0.6, -0.5, 0.1, -0.1, 0.26][i % 5]!);
          const reference = logprobs.map((logprob, i) => logprob + 0.4 * Math.sin(i));
          const weights = mask.map((value, i) => (value * (1 + (i % 3))) / 2);
          const normalizer = 7;
          const plain = Array.from(logprobs, (logprob, i): Plain => {
            const token = { logprob, behavior: behavior[i]!, advantage: advantages[i]! };
            const { loss, slope } = plainLosses[type](token);
            const d = reference[i]! - logprob;
            const kl = beta === null ? { loss: 0, slope: 0 } : { loss: Math.exp(d) - d - 1, slope: 1 - Math.exp(d) };
            return { loss: loss + (beta ?? 0) * kl.loss, slope: slope + (beta ?? 0) * kl.slope };
          });
          const shared = {
            weights: vector(weights),
            inverse_normalizer: floatScalar(1 / normalizer),
            inverse_temperature: inverseOf(temperature),
          };
          const { metrics, gradient } = await runGraph(beta === null ? type : `${type}_kl`, {
            ...shared,
            advantages: vector(advantages),
            behavior_logprobs: vector(behavior),
            clip_low: floatScalar(boundsOf(type).clipLow),
            clip_high: floatScalar(boundsOf(type).clipHigh),
            kl_tau: floatScalar(klTau),
            ...(losses[type].capsRatios ? { ratio_max: floatScalar(ratioMax) } : {}),
            sampled_logprobs: vector(behavior),
            teacher_weights: vector(new Float32Array(logprobs.length)),
            teacher_logprobs: vector(new Float32Array(logprobs.length)),
            ...(beta === null ? {} : { reference_logprobs: vector(reference), beta: floatScalar(beta) }),
          });
          const loss = plain.reduce((sum, token, i) => sum + weights[i]! * token.loss, 0) / normalizer;
          assert.ok(Math.abs(metrics['loss']! - loss) < 1e-5, `${metrics['loss']} against ${loss}`);
          // Σ slope · ∂ℓ is the gradient of supervised training with those weights, which finite differences vouch for.
          const slopes = Float32Array.from(plain, (token, i) => -weights[i]! * token.slope);
          requireClose(gradient, (await runGraph('sft', { ...shared, weights: vector(slopes) })).gradient);
          requireClipMetrics(type, metrics, logprobs, behavior);
        });
      }
    }
  }
});

function boundsOf(type: keyof typeof plainLosses): typeof bounds {
  return type === 'dppo' || type === 'ipo' ? moves : bounds;
}

function requireClipMetrics(
  type: keyof typeof plainLosses,
  metrics: Record<string, number>,
  logprobs: Float32Array,
  behavior: Float32Array,
): void {
  const ratios = Array.from(logprobs, (logprob, i) => Math.exp(logprob - behavior[i]!));
  const moved = Array.from(logprobs, (logprob, i) => Math.exp(logprob) - Math.exp(behavior[i]!));
  const countMoved = (holds: (moved: number, advantage: number) => boolean): number =>
    moved.filter((value, i) => holds(value, advantages[i]!)).length;
  const count = (holds: (ratio: number, advantage: number) => boolean): number =>
    ratios.filter((ratio, i) => holds(ratio, advantages[i]!)).length;
  const high = {
    cispo: count((ratio) => ratio > bounds.clipHigh),
    grpo: count((ratio, advantage) => ratio > bounds.clipHigh && advantage > 0),
    importance_sampling: count((ratio) => ratio > bounds.clipHigh),
    dppo: countMoved((value, advantage) => value > moves.clipHigh && advantage > 0),
    ipo: countMoved((value) => value > moves.clipHigh),
    dro: 0,
  };
  const low = {
    cispo: 0,
    grpo: count((ratio, advantage) => ratio < bounds.clipLow && advantage < 0),
    importance_sampling: count((ratio) => ratio < bounds.clipLow),
    dppo: countMoved((value, advantage) => value < -moves.clipLow && advantage <= 0),
    ipo: countMoved((value) => value < -moves.clipLow),
    dro: 0,
  };
  assert.deepEqual([metrics['clipFractionLow'], metrics['clipFractionHigh']], [low[type], high[type]]);
  if (type !== 'cispo' && type !== 'dro')
    assert.ok(low[type] > 0 && high[type] > 0, 'the batch has such tokens on either side');
}

test('dppo gives what prime-rl gives for the tokens of its check vector', () => {
  const tokens: Token[] = [
    { logprob: -0.1, behavior: -0.7, advantage: 0.5 },
    { logprob: -2.3, behavior: -1.2, advantage: 0.5 },
    { logprob: -0.5, behavior: -0.55, advantage: -0.5 },
  ];
  const losses = tokens.map((token) =>
    trustRegion(token, (moved) => (token.advantage > 0 ? moved > 0.2 : moved < -0.2), { tau: 0.001 }),
  );
  assert.ok(Math.abs(losses.reduce((sum, { loss }) => sum + loss, 0) - 0.36077251) < 1e-8);
});

const trainer = await EngineOptimizer.open('preset:reverse-text-0.2m', { threads: 1, seed: 3 });
after(() => trainer.close());
const batch = randomBatch(trainer.model.config, 24, 1);
const loss: LossSettings = { type: 'cispo', clipHigh: 3, aggregation: 'token' };
const options: TrainOptions = { learningRate: 0, optimizer, loss, temperature: 1, klBeta: 0 };

async function gradientOf(
  over: Partial<TrainOptions>,
  rows: readonly TrainSample[] = batch,
  by: EngineOptimizer = trainer,
): Promise<{ gradient: Float32Array; metrics: TrainMetrics }> {
  const { metrics } = await by.trainStep(rows, { ...options, ...over });
  return { gradient: by.gradient.flat.slice(), metrics };
}

function requireSame(actual: Float32Array, expected: Float32Array): void {
  const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  assert.ok(largest > 0);
  expected.forEach((value, i) => assert.ok(Math.abs(value - actual[i]!) < 1e-5 * largest, `element ${i}`));
}

describe('aggregation', () => {
  const total = batch.reduce((sum, { lossMask }) => sum + lossMask.reduce((a, b) => a + b, 0), 0);

  test('dr_grpo divides by rows times max_tokens, whatever the lengths', async () => {
    const byToken = await gradientOf({});
    const drGrpo = await gradientOf({ loss: { ...loss, aggregation: 'dr_grpo', maxTokens: 40 } });
    const factor = total / (batch.length * 40);
    requireSame(
      drGrpo.gradient,
      byToken.gradient.map((value) => value * factor),
    );
    assert.ok(Math.abs(drGrpo.metrics.loss - byToken.metrics.loss * factor) < 1e-6);
    assert.equal(drGrpo.metrics.entropy, byToken.metrics.entropy);
    await assert.rejects(gradientOf({ loss: { ...loss, aggregation: 'dr_grpo' } }), { code: 'Unsupported' });
  });

  test('a token that the mask leaves out still counts as a token', async () => {
    const unmasked = { ...loss, type: 'importance_sampling' as const };
    const { metrics } = await gradientOf({ loss: unmasked });
    const masked = await gradientOf({ loss: { ...unmasked, maskLow: 0.9, maskHigh: 1.1 } });
    assert.deepEqual([metrics.clipFractionLow, metrics.clipFractionHigh], [0, 0]);
    assert.ok(masked.metrics.clipFractionLow > 0 && masked.metrics.clipFractionHigh > 0);
    // The same loss from rows whose advantages are 0 where the mask leaves the token out.
    const rows = await trainer.forwardLogprobs(batch, { temperature: 1 });
    const zeroed = batch.map((sample, row) => ({
      ...sample,
      advantages: sample.advantages.map((advantage, t) => {
        const ratio = Math.exp(rows[row]![t]! - sample.behaviorLogprobs[t]!);
        return ratio >= 0.9 && ratio <= 1.1 ? advantage : 0;
      }),
    }));
    requireSame(masked.gradient, (await gradientOf({ loss: unmasked }, zeroed)).gradient);
  });

  test('sequence is the mean over rows of the mean over their tokens', async () => {
    const rows = batch.slice(0, 5);
    const mean = new Float32Array(trainer.gradient.flat.length);
    for (const row of rows) {
      const { gradient } = await gradientOf({}, [row]);
      for (let i = 0; i < mean.length; i++) mean[i]! += gradient[i]! / rows.length;
    }
    const idle = { ...rows[0]!, lossMask: rows[0]!.lossMask.map(() => 0) };
    const { gradient } = await gradientOf({ loss: { ...loss, aggregation: 'sequence' } }, [...rows, idle]);
    requireSame(gradient, mean);
  });

  test('what is averaged over are rollouts: one in three rows counts once, one without loss as well', () => {
    const row = (lossMask: number[], index?: number): TrainSample => {
      const zeros = lossMask.map(() => 0);
      const rollout = index === undefined ? {} : { rollout: { index, of: 5 } };
      return { tokenIds: zeros, lossMask, behaviorLogprobs: zeros, advantages: zeros, ...rollout };
    };
    // Rollouts of 2, 3, 4 and 2 tokens, the third in three rows; the fifth is masked and has no row.
    const rows = [
      row([0, 1, 1], 0),
      row([0, 1, 1, 1], 1),
      row([0, 1], 2),
      row([0, 1, 1], 2),
      row([0, 1], 2),
      row([0, 1, 1], 3),
    ];
    const sequence = aggregationOf(rows.map(factsOf), { aggregation: 'sequence' });
    assert.deepEqual([...sequence.factors], [1 / 2, 1 / 3, 1 / 4, 1 / 4, 1 / 4, 1 / 2]);
    assert.equal(sequence.normalizer, 5);
    assert.equal(aggregationOf(rows.map(factsOf), { aggregation: 'dr_grpo', maxTokens: 10 }).normalizer, 50);
    assert.equal(aggregationOf(rows.map(factsOf), { aggregation: 'token' }).normalizer, 11);
    const alone = [row([0, 1, 1]), row([0, 1]), row([0, 0])];
    assert.equal(aggregationOf(alone.map(factsOf), { aggregation: 'dr_grpo', maxTokens: 10 }).normalizer, 20);
  });

  for (const aggregation of ['token', 'sequence', 'dr_grpo'] as const) {
    test(`the gradient by ${aggregation} does not depend on the cut into micro-batches`, async () => {
      const over = { loss: { ...loss, type: 'grpo' as const, clipLow: 0.8, aggregation, maxTokens: 10 } };
      const whole = await gradientOf(over);
      for (const cut of [{ microBatchRows: 1 }, { microBatchRows: 7 }, { microBatchPositions: 30 }]) {
        requireSame((await gradientOf({ ...over, ...cut })).gradient, whole.gradient);
      }
    });
  }

  test('a row with more logits than are held at once goes through the output layer in parts, to the same gradient', async () => {
    const { vocabularySize } = trainer.model.config;
    const parts = await EngineOptimizer.open('preset:reverse-text-0.2m', {
      threads: 1,
      seed: 3,
      logitsMax: 3 * vocabularySize,
    });
    const referenceLogprobs = batch.map(({ behaviorLogprobs }) => behaviorLogprobs.map((value) => value + 0.1));
    const over = { klBeta: 0.2, referenceLogprobs };
    const [inParts, whole] = [await gradientOf(over, batch, parts), await gradientOf(over)];
    requireSame(inParts.gradient, whole.gradient);
    for (const name of ['loss', 'entropy', 'mismatchKl', 'klDivergence'] as const) {
      assert.ok(Math.abs(inParts.metrics[name]! - whole.metrics[name]!) < 1e-5, name);
    }
    const [some, all] = [
      await parts.forwardLogprobs(batch, { temperature: 1 }),
      await trainer.forwardLogprobs(batch, { temperature: 1 }),
    ];
    some.forEach((row, r) => row.forEach((value, t) => assert.ok(Math.abs(value - all[r]![t]!) < 1e-5)));
    await parts.close();
  });
});

describe('several passes over a batch', () => {
  const open = (): Promise<EngineOptimizer> =>
    EngineOptimizer.open('preset:reverse-text-0.2m', { threads: 1, seed: 3 });
  const rate = { ...options, learningRate: 1e-3 };

  test('each is an optimizer step with the same behaviour logprobs', async () => {
    const [atOnce, oneByOne] = [await open(), await open()];
    const together = await atOnce.trainStep(batch, { ...rate, iterations: 3 });
    const passes = [];
    for (let i = 0; i < 3; i++) passes.push((await oneByOne.trainStep(batch, rate)).metrics);
    assert.equal(await atOnce.digest(), await oneByOne.digest());
    assert.deepEqual(await atOnce.saveState(), await oneByOne.saveState());
    assert.equal(together.metrics.gradNorm, passes[2]!.gradNorm);
    assert.equal(together.metrics.loss, (passes[0]!.loss + passes[1]!.loss + passes[2]!.loss) / 3);
    await Promise.all([atOnce.close(), oneByOne.close()]);
  });

  test('a refused later pass leaves weights and optimizer as they were before the first', async () => {
    const fresh = await open();
    await fresh.trainStep(batch, rate);
    const before = [await fresh.digest(), await fresh.saveState()];
    const result = await fresh.trainStep(batch, { ...rate, learningRate: 1e38, iterations: 2 });
    assert.ok(!result.applied && /in pass 2 of 2/.test(result.reason));
    assert.deepEqual([await fresh.digest(), await fresh.saveState()], before);
    await fresh.close();
  });
});

test('tokens drawn from another distribution weigh as much as their behaviour policy would have drawn them', async () => {
  const shift = [0.2, 0.9, -0.4];
  const drawn = batch.map((sample) => ({
    ...sample,
    samplingLogprobs: sample.behaviorLogprobs.map((logprob, t) => logprob + shift[t % 3]!),
  }));
  // exp(0.4) is within the bound of 2; a difference of 1 would not be.
  const byHand = batch.map((sample) => ({
    ...sample,
    advantages: sample.advantages.map((advantage, t) => advantage * Math.exp(-shift[t % 3]!)),
  }));
  requireSame((await gradientOf({}, drawn)).gradient, (await gradientOf({}, byHand)).gradient);
  const rare = batch.map((sample) => ({
    ...sample,
    samplingLogprobs: sample.behaviorLogprobs.map((logprob) => logprob - 5),
  }));
  const twice = batch.map((sample) => ({ ...sample, advantages: sample.advantages.map((advantage) => 2 * advantage) }));
  requireSame((await gradientOf({}, rare)).gradient, (await gradientOf({}, twice)).gradient);
});

describe('a custom loss', () => {
  const example = fileURLToPath(new URL('../../configs/rl/custom-loss/my-loss.ts', import.meta.url));
  const custom = (path: string, sha256: string | null = null): Partial<TrainOptions> => ({
    loss: { ...loss, type: 'custom', import: { path, sha256 } },
  });

  test('the example, CISPO written again, gives the bits of the built-in one, also with a KL term', async () => {
    assert.deepEqual(await gradientOf(custom(example)), {
      ...(await gradientOf({})),
      metrics: await metricsWithoutClip(),
    });
    const referenceLogprobs = batch.map(({ behaviorLogprobs }) => behaviorLogprobs.map((value) => value - 0.2));
    const withKl = { klBeta: 0.3, referenceLogprobs };
    const [own, builtIn] = [await gradientOf({ ...custom(example), ...withKl }), await gradientOf(withKl)];
    assert.deepEqual(own.gradient, builtIn.gradient);
    assert.equal(own.metrics.klDivergence, builtIn.metrics.klDivergence);
  });

  async function metricsWithoutClip(): Promise<TrainMetrics> {
    return { ...(await gradientOf({})).metrics, clipFraction: 0, clipFractionHigh: 0 };
  }

  test('a file that was changed is another loss, also in this process', async (t) => {
    const folder = await temporaryFolder(t);
    for (const name of ['loss.js', 'loss.ts']) {
      const path = join(folder, name);
      const times = async (factor: number): Promise<number> => {
        await writeFile(path, `export default ({ logprobs, operators }) => operators.multiply(logprobs, ${factor});`);
        return (await gradientOf(custom(path))).metrics.loss;
      };
      const [one, two] = [await times(1), await times(2)];
      assert.ok(Math.abs(two / one - 2) < 1e-4, `${name}: ${one}, then ${two}`);
    }
  });

  test('what is no loss is refused in words that say what was expected', async (t) => {
    const folder = await temporaryFolder(t);
    const refuses = async (name: string, text: string, message: RegExp): Promise<void> => {
      const path = join(folder, `${name}.js`);
      await writeFile(path, text);
      await assert.rejects(gradientOf(custom(path)), { code: 'Unsupported', message });
    };
    await refuses(
      'no-export',
      'export const loss = 1;',
      /must export the custom loss as its default.*no default export/,
    );
    await refuses('number', 'export default 3;', /expected a function, got a number/);
    await refuses('syntax', 'export default (', /failed while it was loaded/);
    await refuses('throws', 'throw new Error("no luck");', /failed while it was loaded: Error: no luck/);
    await refuses(
      'throws-later',
      'export default () => { throw new Error("no luck"); };',
      /throws-later\.js, the custom loss, failed while its graph was built.*no luck/,
    );
    await refuses('nothing', 'export default () => undefined;', /one number per token.*it gave undefined/);
    await refuses(
      'scalar',
      'export default ({ clipHigh }) => clipHigh;',
      /shape \[selected\]; it gave \[\] of float32/,
    );
    const stopped = 'export default ({ logprobs, operators }) => operators.stopGradient(logprobs);';
    await refuses('stopped', stopped, /nothing would be trained/);
    const missing = custom(join(folder, 'missing.js'));
    await assert.rejects(gradientOf(missing), { code: 'Unsupported', message: /cannot be read/ });
    await assert.rejects(gradientOf(custom(example, 'f'.repeat(64))), { code: 'Unsupported', message: /was changed/ });
    await assert.rejects(gradientOf({ loss: { ...loss, type: 'custom' } }), {
      code: 'Unsupported',
      message: /its file/,
    });
  });
});
