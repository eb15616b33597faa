import { isHubId } from '../../core/names.ts';
import { RatchetError } from '../../core/errors.ts';
import { knownModel } from '../../config/known-models.ts';
import { loraParameterCount, parameterCountOf } from '../../config/model-shape.ts';
import type { ModelCounts } from '../../config/run-plan.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { copiesForPasses, copiesInTraining, requireMemory } from '../../engine/model/memory.ts';
import { findCached } from '../hub/hub-cache.ts';
import { hubSettings } from '../hub/hub-settings.ts';
import { aboutPackaged, isPackagedHere, packagedFolder } from '../hub/packaged-models.ts';
import type { ModelParts } from '../hub/model-files.ts';
import { requireModelPlace } from '../../engine/trusted-files.ts';
import { type Folders, isThere, resolvePath } from './paths.ts';

/** A model that a run file names by its id on the Hugging Face Hub, or by the name of one that comes as a package. */

type Named = Pick<RunSpec, 'model' | 'trainer'>;

/** A Tinker server has the weights; prompts are made here. */
export function partsFor({ kind }: Pick<RunSpec['trainer'], 'kind'>): ModelParts {
  return kind === 'tinker' ? 'texts' : 'weights';
}

/**
 * `preset:NAME` stays; a path becomes absolute, from the config's folder if it begins with a dot. A name on the Hub that is no folder here
 * becomes its folder in the Hugging Face cache; where it is not there it stays, so that whoever refuses it can say what it is.
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
  const named = trainer.kind === 'tinker' && trainer.baseModel === null ? { ...trainer, baseModel: model } : trainer;
  return { model: isWhole ? found.folder : model, trainer: named };
}

/** Why a model is not here, and what to do, in the order in which it is done. `key`: where the file names it. */
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
  const module = 'an engine of yours trains it: [trainer] kind = "module" (docs/guide/adapters.md)';
  if (trainer.kind === 'tinker')
    return { says, remedies: [`fetch its tokenizer: npx ratchet-rl model get ${model} --texts`] };
  const why = whyNotEmbedded(spec);
  if (why !== null && trainer.kind === 'onnx') {
    const smaller = `or name a smaller model: ${key} = "Qwen/Qwen3-0.6B", or "preset:reverse-text-0.2m", which comes with Ratchet`;
    return { says: `${says} The embedded engine cannot train it here: ${why}`, remedies: [tinker, module, smaller] };
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

/** How large a model is that is not here: by what is known of it, or by the size in its name; null where neither says it. */
export function countsOfMissing({ model, lora }: Pick<RunSpec, 'model' | 'lora'>): ModelCounts | null {
  const known = knownModel(model);
  if (known !== undefined) {
    const adapterCount = lora && loraParameterCount(known.shape, lora);
    return { parameterCount: parameterCountOf(known.shape), adapterCount };
  }
  const sizes = [...model.matchAll(sizeInName)];
  const [, number, unit] = sizes.at(-1) ?? [];
  if (number === undefined) return null;
  // That there are adapters counts, and not how large they are.
  return {
    parameterCount: Number(number) * (unit!.toLowerCase() === 'b' ? 1e9 : 1e6),
    adapterCount: lora && 0,
  };
}

/** null where the embedded engine can, or where the model's shape is known only from its config.json. */
function whyNotEmbedded({ model, lora, sft, numIterations }: RunSpec): string | null {
  const known = knownModel(model);
  if (known === undefined) return null;
  const { shape } = known;
  // The engine computes mixtures as Qwen3 has them: in every layer, and none of their experts for all tokens.
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
