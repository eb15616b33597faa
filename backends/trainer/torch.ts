import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import type { OptimizerState } from '../../core/rl/run-state.ts';
import { type PackedRow, rowsOf, type RowSource, scoredRows, type TokenScores } from '../../core/rl/learning/batch.ts';
import { decodeSafetensors, LogprobLoss, metricsRow } from '../../engine/index.ts';
import { inTemporaryFolder } from '../../host/temporary-folder.ts';
import { cutByRows, policyColumns, writeColumns } from '../torch/columns.ts';
import { TorchGroup } from '../torch/group.ts';
import { unpackFolder } from '../torch/packed-folder.ts';
import type { RankOptions } from '../torch/protocol.ts';
import type { AnyTrainer, SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

/** Figures that JSON cannot write travel as text. */
const Figure = z.union([z.number(), z.enum(['nan', 'inf', '-inf']).transform(asNumber)]);
const Opened = z.looseObject({ digest: z.string(), packs: z.boolean(), notes: z.array(z.string()) });
const Outcome = z.looseObject({
  applied: z.boolean(),
  reason: z.string().optional(),
  metrics: z.record(z.string(), Figure),
});
const Trained = Outcome.extend({ digest: z.string() });

type StepInput = Parameters<Trainer['trainStep']>[0];

interface TorchOptions extends RankOptions {
  /** The Python that has PyTorch, transformers and PEFT. */
  readonly python: string;
  /** Nodes with ranks, this one included; where the others join it. */
  readonly nodes?: Nodes;
}

type Nodes = NonNullable<ConstructorParameters<typeof TorchGroup>[2]>;

/** PyTorch: transformers' models over FSDP2, in processes of their own (python/ratchet_torch). They start with the first call. */
export class TorchTrainer implements AnyTrainer {
  readonly #python: string;
  readonly #options: RankOptions;
  readonly #nodes: Nodes | null;
  readonly #say: (line: string) => void;
  #group: TorchGroup | null = null;
  /** Computes losses that are not written in Python. */
  #losses: LogprobLoss | null = null;

  constructor(
    { python, nodes, ...options }: TorchOptions,
    { say = () => undefined }: { say?: (line: string) => void } = {},
  ) {
    this.#python = python;
    this.#options = options;
    this.#nodes = nodes ?? null;
    this.#say = say;
  }

  async open(folder: string, { lora, seed }: TrainedPart): Promise<{ digest: string }> {
    if (this.#group?.isAlive === false) {
      await this.#group.close();
      this.#group = null;
    }
    const { digest, packs, notes } = Opened.parse(await this.#started().call('open', { folder, lora, seed }));
    for (const note of notes) this.#say(note);
    if (!packs) this.#say('this model does not keep documents of one line apart: its rows are computed one by one');
    return { digest };
  }

  async trainStep(input: StepInput): Promise<TrainOutcome> {
    const { plan, batch, referenceFolder, tellsTokens = false } = input;
    const { loss, distillation } = plan;
    if (loss.type === 'custom') return this.#trainByOwnLoss(input);
    return inTemporaryFolder('torch-step', async (folder) => {
      const hasObserved = batch.rows.some(({ observed = 0 }) => observed > 0);
      const parts = await writeColumns(folder, batch, policyColumns(loss, distillation, { hasObserved }));
      // A supervised step has no scores that somebody keeps, as with the embedded engine.
      const scores = tellsTokens && loss.type !== 'cross_entropy' ? path.join(folder, 'scores.safetensors') : null;
      const answer = await this.#opened().call('train_step', {
        parts,
        plan: stepOf(plan),
        reference: referenceFolder,
        scores,
      });
      const { digest, ...outcome } = Trained.parse(answer);
      const told = scores !== null && outcome.applied ? await readScores(scores, batch.rows) : undefined;
      return { ...outcomeOf(outcome), digest, ...present({ scores: told }) };
    });
  }

  async sftStep({
    samples,
    normalizer,
    learningRate,
    optimizer,
  }: Parameters<Trainer['sftStep']>[0]): Promise<SftOutcome> {
    return inTemporaryFolder('torch-step', async (folder) => {
      const parts = await writeColumns(folder, rowsOf(samples), ({ tokenWeights, lossMask }) =>
        normalizer === undefined ? {} : { token_weights: tokenWeights ?? lossMask },
      );
      const args = { parts, normalizer: normalizer ?? null, learning_rate: learningRate, optimizer };
      return outcomeOf(Outcome.parse(await this.#opened().call('sft_step', args)));
    });
  }

  async logprobs(samples: readonly PackedRow[], temperature: number): Promise<readonly Float32Array[]> {
    return this.#logprobs(rowsOf(samples), { temperature });
  }

  async digest(): Promise<string> {
    return z.string().parse(await this.#opened().call('digest'));
  }

  async exportTo(folder: string, { base }: { readonly base: string }): Promise<void> {
    await this.#opened().call('export', { folder, base });
  }

  async fingerprint(): Promise<string> {
    return (await this.#started().ready()).fingerprint;
  }

  /** Its ranks' processes, for tests and people. */
  async pids(): Promise<readonly number[]> {
    return (await this.#started().ready()).pids;
  }

  async saveOptimizer(folder: string): Promise<OptimizerState> {
    await this.#opened().call('save_optimizer', { folder });
    return { folder };
  }

  async restoreOptimizer(state: OptimizerState | null): Promise<void> {
    const restore = (folder: string | null, isVerified = false): Promise<unknown> =>
      this.#opened().call('restore_optimizer', { folder, is_verified: isVerified });
    if (state === null) return void (await restore(null));
    if (!(state instanceof Uint8Array)) return void (await restore(state.folder, state.isVerified));
    await inTemporaryFolder('torch-state', async (folder) => {
      await unpackFolder(state, folder);
      await restore(folder);
    });
  }

  waitsFor(): string | null {
    return this.#group?.waitsFor() ?? null;
  }

  async close(): Promise<void> {
    await this.#group?.close();
    await this.#losses?.close();
  }

  /** Scores rows by its own weights, or by those of a reference policy's folder. */
  async #logprobs(
    source: RowSource<PackedRow>,
    how: { readonly temperature: number; readonly reference?: string },
  ): Promise<readonly Float32Array[]> {
    return inTemporaryFolder('torch-rows', async (folder) => {
      const parts = await writeColumns(folder, source, () => ({}));
      const target = path.join(folder, 'logprobs.safetensors');
      await this.#opened().call('logprobs', { parts, target, ...how });
      return cutByRows(await readVector(target, 'logprobs'), source.rows);
    });
  }

  /**
   * Trains by a loss that is not written in Python: since ∂L/∂θ = Σ ∂L/∂ℓ · ∂ℓ/∂θ, log probabilities ℓ go there and the weights of their sum come back, as with
   * a Tinker server.
   */
  async #trainByOwnLoss({ plan, batch, referenceFolder, tellsTokens = false }: StepInput): Promise<TrainOutcome> {
    const {
      temperature,
      klBeta,
      numIterations,
      numMiniBatches = 1,
      learningRate,
      optimizer,
      loss,
      distillation,
    } = plan;
    if (numIterations !== 1 || numMiniBatches !== 1)
      throw new RatchetError(
        'Unsupported',
        `A loss of your own is one step over the batch with this trainer: expected num_iterations = 1 and one mini-batch, got ${numIterations} and ${numMiniBatches}.`,
      );
    const logprobs = await this.#logprobs(batch, { temperature });
    const referenceLogprobs =
      klBeta > 0 ? await this.#logprobs(batch, { temperature, reference: referenceFolder }) : undefined;
    this.#losses ??= new LogprobLoss();
    const { gradients, metrics } = await this.#losses.pass(
      batch,
      { loss, temperature, klBeta, ...present({ distillation, referenceLogprobs }) },
      logprobs,
    );
    return inTemporaryFolder('torch-step', async (folder) => {
      const parts = await writeColumns(folder, batch, ({ lossMask }, row) => ({
        mask: lossMask.map((mask, t) => (gradients[row]![t] === 0 ? mask : 1)),
        token_weights: gradients[row]!.map((gradient) => -gradient),
      }));
      const answer = await this.#opened().call('sft_step', {
        parts,
        normalizer: 1,
        learning_rate: learningRate,
        optimizer,
        temperature,
        micro_rows: plan.microBatchSize,
        dropout_seed: plan.dropoutSeed ?? 0,
        ...(klBeta > 0 ? {} : { reference: referenceFolder, step: plan.step }),
      });
      const outcome = outcomeOf(Outcome.parse(answer));
      return {
        ...outcome,
        metrics: { ...outcome.metrics, ...metricsRow(metrics) },
        digest: await this.digest(),
        ...(tellsTokens && outcome.applied ? { scores: { logprobs, entropies: null } } : {}),
      };
    });
  }

  #started(): TorchGroup {
    return (this.#group ??= new TorchGroup(this.#python, this.#options, this.#nodes));
  }

  #opened(): TorchGroup {
    assert(this.#group, 'open() comes first');
    return this.#group;
  }
}

/** The part of a plan that decides the step, as python/ratchet_torch/trainer.py reads it. */
function stepOf(plan: StepInput['plan']): object {
  const { step, learningRate, temperature, klBeta, loss, distillation, optimizer, numIterations } = plan;
  const { numMiniBatches, microBatchSize, dropoutSeed } = plan;
  return {
    step,
    learningRate,
    temperature,
    klBeta,
    loss,
    optimizer,
    numIterations,
    microBatchSize,
    ...present({ distillation, numMiniBatches, dropoutSeed }),
  };
}

function outcomeOf({ applied, reason, metrics }: z.infer<typeof Outcome>): SftOutcome {
  return { applied, metrics: metricsRow(metrics), ...present({ reason }) };
}

async function readScores(
  file: string,
  rows: Parameters<typeof scoredRows>[0] & readonly { tokens: number }[],
): Promise<TokenScores> {
  const kept = scoredRows(rows);
  const [logprobs, entropies] = [await readVector(file, 'logprobs'), await readVector(file, 'entropies')].map(
    (values) => cutByRows(values, rows).map((own, row) => (row < kept ? own : new Float32Array(0))),
  );
  return { logprobs: logprobs!, entropies: entropies! };
}

async function readVector(file: string, name: string): Promise<Float32Array> {
  const data = decodeSafetensors(await readFile(file), file).tensors.get(name)?.data;
  assert(data instanceof Float32Array, `${file} has ${name}`);
  return data;
}

function asNumber(text: 'nan' | 'inf' | '-inf'): number {
  return text === 'nan' ? Number.NaN : text === 'inf' ? Number.POSITIVE_INFINITY : Number.NEGATIVE_INFINITY;
}
