import type { TrainBatch, TrainSample } from '../../core/rl/batch.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { isTinkerLoss } from '../../config/tinker-spec.ts';
import { LogprobLoss, metricsRow } from '../../engine/index.ts';
import { gradientBatch, inRequests, isFinite, policyBatch, scoreData, type ServerBatch } from './batch.ts';
import type { TinkerModel } from './client.ts';
import { supervisedPassMetrics } from './pass-metrics.ts';
import type { LossReduction } from './types.ts';

interface PassInput {
  readonly plan: Pick<StepPlan, 'loss' | 'klBeta' | 'temperature'>;
  readonly batch: TrainBatch;
  /** Of the policy that a KL penalty is measured from. */
  readonly referenceLogprobs?: readonly Float32Array[];
}

interface PassResult {
  readonly metrics: Record<string, number>;
  /** Why the model must not be stepped, where the metrics do not say it. */
  readonly refused: string | null;
}

/** Gradients of batches, left in a server's model: by the server's own loss, or by ours of the log probabilities it gives. */
export class BatchGradient {
  readonly #reduction: LossReduction;
  readonly #loss = new LogprobLoss();

  constructor(reduction: LossReduction) {
    this.#reduction = reduction;
  }

  async compute(model: TinkerModel, { plan, batch, referenceLogprobs }: PassInput): Promise<PassResult> {
    const { loss, klBeta, temperature } = plan;
    const { samples } = batch;
    const options = { loss, klBeta, temperature, ...(referenceLogprobs && { referenceLogprobs }) };
    if (!isTinkerLoss(loss, klBeta)) {
      const { gradients, metrics } = await this.#loss.pass(batch, options, await tokenLogprobs(model, samples));
      const sent = gradientBatch(samples, gradients, this.#reduction);
      const refused = isFinite(sent.data) ? flatness(gradients) : notFinite;
      if (refused === null) await runBatch(model, sent, samples);
      return { metrics: metricsRow(metrics), refused };
    }
    const sent = policyBatch(samples, loss, this.#reduction);
    if (!isFinite(sent.data)) return { metrics: {}, refused: notFinite };
    const logprobs = await runBatch(model, sent, samples);
    if (loss.type === 'cross_entropy')
      return { metrics: supervisedPassMetrics(samples, logprobs, loss), refused: null };
    const { gradients, metrics } = await this.#loss.pass(batch, options, logprobs);
    return { metrics: metricsRow(metrics), refused: flatness(gradients) };
  }

  close(): Promise<void> {
    return this.#loss.close();
  }
}

const notFinite = 'an advantage or a logprob of the batch is no number';

function flatness(gradients: readonly Float32Array[]): string | null {
  const isFlat = gradients.every((row) => row.every((slope) => slope === 0));
  return isFlat ? 'the gradient is 0: nothing in the batch says which way to go' : null;
}

/**
 * A whole batch in as many requests as it takes, whose gradients add up. Gives the log probabilities, aligned with each sample's
 * tokens; 0 in rows that were not sent.
 */
export async function runBatch(
  model: TinkerModel,
  { data, loss, rows }: ServerBatch,
  samples: readonly TrainSample[],
): Promise<Float32Array[]> {
  const outputs = await Promise.all(inRequests(data).map((part) => model.forwardBackward(part, loss)));
  const logprobs = samples.map(({ tokenIds }) => new Float32Array(tokenIds.length));
  outputs.flatMap((output) => output.logprobs).forEach((row, i) => logprobs[rows[i]!]!.set(row, 1));
  return logprobs;
}

/** Log probabilities of all tokens, aligned; the first of a row has none. */
export async function tokenLogprobs(
  model: TinkerModel,
  samples: readonly Pick<TrainSample, 'tokenIds'>[],
): Promise<Float32Array[]> {
  const outputs = await Promise.all(inRequests(scoreData(samples)).map((part) => model.forward(part)));
  return outputs.flatMap(({ logprobs }) => logprobs).map((row) => Float32Array.from([0, ...row]));
}
