import { statfs } from 'node:fs/promises';
import path from 'node:path';
import { trainerTraits } from '../../core/kinds/trainers.ts';
import { RatchetError } from '../../core/errors.ts';
import { isHubId } from '../../core/names.ts';
import { gpuSettingsOf } from '../../config/gpu-settings.ts';
import { knownModel } from '../../config/models/known-models.ts';
import {
  keyValueBytes,
  loraParameterCount,
  type ModelShape,
  parameterCountOf,
  shapeOfConfig,
} from '../../core/model-shape.ts';
import { planRun, type RunPlan } from '../../config/run-plan.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { copiesForPasses, copiesInTraining } from '../../engine/model/memory.ts';
import { presetFiles } from '../../engine/model/preset-files.ts';
import { localRoot } from '../../store/index.ts';
import type { RunFileReport } from './examine-run-file.ts';
import { readRegularText, whyUnreadable } from '../../host/regular-file.ts';

/** Resources that a run would need, without starting or contacting anything. */
export interface DryRun {
  readonly plan: RunPlan;
  /** Free space on the store's disk; null when it is not a folder of this machine. */
  readonly freeBytes: number | null;
  /** null when the model's shape is unknown. */
  readonly memory: EmbeddedMemory | GpuMemory | null;
}

/** The embedded engine, on this machine's CPU and in float32; a batch's activations come on top. */
export interface EmbeddedMemory {
  readonly kind: 'embedded';
  readonly model: string;
  readonly parameterCount: number;
  /** Copies that the trainer holds of trained weights: the weights, gradients and moments. */
  readonly copies: number;
  readonly trainerBytes: number;
  /** Memory budget of the policy server, as in `check`; null if another server samples, or if the model's files are missing. */
  readonly serverBytes: number | null;
  readonly keyValueBytesPerToken: number;
}

/** Engines on GPUs: their memory besides the weights differs among them, and is not included. */
export interface GpuMemory {
  readonly kind: 'gpu';
  /** Model whose shape the figures assume. */
  readonly model: string;
  readonly parameterCount: number;
  readonly weightBytes: number;
}

/** `modelConfig` is a config.json, for a model that is neither here nor known. */
export async function planDryRun(report: RunFileReport, spec: RunSpec, modelConfig?: string): Promise<DryRun> {
  const known = await shapeOf(spec, modelConfig);
  const counts = known && {
    parameterCount: parameterCountOf(known.shape),
    adapterCount: spec.lora && loraParameterCount(known.shape, spec.lora),
  };
  const heldOut = (spec.eval?.environments ?? []).map(({ name }) => report.environments.get(name)?.evalDataset.length ?? null); // prettier-ignore
  return {
    plan: planRun(spec, { model: counts ?? report.model, heldOut }),
    freeBytes: spec.store.uri.startsWith('file:') ? await freeBytesAt(localRoot(spec.store.uri)) : null,
    memory: known && (isEmbedded(spec) ? embeddedMemory(spec, known, report.model) : gpuMemory(known)),
  };
}

interface KnownShape {
  readonly name: string;
  readonly shape: ModelShape;
}

/** From the config.json that is named, that of a preset or of the model's folder, or the table of known models. */
export async function shapeOf({ model }: Pick<RunSpec, 'model'>, modelConfig?: string): Promise<KnownShape | null> {
  if (modelConfig !== undefined) return { name: modelConfig, shape: await readShape(modelConfig) };
  if (model.startsWith('preset:')) {
    return { name: model, shape: shapeFrom(presetFiles(model)['config.json'] ?? '', model) };
  }
  if (isHubId(model)) return knownModel(model) ?? null;
  return { name: model, shape: await readShape(path.join(model, 'config.json')) };
}

async function readShape(file: string): Promise<ModelShape> {
  let text: string;
  try {
    text = await readRegularText(file);
  } catch (cause) {
    throw new RatchetError('ConfigInvalid', `Expected a model's config.json, got ${file}: ${whyUnreadable(cause)}.`, {
      cause,
    });
  }
  return shapeFrom(text, file);
}

function shapeFrom(text: string, where: string): ModelShape {
  let raw: unknown;
  try {
    raw = JSON.parse(text);
  } catch (cause) {
    throw new RatchetError('ConfigInvalid', `${where}: expected a model's config.json, got no JSON.`, { cause });
  }
  const shape = shapeOfConfig(raw);
  if (typeof shape !== 'string') return shape;
  throw new RatchetError('ConfigInvalid', `${where}: expected the config.json of a decoder; ${shape}.`);
}

/** The embedded engine trains by default, unless the file has GPU settings. */
function isEmbedded(spec: RunSpec): boolean {
  const { trainerGpus, inferenceGpus } = gpuSettingsOf(spec);
  return (
    trainerTraits(spec.trainer).engine === 'embedded' &&
    !isHubId(spec.model) &&
    trainerGpus === null &&
    inferenceGpus === null
  );
}

function embeddedMemory(spec: RunSpec, { name, shape }: KnownShape, model: RunFileReport['model']): EmbeddedMemory {
  const all = parameterCountOf(shape);
  const trained = spec.lora && !spec.sft ? loraParameterCount(shape, spec.lora) : all;
  const copies = copiesInTraining + (spec.numIterations > 1 ? copiesForPasses : 0);
  return {
    kind: 'embedded',
    model: name,
    parameterCount: all,
    copies,
    trainerBytes: 4 * (trained * copies + (trained === all ? 0 : all)),
    serverBytes: model?.sampling?.budgetBytes ?? null,
    keyValueBytesPerToken: keyValueBytes(shape, 4),
  };
}

function gpuMemory({ name, shape }: KnownShape): GpuMemory {
  const parameterCount = parameterCountOf(shape);
  return { kind: 'gpu', model: name, parameterCount, weightBytes: 2 * parameterCount };
}

/** Looks at the nearest existing folder. */
async function freeBytesAt(folder: string): Promise<number> {
  try {
    const { bavail, bsize } = await statfs(folder);
    return bavail * bsize;
  } catch (error) {
    const parent = path.dirname(folder);
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT' || parent === folder) throw error;
    return freeBytesAt(parent);
  }
}
