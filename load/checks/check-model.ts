import { RatchetError } from '../../core/errors.ts';
import { samplesOn, trainsOn } from '../../config/gpu-settings.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { contextProblems, ContextTooSmall } from './check-context.ts';
import { readModelConfig, requireTexts } from './model-texts.ts';
import { trainerTraits } from '../../core/kinds/trainers.ts';
// One by one: a command that only looks needs neither the engine nor its libraries.
import { adapterParameterCount } from '../../engine/model/adapter-layout.ts';
import { type ModelConfig, parseModelConfig } from '../../engine/model/config.ts';
import { copiesForPasses, copiesInTraining, requireMemory } from '../../engine/model/memory.ts';
import { parameterCount } from '../../engine/model/parameter-layout.ts';
import { requireWholeWeights } from '../../engine/model/weights.ts';
import { type PassMemory, passMemory } from '../../engine/train/activations.ts';
import { contextPositionsMax } from '../../engine/limits.ts';
import { type ServerMemory, serverMemory } from '../../engine/sample/server-memory.ts';

type ModelUse = Pick<RunSpec, 'model' | 'lora' | 'sft'> &
  Partial<Pick<RunSpec, 'numIterations' | 'trainer' | 'inference' | 'sampling' | 'environments' | 'eval'>>;

/** Sizes of a model. */
export interface ModelSize {
  readonly parameterCount: number;
  /** Parameters of the adapters; null when all weights are trained. */
  readonly adapterCount: number | null;
  /** Tokens of its longest context; null when the embedded engine takes less, or it is unknown. */
  readonly positionsMax: number | null;
  /** Memory for training on the CPU; null unless the embedded engine does that. */
  readonly training: TrainingMemory | null;
  /** Memory plan for sampling on this machine's CPU; null unless an embedded policy server does that. */
  readonly sampling: ServerMemory | null;
}

/** Upper bounds in bytes. */
export interface TrainingMemory extends PassMemory {
  /** Bytes of weights, and of trained ones also gradients and moments. */
  readonly weightBytes: number;
}

/**
 * Refuses a model that the embedded engine cannot open, adapt or hold, before anything starts; else returns its size. A
 * warm-up trains all weights, whatever the run trains afterwards.
 */
export async function checkModel(use: ModelUse): Promise<ModelSize | null> {
  if (use.trainer && trainerTraits(use.trainer).modelFiles === 'texts') return checkTexts(use.model);
  const size = checkConfig(await readModelConfig(use.model), use);
  if (!use.model.startsWith('preset:')) await requireWholeWeights(use.model);
  const problems = contextProblems(use, size);
  if (problems.length > 0) throw new ContextTooSmall(use.model, problems);
  return size;
}

/** Advice on what to name instead of an unsuitable model. */
export function modelRemedy({ trainer }: Pick<RunSpec, 'trainer'>): string {
  return trainerTraits(trainer).modelFiles === 'texts'
    ? 'name a folder with config.json and the tokenizer’s files; the weights are on the server'
    : 'name a folder with config.json, tokenizer.json and safetensors, or a preset';
}

/** The same for the text of a config.json; `where` is its place, for messages. */
export function checkConfigText(text: string, where: string, use: Omit<ModelUse, 'model'>): ModelSize | null {
  const isHere = !use.trainer || trainerTraits(use.trainer).modelFiles === 'weights';
  return isHere ? checkConfig(parseModelConfig(text, where), use) : null;
}

function checkConfig(
  config: ModelConfig,
  { lora, sft, numIterations = 1, trainer, inference }: Omit<ModelUse, 'model'>,
): ModelSize {
  const copies = copiesInTraining + (numIterations > 1 ? copiesForPasses : 0);
  const counts = {
    sampling:
      inference && 'endpoints' in inference && samplesOn({ inference }) === 'cpu'
        ? serverMemory(config, inference)
        : null,
    parameterCount: parameterCount(config),
    adapterCount: lora && adapterParameterCount(config, lora),
    positionsMax: config.positionsMax < contextPositionsMax ? config.positionsMax : null,
  };
  if (trainer && trainerTraits(trainer).engine !== 'embedded') return { ...counts, training: null };
  const held = counts.adapterCount === null || sft ? 0 : counts.parameterCount;
  const trained = held === 0 ? counts.parameterCount : counts.adapterCount!;
  const training =
    trainer && trainsOn({ trainer }) === 'cpu'
      ? {
          ...passMemory(config, 'acFreq' in trainer ? trainer.acFreq : undefined),
          weightBytes: 4 * (held + copies * trained),
        }
      : null;
  const size = { ...counts, training };
  if (size.adapterCount === null || sft) requireMemory(size.parameterCount, copies, 'training it');
  if (size.adapterCount === null) return size;
  requireMemory(size.parameterCount, copies, 'training its adapters', { adapterCount: size.adapterCount });
  return size;
}

/** If the weights are on a server, the model's text files are enough; its size may be unknown here. */
async function checkTexts(model: string): Promise<ModelSize | null> {
  requireTexts(model);
  try {
    const counted = parameterCount(await readModelConfig(model));
    return { parameterCount: counted, adapterCount: null, positionsMax: null, training: null, sampling: null };
  } catch (error) {
    if (error instanceof RatchetError && error.code === 'ModelUnsupported') return null; // by the embedded engine, which has no part in it
    throw error;
  }
}
