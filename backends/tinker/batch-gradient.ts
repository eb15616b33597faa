import { type MaskedSample, type Rows, rowsOf, type TrainSample } from '../../core/rl/batch.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { isTinkerLoss } from '../../config/tinker-spec.ts';
import { LogprobLoss, metricsRow } from '../../engine/index.ts';
import { gradientBatch, inRequests, isFinite, policyBatch, scoreDatum, type ServerBatch } from './batch.ts';
import type { TinkerModel } from './client.ts';
import { supervisedPassMetrics } from './pass-metrics.ts';
import type { Datum, LossReduction, PassOutput } from './types.ts';

interface PassInput {
  readonly plan: Pick<StepPlan, 'loss' | 'klBeta' | 'temperature'>;
  readonly batch: Rows<TrainSample>;
  /** Of the policy that a KL penalty is measured from. */
  readonly referenceLogprobs?: readonly Float32Array[];
}

interface PassResult {
  readonly metrics: Record<string, number>;
  /** Why the model must not be stepped, where the metrics do not say it. */
  readonly refused: string | null;
  /** Of each token, under the weights that the pass began from; null where they could not be had. */
  readonly logprobs: readonly Float32Array[] | null;
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
    const { rows } = rowsOf(batch);
    const options = { loss, klBeta, temperature, ...(referenceLogprobs && { referenceLogprobs }) };
    if (!isTinkerLoss(loss, klBeta)) {
      const logprobs = await tokenLogprobs(model, batch);
      const { gradients, metrics } = await this.#loss.pass(batch, options, logprobs);
      const flat = flatness(gradients);
      if (flat !== null) return { metrics: metricsRow(metrics), refused: flat, logprobs };
      const ran = await runBatch(model, gradientBatch(rows, gradients, this.#reduction), batch);
      return { metrics: metricsRow(metrics), refused: ran === null ? notFinite : null, logprobs };
    }
    const logprobs = await runBatch(model, policyBatch(rows, loss, this.#reduction), batch);
    if (logprobs === null) return { metrics: {}, refused: notFinite, logprobs };
    if (loss.type === 'cross_entropy')
      return { metrics: await supervisedPassMetrics(batch, logprobs, loss), refused: null, logprobs };
    const { gradients, metrics } = await this.#loss.pass(batch, options, logprobs);
    return { metrics: metricsRow(metrics), refused: flatness(gradients), logprobs };
  }

  close(): Promise<void> {
    return this.#loss.close();
  }
}

export const notFinite = 'an advantage or a logprob of the batch is no number';

function flatness(gradients: readonly Float32Array[]): string | null {
  const isFlat = gradients.every((row) => row.every((slope) => slope === 0));
  return isFlat ? 'the gradient is 0: nothing in the batch says which way to go' : null;
}

/**
 * A whole batch in as many requests as it takes, whose gradients add up. Gives the log probabilities, aligned with each row's
 * tokens; 0 in rows that were not sent. Null where a number cannot be sent: the model may have gradients of other rows then.
 */
export async function runBatch(
  model: TinkerModel,
  { datum, loss, rows }: ServerBatch,
  batch: Rows<TrainSample>,
): Promise<Float32Array[] | null> {
  const facts = rowsOf(batch).rows;
  const logprobs = facts.map(({ tokens }) => new Float32Array(tokens));
  const isSent = await inTurn(batch, rows, {
    datum,
    send: (data) => model.forwardBackward(data, loss),
    take: (row, values) => logprobs[row]!.set(values, 1),
  });
  return isSent ? logprobs : null;
}

/** Log probabilities of all tokens, aligned; the first of a row has none. */
export async function tokenLogprobs(model: TinkerModel, batch: Rows<MaskedSample>): Promise<Float32Array[]> {
  const facts = rowsOf(batch).rows;
  const logprobs = facts.map(({ tokens }) => new Float32Array(tokens));
  await inTurn(batch, [...facts.keys()], {
    datum: scoreDatum,
    send: (data) => model.forward(data),
    take: (row, values) => logprobs[row]!.set(values, 1),
  });
  return logprobs;
}

/** Requests at a server at once: it always has some to do, and of a large batch no more is in memory. */
const requestsAtOnce = 16;

/** Sends rows in their order, as many in each request as a server takes. False where a number of them cannot be sent. */
async function inTurn<Row extends MaskedSample>(
  batch: Rows<Row>,
  rows: readonly number[],
  how: {
    readonly datum: (sample: Row, place: number) => Datum;
    readonly send: (data: readonly Datum[]) => Promise<PassOutput>;
    readonly take: (row: number, logprobs: ArrayLike<number>) => void;
  },
): Promise<boolean> {
  const source = rowsOf(batch);
  const under = new Set<Promise<void>>();
  const all: Promise<void>[] = [];
  for (const places of inRequests(rows.map((row) => source.rows[row]!))) {
    const samples = await source.read(places.map((place) => rows[place]!));
    const data = samples.map((sample, i) => how.datum(sample, places[i]!));
    if (!isFinite(data)) {
      await Promise.all(all);
      return false;
    }
    const sent = how.send(data).then(({ logprobs }) => {
      for (const [i, values] of logprobs.entries()) how.take(rows[places[i]!]!, values);
      under.delete(sent);
    });
    sent.catch(() => undefined); // whoever waits for all of them is told
    all.push(sent);
    under.add(sent);
    if (under.size >= requestsAtOnce) await Promise.race(under);
  }
  await Promise.all(all);
  return true;
}
