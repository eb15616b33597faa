import { randomStream } from '../../core/random.ts';
import { parseModelConfig } from './config.ts';
import { assembleModel, loadModelFolder, type ModelFolder } from './model-folder.ts';
import type { ParameterSpec } from './parameter-layout.ts';
import { Parameters } from './parameters.ts';
import { initialDeviation, presetFiles } from './preset-files.ts';

/** Opens a folder of Hugging Face files, or a preset by its name. The seed speaks to presets only. */
export async function openModel(model: string, options: { seed: number }): Promise<ModelFolder> {
  return model.startsWith('preset:') ? createPreset(model, options) : loadModelFolder(model);
}

/** Equal names and seeds give equal bits. */
export function createPreset(name: string, { seed }: { seed: number }): ModelFolder {
  const files = presetFiles(name);
  const parameters = new Parameters(parseModelConfig(files['config.json'] ?? '', name));
  initializeParameters(parameters, seed);
  return assembleModel(files, parameters);
}

/**
 * Norms start at 1, matrices at N(0, 0.05²). The two matrices that write into the residual stream are scaled by
 * 1/sqrt(2 layers), so that its variance does not grow with depth (Radford et al. 2019, GPT-2, §2.3).
 */
function initializeParameters(parameters: Parameters, seed: number): void {
  for (const spec of parameters.layout) {
    const view = parameters.view(spec.name);
    if (spec.shape.length === 1) view.fill(1);
    else fillNormal(view, { seed, name: spec.name, deviation: deviationOf(spec, parameters.config.layerCount) });
  }
}

function deviationOf({ name }: ParameterSpec, layerCount: number): number {
  return /\.(o_proj|down_proj)\./.test(name) ? initialDeviation / Math.sqrt(2 * layerCount) : initialDeviation;
}

/** Box–Muller. */
function fillNormal(
  view: Float32Array,
  { seed, name, deviation }: { seed: number; name: string; deviation: number },
): void {
  const random = randomStream('weights', seed, name);
  for (let i = 0; i < view.length; i++) {
    const radius = Math.sqrt(-2 * Math.log(1 - random()));
    view[i] = deviation * radius * Math.cos(2 * Math.PI * random());
  }
}
