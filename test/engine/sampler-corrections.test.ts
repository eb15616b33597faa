/** Training on tokens sampled from another distribution than the one the step compares with. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { CorrectionSpec, type LossSettings } from '../../config/run-spec.ts';
import { batchOf, type PackedRow, type TrainSample } from '../../core/rl/learning/batch.ts';
import { correctRow } from '../../core/rl/learning/correction.ts';
import { LogprobLoss } from '../../engine/index.ts';

const engine = new LogprobLoss();
after(() => engine.close());

const opd: LossSettings = {
  type: 'importance_sampling',
  clipHigh: 1,
  maskLow: 0,
  maskHigh: 1e4,
  aggregation: 'token',
  advantageTau: 0,
  teacherTau: 1,
};
const behavior = [0, -1, -2];
const teacher = [0, -0.5, -1];
const row = (more: Partial<PackedRow> = {}): PackedRow => ({
  tokenIds: [1, 2, 3],
  lossMask: [0, 1, 1],
  behaviorLogprobs: behavior,
  advantages: [0, 0, 0],
  teacherLogprobs: teacher,
  ...more,
});

async function pass(sample: TrainSample, loss: LossSettings, logprobs: readonly number[]) {
  const { gradients, metrics } = await engine.pass(batchOf([sample]), { loss, temperature: 1, klBeta: 0 }, [logprobs]);
  return { gradient: Array.from(gradients[0]!).slice(1), metrics };
}

function assertClose(actual: readonly number[], expected: readonly number[]): void {
  assert.equal(actual.length, expected.length);
  actual.forEach((value, i) =>
    assert.ok(Math.abs(value - expected[i]!) < 1e-6, `${actual.join()} ≠ ${expected.join()}`),
  );
}

describe('a teacher’s lead', () => {
  test('gets the weight of a token that was drawn with top_p, as its advantage does', async () => {
    const correction = { ...CorrectionSpec.parse({}), oldLogprobs: 'sampler' as const };
    const plain = correctRow(row(), null, correction).sample;
    // −w · ρ · (log π_T − ℓ) ÷ tokens, with ρ = 1 and w = 1.
    assertClose((await pass(plain, opd, behavior)).gradient, [-0.25, -0.5]);
    const ln2 = Math.log(2);
    const drawn = row({ samplingLogprobs: [0, -1 + ln2, -2 - Math.log(1.5)] });
    const { sample } = correctRow(drawn, null, correction);
    assertClose((await pass(sample, opd, behavior)).gradient, [-0.125, -0.75]);
  });

  test('gets the weights of [trainer.correction]', async () => {
    const correction = {
      ...CorrectionSpec.parse({ weight: 'sequence', weightMax: 8 }),
      oldLogprobs: 'sampler' as const,
    };
    const drawn = row({ samplingLogprobs: [0, -1 - Math.log(2), -2 - Math.log(2)] });
    const { sample } = correctRow(drawn, null, correction);
    assertClose((await pass(sample, opd, behavior)).gradient, [-1, -2]);
  });

  test('is masked with its token', async () => {
    const correction = {
      ...CorrectionSpec.parse({ weight: 'none', tokenMask: [0.5, 2] }),
      oldLogprobs: 'sampler' as const,
    };
    const proximal = [0, -1 - 4.1, -2];
    const { sample, tally } = correctRow(row(), proximal, correction);
    assert.equal(tally!.masked, 1);
    const { gradient } = await pass(sample, opd, proximal);
    assert.equal(Math.abs(gradient[0]!), 0);
    assertClose(gradient.slice(1), [-0.5]);
  });
});

describe('the distance to the sampler', () => {
  const loss: LossSettings = { ...opd, advantageTau: 1, teacherTau: 0 };
  const now = [0, -1.5, -1.8];
  const k3 = (was: readonly number[]): number =>
    [1, 2].reduce((sum, t) => sum + Math.exp(now[t]! - was[t]!) - 1 - (now[t]! - was[t]!), 0) / 2;

  test('is measured from what sampled, whichever log probabilities the ratio is taken to', async () => {
    for (const oldLogprobs of ['sampler', 'trainer'] as const) {
      const correction = { ...CorrectionSpec.parse({}), oldLogprobs };
      const { sample } = correctRow(row({ advantages: [0, 1, -1] }), now, correction);
      const { metrics } = await pass(sample, loss, now);
      assertClose([metrics.mismatchKl, metrics.maxLogprobDifference], [k3(behavior), 0.5]);
      assertClose([metrics.ratioMean], [(Math.exp(-0.5) + Math.exp(0.2)) / 2]);
    }
  });

  test('is measured from the sampler where its server told nothing else', async () => {
    const { behaviorLogprobs: _, ...others } = row({ advantages: [0, 1, -1] });
    const told = [0, -0.9, -1.7];
    for (const weight of ['token', 'none'] as const) {
      const correction = { ...CorrectionSpec.parse({ weight }), oldLogprobs: 'sampler' as const };
      const { sample } = correctRow({ ...others, samplingLogprobs: told }, now, correction);
      assertClose([(await pass(sample, loss, now)).metrics.mismatchKl], [k3(told)]);
    }
  });
});

describe('a token whose probability rose beyond what a number holds', () => {
  const now = [0, -0.5, -1.9];
  const far = row({ behaviorLogprobs: [0, -95.5, -2], advantages: [0, 1, 1] });
  const losses: Record<string, LossSettings> = {
    dppo: { ...opd, type: 'dppo', maskLow: 0.2, maskHigh: 0.2, klTau: 0 },
    ipo: { ...opd, type: 'ipo', maskLow: 0.1, maskHigh: 0.1, klTau: 0 },
    grpo: { ...opd, type: 'grpo', clipLow: 0.8, clipHigh: 1.2 },
    importance_sampling: { ...opd, maskHigh: 8 },
    cispo: { ...opd, type: 'cispo', clipHigh: 4 },
    gspo: { ...opd, type: 'gspo', clipLow: 0.8, clipHigh: 1.2 },
  };
  for (const [type, settings] of Object.entries(losses)) {
    const loss = { ...settings, advantageTau: 1, teacherTau: 0 };
    test(`gives ${type} a finite loss and gradient where it is masked or clipped`, async () => {
      const { gradient, metrics } = await pass({ ...far, behaviorLogprobs: far.behaviorLogprobs! }, loss, now);
      assert.ok(gradient.every(Number.isFinite), String(gradient));
      for (const [name, value] of Object.entries(metrics)) assert.ok(value === null || Number.isFinite(value), name);
      if (type !== 'cispo') assert.equal(Math.abs(gradient[0]!), 0);
    });

    test(`gives ${type} a finite loss and gradient where the correction masked it`, async () => {
      const correction = { ...CorrectionSpec.parse({ tokenMask: [0.1, 10] }), oldLogprobs: 'sampler' as const };
      const { sample } = correctRow({ ...far, advantages: [0, -1, -1] }, now, correction);
      const { gradient, metrics } = await pass(
        sample,
        { ...loss, ...(type === 'importance_sampling' && { maskHigh: null }) },
        now,
      );
      assert.ok(gradient.every(Number.isFinite), String(gradient));
      assert.equal(Math.abs(gradient[0]!), 0);
      for (const [name, value] of Object.entries(metrics)) assert.ok(value === null || Number.isFinite(value), name);
    });
  }
});
