import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parameterCount, Parameters } from '../../engine/index.ts';
import { floats, floatScalar, ints, longs, openSession } from '../../engine/onnx/session.ts';
import { factsOf } from '../../core/rl/learning/batch.ts';
import { gather, maskTotal } from '../../engine/train/micro-batches.ts';
import { buildTrainGraph, gradientName, type TrainGraphKind } from '../../engine/train/train-graph.ts';
import { microBatchesOf, randomBatch, randomParameters, tinyConfig } from './models.ts';

/** CISPO's weight is a constant of its gradient, so the loss to differentiate is the one with the weight held fixed. */
interface LossCase {
  readonly name: string;
  readonly kind: TrainGraphKind;
  readonly tied: boolean;
  readonly temperature: number;
  readonly clipHigh: number;
  readonly clipLow?: number;
  readonly beta: number;
}

const cases: LossCase[] = [
  { name: 'sft', kind: 'sft', tied: true, temperature: 1, clipHigh: 3, beta: 0 },
  { name: 'sft, untied', kind: 'sft', tied: false, temperature: 0.7, clipHigh: 3, beta: 0 },
  { name: 'cispo', kind: 'cispo', tied: true, temperature: 1, clipHigh: 1.2, beta: 0 },
  { name: 'cispo at another temperature', kind: 'cispo', tied: false, temperature: 1.4, clipHigh: 1.2, beta: 0 },
  { name: 'cispo with KL', kind: 'cispo_kl', tied: true, temperature: 0.8, clipHigh: 1.2, beta: 0.5 },
  { name: 'importance sampling', kind: 'importance_sampling', tied: true, temperature: 1, clipHigh: 1e9, beta: 0 },
  {
    name: 'importance sampling with a mask on either side',
    kind: 'importance_sampling',
    tied: false,
    temperature: 0.8,
    clipLow: 0.85,
    clipHigh: 1.2,
    beta: 0,
  },
];

for (const lossCase of cases) {
  test(`the gradient of ${lossCase.name} agrees with finite differences`, async () => {
    const config = { ...tinyConfig, tiedEmbeddings: lossCase.tied };
    const parameters = randomParameters(config, 4);
    const losses = await openLosses(config, lossCase, parameters);
    const gradient = await losses.gradient();
    for (const { name, offset, length } of parameters.layout) {
      // A direction per tensor: every element takes part, and the slope is large against rounding.
      const direction = gradient.flat.subarray(offset, offset + length);
      const size = Math.sqrt(direction.reduce((sum, value) => sum + value * value, 0));
      const step = 1e-2;
      const at = (side: number): Promise<number> => losses.lossAlong(offset, direction, (side * step) / size);
      const slope = ((await at(1)) - (await at(-1))) / (2 * step);
      assert.ok(Math.abs(slope - size) < 5e-3 * size + 2e-5, `${name}: ${slope} against ${size}`);
    }
    await losses.close();
  });
}

interface Losses {
  gradient(): Promise<Parameters>;
  /** The loss with the stop-gradient weights of the unmoved parameters, moved by scale · direction at offset. */
  lossAlong(offset: number, direction: Float32Array, scale: number): Promise<number>;
  close(): Promise<void>;
}

/** The loss is computed in double precision from the graph's logprobs, so only the model itself is the graph's. */
async function openLosses(config: typeof tinyConfig, lossCase: LossCase, parameters: Parameters): Promise<Losses> {
  const samples = randomBatch(config, 6, 2);
  const [micro, ...others] = await microBatchesOf(samples);
  assert.ok(micro && others.length === 0);
  const vector = (values: Float32Array): ReturnType<typeof floats> => floats(values, [values.length]);
  const mask = gather(micro, (row) => samples[row]!.lossMask);
  const advantages = gather(micro, (row) => samples[row]!.advantages);
  const behavior = gather(micro, (row) => samples[row]!.behaviorLogprobs);
  const reference = behavior.map((value, i) => value + 0.3 * Math.sin(i));
  const total = maskTotal(samples.map(factsOf));
  const tokens = {
    tokens: ints(micro.tokens, [micro.rows.length, micro.width]),
    selected: longs(micro.selected, [micro.selected.length]),
    targets: longs(micro.targets, [micro.targets.length]),
    inverse_temperature: floats(new Float32Array(micro.targets.length).fill(1 / lossCase.temperature), [
      micro.targets.length,
      1,
    ]),
  };
  const policy = {
    advantages: vector(advantages),
    behavior_logprobs: vector(behavior),
    clip_low: floatScalar(lossCase.clipLow ?? 0),
    clip_high: floatScalar(lossCase.clipHigh),
    kl_tau: floatScalar(0),
    sampled_logprobs: vector(behavior),
    teacher_weights: vector(new Float32Array(advantages.length)),
    teacher_logprobs: vector(new Float32Array(advantages.length)),
  };
  const lossFeeds = {
    mask: vector(mask),
    weights: vector(mask),
    inverse_normalizer: floatScalar(1 / total),
    ...(lossCase.kind === 'sft' ? {} : policy),
    ...(lossCase.kind === 'cispo_kl'
      ? { reference_logprobs: vector(reference), beta: floatScalar(lossCase.beta) }
      : {}),
  };
  const score = await openSession(buildTrainGraph(config, 'score'), { threads: 1 });
  const train = await openSession(buildTrainGraph(config, lossCase.kind), { threads: 1 });
  const logprobsOf = async (moved: Parameters): Promise<Float32Array> =>
    (await score.run({ ...moved.tensors, ...tokens }))['logprobs']!.data as Float32Array;
  const unmoved = await logprobsOf(parameters);
  const lossOf = (logprobs: Float32Array): number => {
    let loss = 0;
    logprobs.forEach((logprob, i) => {
      const ratio = Math.exp(unmoved[i]! - behavior[i]!);
      if (lossCase.kind === 'importance_sampling') {
        // The mask is decided once, and has no gradient.
        const isKept = ratio >= (lossCase.clipLow ?? 0) && ratio <= lossCase.clipHigh;
        if (isKept) loss -= mask[i]! * Math.exp(logprob - behavior[i]!) * advantages[i]!;
        return;
      }
      const weight = lossCase.kind === 'sft' ? 1 : Math.min(ratio, lossCase.clipHigh) * advantages[i]!;
      const difference = reference[i]! - logprob;
      const kl = lossCase.kind === 'cispo_kl' ? lossCase.beta * (Math.exp(difference) - difference - 1) : 0;
      loss += mask[i]! * (kl - weight * logprob);
    });
    return loss / total;
  };
  return {
    async gradient() {
      const output = await train.run({ ...parameters.tensors, ...tokens, ...lossFeeds });
      const loss = (output['metrics']!.data as Float32Array)[0]!;
      assert.ok(Math.abs(loss - lossOf(unmoved)) < 1e-5, `the loss is ${loss}, expected ${lossOf(unmoved)}`);
      const gradient = new Parameters(config, new Float32Array(parameterCount(config)));
      for (const { name } of gradient.layout) gradient.view(name).set(output[gradientName(name)]!.data as Float32Array);
      return gradient;
    },
    async lossAlong(offset, direction, scale) {
      const moved = parameters.clone();
      direction.forEach((value, i) => (moved.flat[offset + i]! += scale * value));
      return lossOf(await logprobsOf(moved));
    },
    async close() {
      await score.release();
      await train.release();
    },
  };
}
