import { existsSync } from 'node:fs';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { type ModelConfig, parseModelConfig } from '../../engine/model/config.ts';
import { presetFiles } from '../../engine/model/preset-files.ts';
import { readModelText, requiredFiles } from '../../engine/model/text-files.ts';
import { isFetched, whyNoModel } from './model-of-hub.ts';

/** Refuses a folder that lacks a file which prompts are made with. */
export function requireTexts(model: string): void {
  if (!model.startsWith('preset:')) {
    const missing = requiredFiles.filter((name) => !existsSync(path.join(model, name)));
    if (missing.length > 0) {
      throw new RatchetError(
        'ModelUnsupported',
        `model: expected a folder with the model’s ${requiredFiles.join(', ')} (prompts are made here; the weights stay on the server), but ${model} has no ${missing.join(', ')}. Fetch them: npx ratchet-rl model get ${isFetched(model) ? model : 'OWNER/NAME'} --texts`,
      );
    }
  }
}

export async function readModelConfig(model: string): Promise<ModelConfig> {
  if (model.startsWith('preset:')) return parseModelConfig(presetFiles(model)['config.json'] ?? '', model);
  const file = path.join(model, 'config.json');
  try {
    return parseModelConfig(await readModelText(model, 'config.json'), file);
  } catch (cause) {
    if (cause instanceof RatchetError) throw cause;
    throw new RatchetError(
      'ModelUnsupported',
      `model: expected a preset (preset:reverse-text-0.2m), a folder with Hugging Face files, or a name on the Hugging Face Hub, but ${whyNoModel(model)}.`,
      { cause },
    );
  }
}
