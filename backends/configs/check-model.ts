import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { copiesInTraining, createPreset, parameterCount, parseModelConfig, requireMemory } from '../../engine/index.ts';

/** Refuses a model that the embedded engine cannot open or hold, before anything is started for it. */
export async function checkModel(model: string): Promise<void> {
  if (model.startsWith('preset:')) {
    createPreset(model, { seed: 0 });
    return;
  }
  const file = path.join(model, 'config.json');
  const config = parseModelConfig(await readConfig(file, model), file);
  requireMemory(parameterCount(config), copiesInTraining, 'training it');
}

async function readConfig(file: string, model: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch (cause) {
    throw new RatchetError(
      'ModelUnsupported',
      `model: expected a preset (preset:reverse-text-0.2m) or a folder with Hugging Face files, but ${model} has no config.json. Nothing is downloaded by itself: fetch the model into a folder first (hf download OWNER/NAME --local-dir FOLDER) and name that.`,
      { cause },
    );
  }
}
