import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { randomStream } from '../../core/random.ts';
import type { TrainSample } from '../../core/rl/learning/batch.ts';
import type { PolicyVersion, ServedPolicy, StepPlan } from '../../core/rl/run-state.ts';
import type { LossSettings, OptimizerSpec } from '../../config/run-spec.ts';
import {
  createPreset,
  decodeSafetensors,
  EngineOptimizer,
  loadTokenizer,
  saveModelFolder,
} from '../../engine/index.ts';
import type { TrainedPart } from '../trainer/index.ts';

/** Plans, batches and weights for testing adapters. Everything is keyed by seeds, so every run is equal. */

export const contractOptimizer: OptimizerSpec = {
  beta1: 0.9,
  beta2: 0.98,
  epsilon: 1e-8,
  weightDecay: 0,
  maxGradNorm: 1,
};

/** Makes a step about the learning rate times the gradient, so that gradient sizes are visible. */
export const gradientSteps: OptimizerSpec = { ...contractOptimizer, epsilon: 1, maxGradNorm: 1e6 };

const defaultLosses: Readonly<Record<Exclude<LossSettings['type'], 'custom'>, Omit<LossSettings, 'aggregation'>>> = {
  cispo: { type: 'cispo', clipHigh: 1.3 },
  grpo: { type: 'grpo', clipLow: 0.8, clipHigh: 1.2 },
  importance_sampling: { type: 'importance_sampling', clipHigh: 1 },
  dppo: { type: 'dppo', clipHigh: 1, maskLow: 0.2, maskHigh: 0.2, klTau: 1e-3 },
  ipo: { type: 'ipo', clipHigh: 1, maskLow: 0.1, maskHigh: 0.1, klTau: 1e-3 },
  gspo: { type: 'gspo', clipLow: 0.9, clipHigh: 1.1 },
  dro: { type: 'dro', clipHigh: 1, klTau: 0.05 },
  cross_entropy: { type: 'cross_entropy', clipHigh: 1 },
};
export type ContractLoss = keyof typeof defaultLosses;
export const contractLosses = Object.keys(defaultLosses) as ContractLoss[];

export function lossOf(type: ContractLoss, aggregation: LossSettings['aggregation'] = 'token'): LossSettings {
  return { ...defaultLosses[type], aggregation, ...(aggregation === 'dr_grpo' ? { maxTokens: 16 } : {}) };
}

const noVersion: PolicyVersion = {
  step: 0,
  digest: '',
  weights: '',
  file: { key: '', sha256: '', bytes: 0 },
  sums: { key: '', sha256: '', bytes: 0 },
};

/** A plan with defaults: fields that decide a step may be given; those of its origin are empty. */
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

/** Rows of an invented sampler whose probabilities differ a little, and for some tokens much, from the given ones. */
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

/** A version is one .safetensors file, or several that one index names: all of them, and nothing else. */
export async function requireWeightFiles(folder: string): Promise<void> {
  const names = await readdir(folder);
  const weights = names.filter((name) => name.endsWith('.safetensors'));
  if (weights.length === 1) return;
  const indices = names.filter((name) => name.endsWith('.safetensors.index.json'));
  assert.equal(indices.length, 1, `${weights.length} .safetensors files have one index beside them`);
  const { weight_map } = JSON.parse(await readFile(path.join(folder, indices[0]!), 'utf8')) as {
    readonly weight_map: Readonly<Record<string, string>>;
  };
  assert.deepEqual([...new Set(Object.values(weight_map))].sort(), weights.sort(), 'the index names all of them');
}

/** ‖Δ − Δ′‖ / ‖Δ‖ of two versions that were trained from one, from their files. */
export async function updateDifference(before: string, one: string, other: string): Promise<number> {
  const [start, first, second] = await Promise.all([before, one, other].map(weightsIn));
  let [apart, moved] = [0, 0];
  for (const [name, values] of first!) {
    const [from, others] = [start!.get(name), second!.get(name)];
    assert(from && others, `all versions have ${name}`);
    for (const [i, value] of values.entries()) {
      apart += (value - others[i]!) ** 2;
      moved += (value - from[i]!) ** 2;
    }
  }
  return Math.sqrt(apart / moved);
}

async function weightsIn(folder: string): Promise<Map<string, Float32Array>> {
  const files = (await readdir(folder)).filter((name) => name.endsWith('.safetensors'));
  const weights = new Map<string, Float32Array>();
  for (const file of files) {
    const { tensors } = decodeSafetensors(await readFile(path.join(folder, file)), file);
    for (const [name, { data }] of tensors) if (data instanceof Float32Array) weights.set(name, data);
  }
  return weights;
}

/** Two versions that differ much, as the store of a run has them, below one folder. */
export interface VersionFolders {
  /** Contains both, and their initial model. */
  readonly root: string;
  readonly versions: readonly [ServedPolicy, ServedPolicy];
}

/** Trains a folder's model a little, by the embedded engine: versions for an inference that loads files. */
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
