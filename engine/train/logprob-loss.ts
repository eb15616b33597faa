import { RatchetError } from '../../core/errors.ts';
import { type Rows, rowsOf, type TrainSample } from '../../core/rl/learning/batch.ts';
import type { LossSettings } from '../../core/settings/learning.ts';
import { rowsAtOnceTokensMax } from '../../core/limits.ts';
import { trainPositionsMax } from '../limits.ts';
import type { InferenceSession } from '../onnx/runtime.ts';
import { floats, openSession, type SessionOptions } from '../onnx/session.ts';
import { requirePolicyInputs, rowDifferences } from './feeds.ts';
import { floatsOf } from './gradient-computer.ts';
import { lossTraits } from '../../core/rl/losses.ts';
import { cutInWindows, gather, readMicroBatches, scatter } from './micro-batches.ts';
import { type PartOfLoss, partsOfLoss } from './parts-of-loss.ts';
import { addMetrics, metricsOfParts, type Sums } from './step-metrics.ts';
import { buildLogprobLossGraph, type GradientKind, gradientName } from './train-graph.ts';
import type { PolicyLossOptions, TrainMetrics } from './types.ts';
import { customLossOf } from './custom-loss.ts';

interface LogprobPass {
  /** ∂L/∂ℓ of every token, aligned with each sample's tokens; 0 where none carries loss. */
  readonly gradients: readonly Float32Array[];
  readonly metrics: Omit<TrainMetrics, 'entropy' | 'gradNorm'>;
}

/**
 * Policy losses of log probabilities ℓ that were computed elsewhere, and their gradients in them. Since ∂L/∂θ = Σ
 * ∂L/∂ℓ_t · ∂ℓ_t/∂θ, a trainer that differentiates a weighted sum of log probabilities can use any of them (the Tinker
 * package's forward_backward_custom). The formulas are those of the graphs that train here.
 */
export class LogprobLoss {
  readonly #options: SessionOptions;
  readonly #sessions = new Map<string, Promise<InferenceSession>>();

  constructor(options: SessionOptions = { threads: 1 }) {
    this.#options = options;
  }

  /** `logprobs` are aligned with each sample's tokens, at the options' temperature. */
  async pass(
    batch: Rows<TrainSample>,
    options: PolicyLossOptions,
    logprobs: readonly ArrayLike<number>[],
  ): Promise<LogprobPass> {
    requirePolicyInputs(batch, options);
    if ((options.loss.entropyCoef ?? 0) > 0)
      throw new RatchetError(
        'Unsupported',
        `An entropy bonus (${options.loss.entropyCoef}) needs whole distributions: expected none where log probabilities of tokens are all there is.`,
      );
    const source = rowsOf(batch);
    const gradients = source.rows.map(({ tokens }) => new Float32Array(tokens));
    const summed = [];
    for (const part of partsOfLoss(source, options))
      summed.push({ ...part, sums: await this.#sums(part, logprobs, gradients) });
    const { entropy: _, gradNorm: __, ...metrics } = metricsOfParts(summed, 0);
    return { gradients, metrics };
  }

  /** Stores the gradients of the part's tokens. */
  async #sums(
    { kind, loss, rows: source, lossFeeds, requireRow }: PartOfLoss,
    logprobs: readonly ArrayLike<number>[],
    gradients: readonly Float32Array[],
  ): Promise<Sums> {
    const session = await this.#session(kind, loss);
    const sums: Sums = {};
    const cut = cutInWindows(source.rows, trainPositionsMax, rowsAtOnceTokensMax);
    for await (const micro of readMicroBatches(source, cut, requireRow)) {
      const found = gather(micro, (row) => logprobs[row]!);
      const rows = loss && lossTraits(loss.type).comparesRows ? rowDifferences(micro, found) : undefined;
      const feeds = { ...lossFeeds(micro, rows), logprobs: floats(found, [found.length]) };
      const known = Object.entries(feeds).filter(([name]) => session.inputNames.includes(name));
      const output = await session.run(Object.fromEntries(known));
      addMetrics(sums, kind, floatsOf(output, 'metrics'));
      scatter(micro, floatsOf(output, gradientName('logprobs')), gradients);
    }
    return sums;
  }

  async #session(kind: GradientKind, loss: LossSettings | null): Promise<InferenceSession> {
    const custom = loss?.type === 'custom' ? await customLossOf(loss) : null;
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
