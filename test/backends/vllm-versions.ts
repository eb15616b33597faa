import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { type Inference, openInference } from '../../backends/inference/index.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';
import { InferenceSpec } from '../../config/run-spec.ts';
import { vllmSpecDefaults } from '../stand-ins/vllm-spec-defaults.ts';
import {
  adaptedLayers,
  createAdapter,
  openModel,
  policyDigest,
  saveAdapterFolder,
  saveModelFolder,
} from '../../engine/index.ts';

/** Versions of a run as the trainer leaves them: v0 whole, and after it adapters, or whole ones. */
export interface Versions {
  readonly folder: string;
  readonly v0: ServedPolicy;
  adapter(step: number, run?: string): Promise<ServedPolicy>;
  whole(step: number, run?: string): Promise<ServedPolicy>;
}

export const canaryTokens = [3, 10, 11, 12, 13, 2, 13, 12, 11];
export const canaryPositions = [2, 4, 6, 8];

/** Another `seed` gives another base. */
export async function makeVersions(
  t: TestContext,
  model = 'preset:reverse-text-vllm-0.2m',
  seed = 0,
): Promise<Versions> {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-versions-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const opened = await openModel(model, { seed });
  const base = opened.parameters.digest();
  const weightsOf = async (name: string): Promise<string> => {
    const weights = path.join(folder, name);
    await mkdir(weights, { recursive: true });
    return weights;
  };
  const served = (run: string, step: number, weights: string, digest: string): ServedPolicy => ({
    name: `${run}:main:${step}`,
    folder: weights,
    version: {
      step,
      digest,
      weights: `${path.basename(weights)}/`,
      file: { key: '', sha256: '', bytes: 0 },
      sums: { key: '', sha256: '', bytes: 0 },
    },
  });
  const v0Folder = await weightsOf('step_0');
  await saveModelFolder(opened, v0Folder);
  return {
    folder,
    v0: served('run', 0, v0Folder, base),
    async adapter(step, run = 'run') {
      const adapter = createAdapter(
        opened.config,
        { r: 4, alpha: 16, dropout: 0, targetModules: ['q_proj', 'up_proj'] },
        step,
      );
      for (const { b } of adaptedLayers(opened.config, adapter.lora)) {
        adapter.view(b).forEach((_, i, view) => (view[i] = 0.1 * Math.sin(7 * i + step)));
      }
      const weights = await weightsOf(`${run}_adapter_${step}`);
      await saveAdapterFolder({ adapter, base: '../step_0', baseDigest: base }, weights);
      return served(run, step, weights, policyDigest(base, adapter));
    },
    async whole(step, run = 'run') {
      const parameters = opened.parameters.clone();
      for (const { name } of parameters.layout) {
        parameters.view(name).forEach((one, i, view) => (view[i] = one * (1 + 0.2 * Math.sin(i + step))));
      }
      const weights = await weightsOf(`${run}_whole_${step}`);
      await saveModelFolder({ ...opened, parameters }, weights);
      return served(run, step, weights, parameters.digest());
    },
  };
}

/** Opens it as a run does. `loraRank` null = all weights are trained. */
export function openVllm(
  t: TestContext,
  urls: readonly string[],
  use: {
    readonly loraRank?: number | null;
    readonly servesBase?: boolean;
    readonly weightsAgent?: string;
    readonly apiKeyVar?: string;
  } = {},
  say: (line: string) => void = () => undefined,
): Inference {
  const { loraRank = 4, servesBase = true, weightsAgent = null, apiKeyVar = null } = use;
  const vllm = { ...vllmSpecDefaults, loraRank, servesBase, weightsAgent };
  const inference = openInference(InferenceSpec.parse({ kind: 'vllm', url: [...urls], apiKeyVar, vllm }), '', say);
  t.after(() => inference.close?.());
  return inference;
}
