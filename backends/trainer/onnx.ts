import { present } from '../../core/present.ts';
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { RatchetError } from '../../core/errors.ts';
import type { PackedRow, RowSource, TrainSample } from '../../core/rl/learning/batch.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import {
  engineFingerprint,
  metricsRow,
  type OptimizerOptions,
  type SessionOptions,
  type StepResult,
  type TrainMetrics,
  type SftMetrics,
  TrainerProcess,
} from '../../engine/index.ts';
import type { SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

/**
 * The part of a batch that the KL to the reference is estimated on while it is only reported: scoring all of it twice more would nearly double the step, for
 * a number that is watched, not used. `rowsMin` at least, as far as there are, and `rowsMax` at most.
 */
const reportedKl = { part: 1 / 8, rowsMin: 8, rowsMax: 64 };

/** Neighbouring rows, whose common prompt is computed once; each step takes the next ones. */
function reportedRows(count: number, step: number): number[] {
  const wanted = Math.max(reportedKl.rowsMin, Math.min(reportedKl.rowsMax, Math.ceil(count * reportedKl.part)));
  const size = Math.min(count, wanted);
  const first = Math.min((step % Math.ceil(count / size)) * size, count - size);
  return Array.from({ length: size }, (_, i) => first + i);
}

type TrainerOptions = SessionOptions & Pick<OptimizerOptions, 'recomputesEvery'>;

/** The embedded engine, in a process of its own. */
export class OnnxTrainer implements Trainer {
  readonly #options: TrainerOptions;
  #process: TrainerProcess | null = null;
  #part: TrainedPart | null = null;
  #fingerprint: Promise<string> | null = null;

  constructor(options: TrainerOptions) {
    this.#options = options;
  }

  async open(folder: string, part: TrainedPart): Promise<{ digest: string }> {
    if (!(await this.#takesOver(folder, part))) {
      await this.#process?.close();
      this.#process = await TrainerProcess.open(folder, { ...this.#options, ...part });
      this.#part = part;
    }
    await this.#engine().resetMoments();
    return { digest: await this.#engine().digest() };
  }

  /**
   * Whether the process could load the folder: another trained part, or another architecture, needs other graphs and
   * another optimizer.
   */
  async #takesOver(folder: string, part: TrainedPart): Promise<boolean> {
    if (this.#process?.isAlive !== true || !isDeepStrictEqual(part, this.#part)) return false;
    try {
      await this.#process.loadWeights(folder);
      return true;
    } catch (error) {
      if (error instanceof RatchetError && error.code === 'ModelUnsupported') return false;
      throw error;
    }
  }

  async trainStep(input: Parameters<Trainer['trainStep']>[0]): Promise<TrainOutcome> {
    const { plan, batch, referenceFolder, tellsTokens = false } = input;
    const { learningRate, optimizer, loss, temperature, klBeta, numIterations } = plan;
    const engine = this.#engine();
    const cut = present({ microBatchRows: plan.microBatchSize ?? undefined, dropoutSeed: plan.dropoutSeed });
    if (loss.type === 'cross_entropy') {
      requireSupervised(plan);
      // A supervised step has no reference: two more passes over its rows would show nothing about its progress.
      const result = await engine.sftStep(batch, { learningRate, optimizer, ...cut });
      return { ...outcomeOf(result), digest: await engine.digest() };
    }
    const isPenalized = klBeta > 0;
    const reported = isPenalized ? null : await this.#reportedKl(batch, plan, referenceFolder);
    const result = await engine.trainStep(batch, {
      learningRate,
      optimizer,
      loss,
      ...present({ distillation: plan.distillation }),
      temperature,
      klBeta,
      iterations: numIterations,
      miniBatches: plan.numMiniBatches ?? 1,
      tellsTokens,
      ...cut,
      ...(isPenalized
        ? { referenceLogprobs: await engine.forwardLogprobs(batch, { temperature, weights: referenceFolder }) }
        : {}),
    });
    const outcome = outcomeOf(result, reported === null ? {} : { kl_divergence: reported });
    return { ...outcome, digest: await engine.digest(), ...present({ scores: result.scores }) };
  }

  async sftStep(input: Parameters<Trainer['sftStep']>[0]): Promise<SftOutcome> {
    const { samples, ...options } = input;
    return outcomeOf(await this.#engine().sftStep(samples, options));
  }

  digest(): Promise<string> {
    return this.#engine().digest();
  }

  async exportTo(folder: string, { base }: { base: string }): Promise<void> {
    await this.#engine().exportWeights(folder, { base });
  }

  logprobs(samples: readonly PackedRow[], temperature: number): Promise<readonly Float32Array[]> {
    return this.#engine().forwardLogprobs(samples, { temperature });
  }

  fingerprint(): Promise<string> {
    return (this.#fingerprint ??= describeEngine(this.#options));
  }

  saveOptimizer(): Promise<Uint8Array> {
    return this.#engine().saveState();
  }

  async restoreOptimizer(state: Uint8Array | null): Promise<void> {
    if (state === null) await this.#engine().resetMoments();
    else await this.#engine().restoreState(state);
  }

  async close(): Promise<void> {
    await this.#process?.close();
  }

  #engine(): TrainerProcess {
    assert(this.#process, 'open() comes first');
    return this.#process;
  }

  /** k3 estimate (Schulman, "Approximating KL divergence") of KL(current ‖ reference) over a part of the rows. */
  async #reportedKl(
    batch: RowSource<TrainSample>,
    { step, temperature }: StepPlan,
    referenceFolder: string,
  ): Promise<number> {
    const rows = await batch.read(reportedRows(batch.rows.length, step));
    const engine = this.#engine();
    const current = await engine.forwardLogprobs(rows, { temperature });
    const reference = await engine.forwardLogprobs(rows, { temperature, weights: referenceFolder });
    let sum = 0;
    let count = 0;
    for (const [r, row] of rows.entries()) {
      for (const [t, mask] of row.lossMask.entries()) {
        if (mask === 0) continue;
        const difference = reference[r]![t]! - current[r]![t]!;
        sum += Math.exp(difference) - difference - 1;
        count += 1;
      }
    }
    return count === 0 ? 0 : sum / count;
  }
}

/** Refuses settings that supervised steps cannot honour. */
function requireSupervised({ loss, klBeta, numIterations }: StepPlan): void {
  if (klBeta === 0 && numIterations === 1 && loss.aggregation === 'token') return;
  throw new RatchetError(
    'Unsupported',
    `The loss "cross_entropy" is one pass over the batch's tokens: expected no KL penalty, num_iterations = 1 and aggregation = "token"; got ${klBeta}, ${numIterations} and "${loss.aggregation}".`,
  );
}

/** In one line, with the many vector features as a checksum: it goes into every commit. */
async function describeEngine(options: SessionOptions): Promise<string> {
  const { runtime, provider, threads, cpu, cpuFeatures } = await engineFingerprint(options);
  const features = createHash('sha256').update(cpuFeatures.join(' ')).digest('hex').slice(0, 12);
  return [runtime, provider, `${threads} threads`, cpu, `features ${features}`].join(', ');
}

function outcomeOf(
  result: StepResult<SftMetrics | TrainMetrics>,
  more: Readonly<Record<string, number>> = {},
): SftOutcome {
  const metrics = { ...metricsRow(result.metrics), ...more };
  return result.applied ? { applied: true, metrics } : { applied: false, reason: result.reason, metrics };
}
