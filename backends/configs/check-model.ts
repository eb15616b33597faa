import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import type { RunSpec } from '../../core/spec/run-spec.ts';
import {
  adapterParameterCount,
  copiesForPasses,
  copiesInTraining,
  createPreset,
  parameterCount,
  parseModelConfig,
  requireMemory,
} from '../../engine/index.ts';

type ModelUse = Pick<RunSpec, 'model' | 'lora' | 'sft'> & Partial<Pick<RunSpec, 'numIterations' | 'trainer'>>;

/**
 * Refuses a model that the embedded engine cannot open, adapt or hold, before anything is started for it. Where there
 * is a warm-up it trains all weights, whatever the run trains after it.
 */
export async function checkModel({ model, lora, sft, numIterations = 1, trainer }: ModelUse): Promise<void> {
  const config = await readConfig(model);
  if (trainer?.kind === 'module') return; // what it can hold is its own affair
  const copies = copiesInTraining + (numIterations > 1 ? copiesForPasses : 0);
  if (!lora || sft) requireMemory(parameterCount(config), copies, 'training it');
  if (!lora) return;
  const adapterCount = adapterParameterCount(config, lora);
  requireMemory(parameterCount(config), copies, 'training its adapters', { adapterCount });
}

async function readConfig(model: string): Promise<ReturnType<typeof parseModelConfig>> {
  if (model.startsWith('preset:')) return createPreset(model, { seed: 0 }).config;
  const file = path.join(model, 'config.json');
  try {
    return parseModelConfig(await readFile(file, 'utf8'), file);
  } catch (cause) {
    if (cause instanceof RatchetError) throw cause;
    throw new RatchetError(
      'ModelUnsupported',
      `model: expected a preset (preset:reverse-text-0.2m) or a folder with Hugging Face files, but ${model} has no config.json. Nothing is downloaded by itself: fetch the model into a folder first (hf download OWNER/NAME --local-dir FOLDER) and name that.`,
      { cause },
    );
  }
}
