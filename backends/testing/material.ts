import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { randomStream } from '../../core/random.ts';
import type { TrainSample } from '../../core/rl/batch.ts';
import type { PolicyVersion, StepPlan } from '../../core/rl/run-state.ts';
import type { LossSettings, OptimizerSpec } from '../../config/run-spec.ts';
import { createPreset, EngineOptimizer, loadTokenizer, saveModelFolder } from '../../engine/index.ts';
import type { ServedPolicy } from '../inference/index.ts';
import type { TrainedPart } from '../trainer/index.ts';

/** Plans, batches and weights that adapters are tried with. Everything is keyed by seeds: the same each time. */

export const contractOptimizer: OptimizerSpec = {
  beta1: 0.9,
  beta2: 0.98,
  epsilon: 1e-8,
  weightDecay: 0,
  maxGradNorm: 1,
};

/** With these a step moves the weights by about the learning rate times the gradient, so that sizes of gradients show. */
export const gradientSteps: OptimizerSpec = { ...contractOptimizer, epsilon: 1, maxGradNorm: 1e6 };

const usualLosses: Readonly<Record<Exclude<LossSettings['type'], 'custom'>, Omit<LossSettings, 'aggregation'>>> = {
  cispo: { type: 'cispo', clipHigh: 1.3 },
  grpo: { type: 'grpo', clipLow: 0.8, clipHigh: 1.2 },
  importance_sampling: { type: 'importance_sampling', clipHigh: 1 },
  dppo: { type: 'dppo', clipHigh: 1, maskLow: 0.2, maskHigh: 0.2, klTau: 1e-3 },
  ipo: { type: 'ipo', clipHigh: 1, maskLow: 0.1, maskHigh: 0.1, klTau: 1e-3 },
  gspo: { type: 'gspo', clipLow: 0.9, clipHigh: 1.1 },
  dro: { type: 'dro', clipHigh: 1, klTau: 0.05 },
  cross_entropy: { type: 'cross_entropy', clipHigh: 1 },
};
export type ContractLoss = keyof typeof usualLosses;
export const contractLosses = Object.keys(usualLosses) as ContractLoss[];

export function lossOf(type: ContractLoss, aggregation: LossSettings['aggregation'] = 'token'): LossSettings {
  return { ...usualLosses[type], aggregation, ...(aggregation === 'dr_grpo' ? { maxTokens: 16 } : {}) };
}

const noVersion: PolicyVersion = {
  step: 0,
  digest: '',
  weights: '',
  file: { key: '', sha256: '', bytes: 0 },
  sums: { key: '', sha256: '', bytes: 0 },
};

/** A plan of which everything that decides a step may be given; what only says where it comes from is empty. */
export function planOf(given: Partial<StepPlan> & Pick<StepPlan, 'loss'>): StepPlan {
  return {
    lineage: 'main',
    step: 1,
    attempt: 1,
    from: noVersion,
    reference: noVersion,
    packed: noVersion.file,
    learningRate: 1e-2,
    temperature: 1,
    klBeta: 0,
    optimizer: contractOptimizer,
    numIterations: 1,
    microBatchSize: null,
    snapshot: false,
    ...given,
  };
}

export async function temporaryFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-contract-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** Writes the small model of our own example, with random weights. */
export async function writePreset(folder: string): Promise<string> {
  await mkdir(folder, { recursive: true });
  await saveModelFolder(createPreset('preset:reverse-text-0.2m', { seed: 1 }), folder);
  return folder;
}

const words = ['cat', 'horse', 'elephant', 'dog', 'mouse', 'tiger', 'ant', 'giraffe'];

export async function promptsOf(folder: string): Promise<number[][]> {
  const tokenizer = await loadTokenizer(folder);
  return words.map((word) => tokenizer.renderChat([{ role: 'user', content: word }]));
}

/** Rows of a prompt and an answer of random letters, of many lengths; an advantage for each row, half of them below 0. */
export async function rowsOf(folder: string, { count = 12, seed = 1 } = {}): Promise<TrainSample[]> {
  const tokenizer = await loadTokenizer(folder);
  const prompts = await promptsOf(folder);
  const random = randomStream('contract rows', seed);
  return Array.from({ length: count }, (_, row) => {
    const prompt = prompts[row % prompts.length]!;
    const letters = Array.from({ length: 2 + Math.floor(random() * 9) }, () =>
      String.fromCharCode('a'.charCodeAt(0) + Math.floor(random() * 26)),
    );
    const answer = tokenizer.encode(letters.join(''));
    const advantage = (row % 2 === 0 ? 1 : -1) * (0.5 + random());
    const perToken = (value: number): number[] => [...prompt.map(() => 0), ...answer.map(() => value)];
    return {
      tokenIds: [...prompt, ...answer],
      lossMask: perToken(1),
      behaviorLogprobs: perToken(-3),
      advantages: perToken(advantage),
    };
  });
}

/** Rows as if a policy had sampled them whose probabilities were a little, and for some tokens much, off those given. */
export function nearPolicy(rows: readonly TrainSample[], logprobs: readonly ArrayLike<number>[]): TrainSample[] {
  const off = [0.02, -0.03, 0.5, -0.04, -0.6];
  return rows.map((row, r) => ({
    ...row,
    behaviorLogprobs: row.lossMask.map((mask, t) => (mask === 0 ? 0 : logprobs[r]![t]! + off[(r + t) % off.length]!)),
  }));
}

/** log softmax(logits / temperature) of every token that counts, by the embedded engine, of a folder's weights. */
export async function engineLogprobs(
  folder: string,
  rows: readonly Pick<TrainSample, 'tokenIds' | 'lossMask'>[],
  temperature: number,
): Promise<Float32Array[]> {
  const engine = await EngineOptimizer.open(folder, { threads: 1 });
  try {
    return await engine.forwardLogprobs(rows, { temperature });
  } finally {
    await engine.close();
  }
}

/** The largest distance between logprobs of tokens that count. */
export function farthest(
  rows: readonly Pick<TrainSample, 'lossMask'>[],
  a: readonly ArrayLike<number>[],
  b: readonly ArrayLike<number>[],
): number {
  const distances = rows.flatMap(({ lossMask }, r) =>
    lossMask.flatMap((mask, t) => (mask === 0 ? [] : [Math.abs(a[r]![t]! - b[r]![t]!)])),
  );
  return distances.reduce((most, one) => (Number.isNaN(one) ? NaN : Math.max(most, one)), 0);
}

/** Two versions that differ much, as the store of a run has them, below one folder. */
export interface VersionFolders {
  /** Below it lie both, and the model that they began with. */
  readonly root: string;
  readonly versions: readonly [ServedPolicy, ServedPolicy];
}

/** Trains a folder's model a little, by the embedded engine: what an inference that loads files is tried with. */
export async function trainVersions(
  t: TestContext,
  options: { readonly model?: string; readonly part?: TrainedPart } = {},
): Promise<VersionFolders> {
  const root = await temporaryFolder(t);
  const model = options.model ?? (await writePreset(path.join(root, 'step_0')));
  const { lora = null, seed = 1 } = options.part ?? {};
  const engine = await EngineOptimizer.open(model, { threads: 1, lora, seed });
  try {
    const samples = await rowsOf(model, { count: 32, seed: 5 });
    const made: ServedPolicy[] = [];
    for (const step of [1, 2]) {
      for (let pass = 0; pass < 6; pass++) {
        await engine.sftStep(samples.slice(16 * (step - 1), 16 * step), {
          learningRate: 2e-2,
          optimizer: contractOptimizer,
        });
      }
      const folder = path.join(root, `step_${step}`);
      await mkdir(folder);
      const digest = await engine.exportWeights(folder, { base: path.relative(folder, model) });
      const weights = `weights/step_${step}/`;
      const version = { ...noVersion, step, digest, weights };
      made.push({ name: `contract:main:${step}`, version, folder });
    }
    return { root, versions: [made[0]!, made[1]!] };
  } finally {
    await engine.close();
  }
}
