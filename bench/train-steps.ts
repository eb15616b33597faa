import { z } from 'zod';
import { randomStream } from '../core/random.ts';
import type { TrainSample } from '../core/rl/learning/batch.ts';
import type { EngineOptimizer, LoraConfig, TrainOptions } from '../engine/index.ts';

/** Settings of the optimizer steps on both sides: ours and bench/peers/torch_train.py. */

/** An adapter on every linear layer. */
export const everyLayer: LoraConfig = {
  r: 16,
  alpha: 32,
  dropout: 0,
  targetModules: ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'],
};

const clipHigh = 3;
export const trainOptions: TrainOptions = {
  learningRate: 1e-4,
  // the peer's settings
  optimizer: { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0.01, maxGradNorm: 1 },
  loss: { type: 'cispo', clipHigh, aggregation: 'token' },
  temperature: 1,
  klBeta: 0,
};

/** Seconds and metrics of one optimizer step. */
export const Step = z.object({
  wall_s: z.number(),
  cpu_s: z.number(),
  loss: z.number(),
  entropy: z.number(),
  grad_norm: z.number(),
});
export type Step = z.infer<typeof Step>;

/** One step of ours. CPU time is that of this process, all its threads. */
export async function takeStep(trainer: EngineOptimizer, samples: readonly TrainSample[]): Promise<Step> {
  const wall = performance.now();
  const cpu = process.cpuUsage();
  const step = await trainer.trainStep(samples, trainOptions);
  const { user, system } = process.cpuUsage(cpu);
  const wall_s = (performance.now() - wall) / 1000;
  if (!step.applied) throw new Error(`Our step was refused: ${step.reason}`);
  const { loss, entropy, gradNorm } = step.metrics;
  return { wall_s, cpu_s: (user + system) / 1e6, loss, entropy, grad_norm: gradNorm };
}

/** Two programs that do not compute the same thing have nothing to compare. */
export function requireSameWork({ ours, theirs }: { ours: Step; theirs: Step }, tolerance = 1e-3): void {
  for (const metric of ['loss', 'entropy', 'grad_norm'] as const) {
    const difference = Math.abs(ours[metric] - theirs[metric]);
    if (difference <= tolerance * Math.abs(theirs[metric])) continue;
    throw new Error(`The two sides differ in ${metric}: ${ours[metric]} here, ${theirs[metric]} there.`);
  }
}

interface BatchShape {
  readonly rows: number;
  /** Tokens fed per row. */
  readonly length: number;
  readonly vocabulary: number;
  /** Rows with one beginning. */
  readonly group?: number;
  /** Tokens of it, which carry no loss. */
  readonly prompt?: number;
}

/** Rows of equal length: every token but the first, or the prompt, counts, and the behaviour policy is near the uniform one that starts. */
export function randomBatch({ rows, length, vocabulary, group = 1, prompt = 0 }: BatchShape): TrainSample[] {
  const random = randomStream('bench batch');
  let beginning: readonly number[] = [];
  return Array.from({ length: rows }, (_, row) => {
    const advantage = 2 * random() - 1;
    const perToken = (draw: () => number): number[] => [0, ...Array.from({ length }, draw)];
    const tokens = perToken(() => Math.floor(random() * vocabulary));
    if (row % group === 0) beginning = tokens.slice(0, prompt);
    return {
      tokenIds: [...beginning, ...tokens.slice(prompt)],
      lossMask: perToken(() => 1).map((mask, t) => (t < prompt ? 0 : mask)),
      behaviorLogprobs: perToken(() => -Math.log(vocabulary) + 0.2 * (random() - 0.5)),
      advantages: perToken(() => advantage),
    };
  });
}
