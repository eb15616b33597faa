import { isHubId } from '../../core/names.ts';
import { trainerTraits } from '../../core/kinds/trainers.ts';
import { RatchetError } from '../../core/errors.ts';
import { knownModel } from '../../config/models/known-models.ts';
import { loraParameterCount, parameterCountOf } from '../../core/model-shape.ts';
import type { ModelCounts } from '../../config/run-plan.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { copiesForPasses, copiesInTraining, requireMemory } from '../../engine/model/memory.ts';
import { findCached } from '../../backends/hub/hub-cache.ts';
import { hubSettings } from '../../backends/hub/hub-settings.ts';
import { aboutPackaged, isPackagedHere, packagedFolder } from '../../backends/hub/packaged-models.ts';
import type { ModelParts } from '../../backends/hub/model-files.ts';
import { requireModelPlace } from '../../host/trusted-files.ts';
import { type Folders, isThere, resolvePath } from '../paths.ts';

/** A model that a run file names by its id on the Hugging Face Hub, or by the name of one that comes as a package. */

type Named = Pick<RunSpec, 'model' | 'trainer'>;

/** If the weights are on a server, only the files for prompts are needed here. */
export function partsFor(trainer: Pick<RunSpec['trainer'], 'kind'>): ModelParts {
  return trainerTraits(trainer).modelFiles;
}

/**
 * Resolves a model's name. `preset:NAME` stays; a path becomes absolute, relative to the config's folder if it begins
 * with a dot. A name on the Hub that is no folder here becomes its folder in the Hugging Face cache; without one it
 * stays, so that the refusal can name it.
 */
export async function resolveModel({ model, trainer }: Named, folders: Folders): Promise<Named> {
  if (model.startsWith('preset:')) return { model, trainer };
  const folder = resolvePath(model, folders);
  const packaged = packagedFolder(model);
  if (packaged !== null && !(await isThere(folder)))
    return { model: isPackagedHere(model) ? packaged : model, trainer };
  if (!isHubId(model)) requireModelPlace(folder, 'The model');
  if (!isHubId(model) || (await isThere(folder))) return { model: folder, trainer };
  const found = findCached(hubSettings().cache, model, partsFor(trainer));
  const isWhole = found !== null && found.missing.length === 0;
  // A server calls a model as the Hub does.
  const named = 'baseModel' in trainer && trainer.baseModel === null ? { ...trainer, baseModel: model } : trainer;
  return { model: isWhole ? found.folder : model, trainer: named };
}

/** Whether a model is named so that it can be fetched: by its id on the Hub, or as a package. */
export function isFetched(model: string): boolean {
  return isHubId(model) || aboutPackaged(model) !== null;
}

/** Why a named model has no config.json, and advice. */
export function whyNoModel(model: string): string {
  const about = aboutPackaged(model);
  const remedy = `Fetch it: npx ratchet-rl model get ${model}`;
  if (isHubId(model))
    return `${model} is neither a folder here nor in ${hubSettings().cache}. ${remedy} (ratchet train --yes does it)`;
  if (about !== null) return `${model} (${about}) is not here yet. ${remedy} (ratchet train does it)`;
  return `${model} has no config.json. A model of the Hub is fetched by: npx ratchet-rl model get OWNER/NAME, and then named so`;
}

/** Why a model is not here, and the steps to get it. `key`: where the file names it. */
export function notHere(spec: RunSpec, key: string): { readonly says: string; readonly remedies: readonly string[] } {
  const { model, trainer } = spec;
  const about = aboutPackaged(model);
  if (about !== null) {
    const remedies = [`fetch it: npx ratchet-rl model get ${model}; \`npx ratchet-rl train\` does it by itself`];
    return { says: `${model} (${about}) is not here yet.`, remedies };
  }
  const { cache } = hubSettings();
  const found = findCached(cache, model, partsFor(trainer));
  const lacks =
    found === null
      ? `neither a folder here nor in ${cache}`
      : `not whole in ${found.folder}: ${found.missing.join(', ')} is missing`;
  const says = `${model} is a name on the Hugging Face Hub${sizeOf(model)}, and ${lacks}.`;
  const tinker = `a Tinker or SkyRL server trains it by that name: [trainer] kind = "tinker" (docs/guide/tinker.md); of the model itself only its tokenizer is needed then: npx ratchet-rl model get ${model} --texts`;
  const torch =
    'PyTorch trains it on GPUs: [trainer] kind = "torch", after npx ratchet-rl engine install torch (docs/guide/gpus.md)';
  const module = 'an engine of yours trains it: [trainer] kind = "module" (docs/guide/adapters.md)';
  if (partsFor(trainer) === 'texts')
    return { says, remedies: [`fetch its tokenizer: npx ratchet-rl model get ${model} --texts`] };
  const why = whyNotEmbedded(spec);
  if (why !== null && trainerTraits(trainer).engine === 'embedded') {
    const smaller = `or name a smaller model: ${key} = "Qwen/Qwen3-0.6B", or "preset:reverse-text-0.2m", which comes with Ratchet`;
    return {
      says: `${says} The embedded engine cannot train it here: ${why}`,
      remedies: [torch, tinker, module, smaller],
    };
  }
  const get = `fetch it: npx ratchet-rl model get ${model}, or train with --yes`;
  return {
    says,
    remedies: [
      get,
      `or ${tinker}`,
      `vLLM samples what is trained here: [inference] kind = "vllm" (docs/guide/vllm.md)`,
    ],
  };
}

function sizeOf(model: string): string {
  const known = knownModel(model);
  if (known === undefined) return '';
  const count = parameterCountOf(known.shape);
  return ` (${known.name}, ${(count / 1e9).toFixed(2)} billion parameters, ${((2 * count) / 2 ** 30).toFixed(1)} GiB in bfloat16)`;
}

/** A number and B or M, as in Qwen3-4B or SmolLM2-135M. */
const sizeInName = /(?:^|[^a-z0-9.])(\d+(?:\.\d+)?)(b|m)(?![a-z0-9])/gi;

/** Size of a model that is not here, from known models or from the size in its name; null if neither has it. */
export function countsOfMissing({ model, lora }: Pick<RunSpec, 'model' | 'lora'>): ModelCounts | null {
  const known = knownModel(model);
  if (known !== undefined) {
    const adapterCount = lora && loraParameterCount(known.shape, lora);
    return { parameterCount: parameterCountOf(known.shape), adapterCount };
  }
  const sizes = [...model.matchAll(sizeInName)];
  const [, number, unit] = sizes.at(-1) ?? [];
  if (number === undefined) return null;
  // Only whether there are adapters matters, not their size.
  return {
    parameterCount: Number(number) * (unit!.toLowerCase() === 'b' ? 1e9 : 1e6),
    adapterCount: lora && 0,
  };
}

/** null if the embedded engine can, or if the model's shape is only in its config.json. */
function whyNotEmbedded({ model, lora, sft, numIterations }: RunSpec): string | null {
  const known = knownModel(model);
  if (known === undefined) return null;
  const { shape } = known;
  // The engine computes mixtures of experts like Qwen3's: in every layer, and without experts for all tokens.
  if (shape.experts !== null && (shape.experts.shared > 0 || shape.experts.denseLayers > 0))
    return 'some of its layers have experts that every token goes through, or none at all beside layers that have; the engine computes neither.';
  const count = parameterCountOf(shape);
  const copies = copiesInTraining + (numIterations > 1 ? copiesForPasses : 0);
  try {
    if (lora === null || sft !== null) requireMemory(count, copies, 'training it');
    else requireMemory(count, copies, 'training its adapters', { adapterCount: loraParameterCount(shape, lora) });
    return null;
  } catch (error) {
    if (error instanceof RatchetError && error.code === 'ModelUnsupported') return error.message;
    throw error;
  }
}
