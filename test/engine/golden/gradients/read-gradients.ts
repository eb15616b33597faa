/** Models, batches and what PyTorch says of their losses; make_gradients.py makes the folders. */
import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { TrainSample } from '../../../../core/rl/learning/batch.ts';
import type { OptimizerSpec } from '../../../../config/run-spec.ts';
import {
  createPreset,
  decodeSafetensors,
  type EngineOptimizer,
  type SftMetrics,
  type TrainMetrics,
} from '../../../../engine/index.ts';

export type GoldenSample = TrainSample & { readonly referenceLogprobs: readonly number[] };

export interface LossCase {
  readonly name: string;
  readonly loss: 'sft' | 'cispo' | 'grpo' | 'importance_sampling' | 'dppo' | 'ipo';
  readonly aggregation: 'token' | 'sequence' | 'dr_grpo';
  readonly temperature: number;
  readonly clipLow: number;
  readonly clipHigh: number;
  /** Set for dppo and ipo, whose bounds are clipLow and clipHigh. */
  readonly klTau?: number;
  readonly maxTokens: number;
  readonly beta: number;
  /** Named as in SftMetrics and TrainMetrics. */
  readonly metrics: Readonly<Record<string, number>>;
}

export interface GradientGolden {
  readonly cases: readonly LossCase[];
  readonly samples: readonly GoldenSample[];
  /** `CASE/TENSOR` → values. */
  readonly gradients: ReadonlyMap<string, Float32Array>;
  /** Folder of the base, for an adapter. */
  readonly base: string | null;
}

export async function readGradients(folder: string): Promise<GradientGolden> {
  const json = async (name: string): Promise<unknown> => JSON.parse(await readFile(join(folder, name), 'utf8'));
  const { base, cases } = (await json('cases.json')) as Pick<GradientGolden, 'base' | 'cases'>;
  const samples = (await json('batch.json')) as GoldenSample[];
  return { base, cases, samples, gradients: await readFloats(join(folder, 'gradients.safetensors')) };
}

export async function readFloats(file: string): Promise<Map<string, Float32Array>> {
  const { tensors } = decodeSafetensors(await readFile(file), file);
  return new Map([...tensors].map(([name, { data }]) => [name, data as Float32Array]));
}

/**
 * Copies a folder, and an adapter's base beside it, to below `to`, in the form that the engine opens: with a tokenizer,
 * which these lack and no test needs. Returns the copy.
 */
export async function copyModel(folder: string, to: string): Promise<string> {
  const copy = join(to, basename(folder));
  const { base } = await readGradients(folder);
  if (base !== null) {
    await copyModel(join(folder, '..', base), to);
    await copyFiles(folder, copy, ['adapter_config.json', 'adapter_model.safetensors']);
    return copy;
  }
  await copyFiles(folder, copy, ['config.json', 'model.safetensors']);
  const { files } = createPreset('preset:reverse-text-0.2m', { seed: 0 });
  for (const name of ['tokenizer.json', 'tokenizer_config.json']) await writeFile(join(copy, name), files[name]!);
  return copy;
}

async function copyFiles(from: string, to: string, names: readonly string[]): Promise<void> {
  await mkdir(to, { recursive: true });
  for (const name of names) await copyFile(join(from, name), join(to, name));
}

const optimizer: OptimizerSpec = { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };

/** One step at a learning rate of 0: it leaves the gradient and says the metrics. */
export async function computeCase(
  trainer: EngineOptimizer,
  golden: GradientGolden,
  lossCase: LossCase,
  limits: { readonly microBatchRows?: number } = {},
): Promise<SftMetrics | TrainMetrics> {
  const { loss: type, aggregation, clipLow, clipHigh, klTau, maxTokens, temperature, beta } = lossCase;
  const bounds =
    klTau === undefined ? { clipLow, clipHigh } : { clipHigh, maskLow: clipLow, maskHigh: clipHigh, klTau };
  const { samples } = golden;
  const common = { learningRate: 0, optimizer, ...limits };
  if (type === 'sft') return (await trainer.sftStep(samples, common)).metrics;
  const result = await trainer.trainStep(samples, {
    ...common,
    loss: { type, aggregation, ...bounds, maxTokens },
    temperature,
    klBeta: beta,
    ...(beta > 0 && { referenceLogprobs: samples.map(({ referenceLogprobs }) => referenceLogprobs) }),
  });
  return result.metrics;
}
