import { RatchetError } from '../../core/errors.ts';
import { type MaskedSample, type Rows, rowsOf, type TrainSample } from '../../core/rl/learning/batch.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { isTinkerLoss } from '../../config/models/tinker-spec.ts';
import { LogprobLoss, metricsRow } from '../../engine/index.ts';
import { gradientBatch, inRequests, lossCall, isFinite, policyBatch, scoreDatum, type ServerBatch } from './batch.ts';
import type { TinkerModel } from './model.ts';
import { supervisedPassMetrics } from './pass-metrics.ts';
import { lossBy, type ServerLoss } from './server-facts.ts';
import type { Datum, PassOutput } from './types.ts';

interface PassInput {
  readonly plan: Pick<StepPlan, 'loss' | 'klBeta' | 'temperature'>;
  readonly batch: Rows<TrainSample>;
  /** Logprobs under the reference of a KL penalty. */
  readonly referenceLogprobs?: readonly Float32Array[];
}

interface PassResult {
  readonly metrics: Record<string, number>;
  /** Why the model must not be stepped, if the metrics do not show it. */
  readonly refused: string | null;
  /** Logprobs of each token, under the weights at the start of the pass; null if unavailable. */
  readonly logprobs: readonly Float32Array[] | null;
}

/**
 * Accumulates gradients of batches in a server's model: by the server's own loss, or by ours from the log probabilities
 * that it returns.
 */
export class BatchGradient {
  /** How the server adds losses up. */
  server: ServerLoss = lossBy('sum');
  /** Losses that the server computes as the API says; null = all. */
  losses: readonly string[] | null = null;
  readonly #loss = new LogprobLoss();

  async compute(model: TinkerModel, { plan, batch, referenceLogprobs }: PassInput): Promise<PassResult> {
    const { loss, klBeta, temperature } = plan;
    const { rows } = rowsOf(batch);
    const options = { loss, klBeta, temperature, ...(referenceLogprobs && { referenceLogprobs }) };
    const isComputedThere =
      isTinkerLoss(loss, klBeta) &&
      (loss.type === 'cross_entropy' || this.losses === null || this.losses.includes(lossCall(loss).lossFn));
    if (!isComputedThere) {
      const logprobs = await tokenLogprobs(model, batch);
      const { gradients, metrics } = await this.#loss.pass(batch, options, logprobs);
      const flat = flatness(gradients);
      if (flat !== null) return { metrics: metricsRow(metrics), refused: flat, logprobs };
      const ran = await runBatch(model, gradientBatch(rows, gradients, this.server), batch);
      return { metrics: metricsRow(metrics), refused: ran === null ? notFinite : null, logprobs };
    }
    const logprobs = await runBatch(model, policyBatch(rows, loss, this.server), batch);
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
 * Sends a whole batch in as many requests as needed, whose gradients add up. Returns the log probabilities, aligned
 * with each row's tokens; 0 in rows that were not sent. Null if a number cannot be sent: the model may then have
 * gradients of other rows.
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

/** Concurrent requests: enough to keep the server busy, while a large batch stays out of memory. */
const requestsAtOnce = 16;

/** Sends rows in order, as many per request as a server accepts. False if one of their numbers cannot be sent. */
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
      requireWhole(data, logprobs);
      for (const [i, values] of logprobs.entries()) how.take(rows[places[i]!]!, values);
      under.delete(sent);
    });
    sent.catch(() => undefined); // the caller that waits for all of them gets the error
    all.push(sent);
    under.add(sent);
    if (under.size >= requestsAtOnce) await Promise.race(under);
  }
  await Promise.all(all);
  return true;
}

/** Throws where some are missing: a 0 in their place is the log probability of a token that was certain. */
function requireWhole(data: readonly Datum[], logprobs: PassOutput['logprobs']): void {
  for (const [i, { tokens }] of data.entries()) {
    const told = logprobs[i]?.length ?? 0;
    if (told !== tokens.length)
      throw new RatchetError(
        'Unsupported',
        `The Tinker server told ${told} log probabilities of a row: expected ${tokens.length}, one for each target. A run learns by them.`,
      );
  }
}
