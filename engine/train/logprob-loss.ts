import type { TrainBatch } from '../../core/rl/batch.ts';
import type { LossSettings } from '../../config/run-spec.ts';
import { trainPositionsMax } from '../limits.ts';
import type { InferenceSession } from '../onnx/runtime.ts';
import { floats, openSession, type SessionOptions } from '../onnx/session.ts';
import { policyFeeds, requirePolicyInputs, rowDifferences } from './feeds.ts';
import { floatsOf } from './gradient-computer.ts';
import { comparesRows } from './loss.ts';
import { gather, maskTotal, packMicroBatches, scatter } from './micro-batches.ts';
import { addMetrics, policyMetrics, type Sums } from './step-metrics.ts';
import { buildLogprobLossGraph, gradientName, type PolicyKind, policyKind } from './train-graph.ts';
import type { PolicyLossOptions, TrainMetrics } from './types.ts';
import { customLossOf } from './user-code.ts';

export interface LogprobPass {
  /** ∂L/∂ℓ of every token, aligned with each sample's tokens; 0 where none carries loss. */
  readonly gradients: readonly Float32Array[];
  readonly metrics: Omit<TrainMetrics, 'entropy' | 'gradNorm'>;
}

/**
 * Policy losses of log probabilities ℓ that were computed elsewhere, and their gradients in them. Since ∂L/∂θ = Σ ∂L/∂ℓ_t · ∂ℓ_t/∂θ,
 * whoever can differentiate a weighted sum of log probabilities can train by any of them (what the Tinker package calls
 * forward_backward_custom). The formulas are those of the graphs that train here.
 */
export class LogprobLoss {
  readonly #options: SessionOptions;
  readonly #sessions = new Map<string, Promise<InferenceSession>>();

  constructor(options: SessionOptions = { threads: 1 }) {
    this.#options = options;
  }

  /** `logprobs` are aligned with each sample's tokens, at the options' temperature. */
  async pass(
    batch: TrainBatch,
    options: PolicyLossOptions,
    logprobs: readonly ArrayLike<number>[],
  ): Promise<LogprobPass> {
    requirePolicyInputs(batch, options);
    const { samples } = batch;
    const { loss } = options;
    const kind = policyKind(loss, options.referenceLogprobs !== undefined);
    const session = await this.#session(kind, loss);
    const lossFeeds = policyFeeds(batch, options);
    const gradients = samples.map(({ tokenIds }) => new Float32Array(tokenIds.length));
    const sums: Sums = {};
    for (const micro of packMicroBatches(samples, trainPositionsMax)) {
      const found = gather(micro, (row) => logprobs[row]!);
      const rows = comparesRows(loss.type) ? rowDifferences(micro, found, samples) : undefined;
      const feeds = { ...lossFeeds(micro, rows), logprobs: floats(found, [found.length]) };
      const known = Object.entries(feeds).filter(([name]) => session.inputNames.includes(name));
      const output = await session.run(Object.fromEntries(known));
      addMetrics(sums, kind, floatsOf(output, 'metrics'));
      scatter(micro, floatsOf(output, gradientName('logprobs')), gradients);
    }
    const { entropy: _, gradNorm: __, ...metrics } = policyMetrics(sums, maskTotal(samples), 0);
    return { gradients, metrics };
  }

  async #session(kind: PolicyKind, loss: LossSettings): Promise<InferenceSession> {
    const custom = loss.type === 'custom' ? await customLossOf(loss) : null;
    const key = `${kind} ${custom?.id ?? ''}`;
    const opened =
      this.#sessions.get(key) ??
      openSession(buildLogprobLossGraph(kind, custom ? { customLoss: custom.tokenLoss } : {}), this.#options);
    this.#sessions.set(key, opened);
    return opened;
  }

  async close(): Promise<void> {
    for (const session of this.#sessions.values()) await (await session).release();
    this.#sessions.clear();
  }
}
