import { createHash } from 'node:crypto';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import type { OptimizerSpec, SftOutcome, StepPlan, Trainer, TrainSample } from 'ratchet-rl/testing';
import { bytesOf, logSoftmax, readAt, readTable, type Table, writeTable } from './table.ts';

/** A custom trainer, named by `[trainer] path` and called with its `options`. `docs/guide/adapters.md` explains it. */
export default function createTrainer(): Trainer {
  /** The other files of the folder that it began with, above all its tokenizer. The run may remove that folder. */
  let texts: (readonly [name: string, content: Buffer])[] = [];
  let table: Table = { size: 0, logits: new Float32Array() };
  let adam = freshAdam(0);
  const digest = (): string => createHash('sha256').update(bytesOf(table.logits)).digest('hex');

  /**
   * One step of Adam along the gradient of Σ weight · log π(token) / Σ mask. Refuses a gradient that is zero or not
   * finite.
   */
  function apply(rows: readonly Row[], { learningRate, optimizer }: Rate): SftOutcome {
    const gradient = gradientOf(table, rows);
    const tokens = rows.length;
    const norm = Math.sqrt(gradient.reduce((sum, value) => sum + value * value, 0)) / tokens;
    const loss = rows.reduce((sum, { objective }) => sum - objective, 0) / tokens;
    const metrics = { loss, grad_norm: norm };
    if (!Number.isFinite(norm) || norm === 0) return { applied: false, reason: `the gradient is ${norm}`, metrics };
    const clip = Math.min(1, optimizer.maxGradNorm / norm) / tokens;
    adam = {
      step: adam.step + 1,
      mean: adam.mean.map((m, i) => optimizer.beta1 * m + (1 - optimizer.beta1) * gradient[i]! * clip),
      square: adam.square.map((v, i) => optimizer.beta2 * v + (1 - optimizer.beta2) * (gradient[i]! * clip) ** 2),
    };
    const [scale, root] = [1 - optimizer.beta1 ** adam.step, 1 - optimizer.beta2 ** adam.step];
    const logits = table.logits.map(
      (logit, i) =>
        logit + (learningRate * (adam.mean[i]! / scale)) / (Math.sqrt(adam.square[i]! / root) + optimizer.epsilon),
    );
    table = { ...table, logits };
    return { applied: true, metrics };
  }

  return {
    async open(from) {
      const names = (await readdir(from)).filter((name) => !name.endsWith('.safetensors'));
      texts = await Promise.all(names.map(async (name) => [name, await readFile(path.join(from, name))] as const));
      table = await readTable(from);
      adam = freshAdam(table.logits.length);
      return { digest: digest() };
    },

    async trainStep({ plan, batch }) {
      requireKnown(plan);
      const { temperature } = plan;
      const rows: Row[] = [];
      for await (const sample of batch.samples()) {
        for (const { read, said, t } of tokensOf(sample)) {
          const now = logSoftmax(table, read, temperature)[said]!;
          const weight = Math.exp(now - sample.behaviorLogprobs[t]!) * sample.advantages[t]!; // ρ · A
          rows.push({ read, said, weight, temperature, objective: weight });
        }
      }
      return { ...apply(rows, plan), digest: digest() };
    },

    async sftStep({ samples, normalizer, ...rate }) {
      if (normalizer !== undefined) throw refusal('expected rows of weight 1; got weights of tokens');
      const rows = samples.flatMap((sample) =>
        tokensOf(sample).map(({ read, said }) => {
          return { read, said, weight: 1, temperature: 1, objective: logSoftmax(table, read, 1)[said]! };
        }),
      );
      return apply(rows, rate);
    },

    digest: async () => digest(),

    /** Writes the weights, and the texts beside them. */
    async exportTo(target) {
      for (const [name, content] of texts) await writeFile(path.join(target, name), content);
      await writeTable(target, table);
    },

    async logprobs(samples, temperature) {
      return samples.map((sample) => {
        const found = new Float32Array(sample.tokenIds.length);
        for (const { read, said, t } of tokensOf(sample)) found[t] = logSoftmax(table, read, temperature)[said]!;
        return found;
      });
    },

    fingerprint: async () => `table, node ${process.version}`,

    saveOptimizer: async () => Buffer.from(JSON.stringify({ ...adam, mean: [...adam.mean], square: [...adam.square] })),

    async restoreOptimizer(state) {
      adam = state === null ? freshAdam(table.logits.length) : readAdam(state);
    },

    close: async () => undefined,
  };
}

interface Adam {
  readonly step: number;
  readonly mean: Float64Array;
  readonly square: Float64Array;
}

interface Rate {
  readonly learningRate: number;
  readonly optimizer: OptimizerSpec;
}

/** A trained token: its context, the token, and the weight of its log probability. */
interface Row {
  readonly read: number;
  readonly said: number;
  readonly weight: number;
  readonly temperature: number;
  readonly objective: number;
}

/** Gradient of Σ weight · log π(token). */
function gradientOf(table: Table, rows: readonly Row[]): Float64Array {
  const { size } = table;
  const gradient = new Float64Array(size * size);
  for (const { read, said, weight, temperature } of rows) {
    const logprobs = logSoftmax(table, read, temperature);
    for (let j = 0; j < size; j++) {
      gradient[read * size + j]! += ((Number(j === said) - Math.exp(logprobs[j]!)) * weight) / temperature;
    }
  }
  return gradient;
}

function freshAdam(length: number): Adam {
  return { step: 0, mean: new Float64Array(length), square: new Float64Array(length) };
}

function readAdam(state: Uint8Array): Adam {
  const { step, mean, square } = JSON.parse(Buffer.from(state).toString('utf8')) as Record<keyof Adam, never>;
  return { step, mean: Float64Array.from(mean), square: Float64Array.from(square) };
}

/** Refuses other losses: training with the wrong one must not go unnoticed. */
function requireKnown({ loss, klBeta, numIterations, numMiniBatches = 1 }: StepPlan): void {
  const steps = numIterations * numMiniBatches;
  const { entropyCoef = 0 } = loss;
  const isOurs = loss.type === 'importance_sampling' && loss.aggregation === 'token';
  if (isOurs && klBeta === 0 && entropyCoef === 0 && steps === 1) return;
  throw refusal(
    `expected the loss importance_sampling by token, one step, no KL penalty and no bonus for entropy; got ${loss.type} by ${loss.aggregation}, ${steps}, ${klBeta} and ${entropyCoef}`,
  );
}

function tokensOf({
  tokenIds,
  lossMask,
}: Pick<TrainSample, 'tokenIds' | 'lossMask'>): { t: number; read: number; said: number }[] {
  const first = lossMask.indexOf(1);
  const prompt = tokenIds.slice(0, first);
  return tokenIds.flatMap((said, t) => (lossMask[t] === 1 ? [{ t, read: readAt(prompt, t - first), said }] : []));
}

/** An error with this code is a refusal, which is not retried: it would fail again. */
function refusal(message: string): Error {
  return Object.assign(new Error(`my-trainer.ts: ${message}.`), { code: 'Unsupported' });
}
