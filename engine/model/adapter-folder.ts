import { isAbsolute, join } from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { problemsIn } from '../../core/problems-in.ts';
import type { ModelConfig } from './config.ts';
import { adaptedLayers, type LoraConfig } from './adapter-layout.ts';
import { AdapterParameters } from './lora.ts';
import { parseJson, readText, type TextFiles, writeTextFiles } from './text-files.ts';
import { fillFrom, writeWeights } from './weights.ts';
import { SafetensorsReader } from './safetensors-file.ts';

/** A LoRA adapter as PEFT lays it out in a folder: adapter_config.json and adapter_model.safetensors. */
const configFile = 'adapter_config.json';
const weightsFile = 'adapter_model.safetensors';
/** In the metadata of the weights: which base they were trained on. */
const baseDigestKey = 'base_digest';

interface AdapterDescription {
  readonly lora: LoraConfig;
  /** base_model_name_or_path as a path; a relative one counts from the adapter's folder. */
  readonly baseFolder: string;
}

interface SaveAdapter {
  readonly adapter: AdapterParameters;
  /** The folder of the base model, or a name that the loader can resolve. */
  readonly base: string;
  /** Written down and compared when the adapter is loaded. */
  readonly baseDigest: string;
  /** Files to write beside the adapter, such as the tokenizer's. */
  readonly files?: TextFiles;
}

/** The weights come last and appear at once, so a folder that has them is complete. */
export async function saveAdapterFolder(save: SaveAdapter, folder: string): Promise<void> {
  const { adapter, base, baseDigest, files = {} } = save;
  const config = `${JSON.stringify(peftConfig(adapter, base), null, 2)}\n`;
  await writeTextFiles(folder, { ...files, [configFile]: config });
  await writeWeights(adapter, join(folder, weightsFile), { metadata: { [baseDigestKey]: baseDigest } });
}

/** null for a folder that holds no adapter. */
export async function describeAdapter(folder: string): Promise<AdapterDescription | null> {
  const text = await readText(folder, configFile);
  if (text === null) return null;
  const where = join(folder, configFile);
  const { lora, base } = parsePeftConfig(text, where);
  return { lora, baseFolder: isAbsolute(base) ? base : join(folder, base) };
}

/** The digest of an adapter's base weights; null if its file has none. */
export async function readBaseDigest(folder: string): Promise<string | null> {
  const reader = await SafetensorsReader.open(join(folder, weightsFile));
  const digest = reader.header.metadata[baseDigestKey];
  await reader.close();
  return digest ?? null;
}

/** Throws if the adapter names other base weights than `baseDigest`. */
export async function readAdapter(
  folder: string,
  lora: LoraConfig,
  base: { config: ModelConfig; digest: string },
): Promise<AdapterParameters> {
  const path = join(folder, weightsFile);
  await requireBase(path, base.digest);
  const adapter = new AdapterParameters(base.config, lora);
  await fillFrom(adapter, folder, [weightsFile]);
  return adapter;
}

async function requireBase(path: string, digest: string): Promise<void> {
  const reader = await SafetensorsReader.open(path).catch((cause: unknown) => {
    const message = `${path} cannot be read. Expected an adapter's weights as safetensors.`;
    throw cause instanceof RatchetError ? cause : new RatchetError('ModelUnsupported', message, { cause });
  });
  const expected = reader.header.metadata[baseDigestKey];
  await reader.close();
  if (expected === undefined || expected === digest) return;
  throw new RatchetError(
    'CheckpointDamaged',
    `${path} was trained on a base with digest ${expected}; the base that was found has ${digest}. Restore the base.`,
  );
}

/** Every field that PEFT reads for a LoRA adapter; `target_modules` are the last parts of the layers' names. */
function peftConfig({ config, lora }: AdapterParameters, base: string): Record<string, unknown> {
  const modules = adaptedLayers(config, lora).map(({ weight }) => weight.replace(/\.weight$/, ''));
  const targets =
    lora.targetModules === 'all-linear' ? modules.map((name) => name.split('.').at(-1)!) : lora.targetModules;
  return {
    peft_type: 'LORA',
    task_type: 'CAUSAL_LM',
    base_model_name_or_path: base,
    r: lora.r,
    lora_alpha: lora.alpha,
    lora_dropout: lora.dropout,
    use_rslora: lora.rankStabilized ?? false,
    target_modules: [...new Set(targets)].toSorted(),
    bias: 'none',
    fan_in_fan_out: false,
    inference_mode: true,
    init_lora_weights: true,
    modules_to_save: null,
    use_dora: false,
    rank_pattern: {},
    alpha_pattern: {},
    layers_to_transform: null,
    layers_pattern: null,
    exclude_modules: null,
    revision: null,
  };
}

const PeftConfig = z.looseObject({
  peft_type: z.literal('LORA'),
  base_model_name_or_path: z.string().min(1),
  r: z.int().positive(),
  lora_alpha: z.number(),
  lora_dropout: z.number().min(0).max(1).default(0),
  use_rslora: z.boolean().default(false),
  target_modules: z.union([z.array(z.string()), z.literal('all-linear')]),
  task_type: z.literal('CAUSAL_LM').nullish(),
  bias: z.literal('none').default('none'),
});

/** Fields that do not affect the computation, whatever their value. */
const silentFields = new Set([
  ...Object.keys(PeftConfig.shape),
  'auto_mapping',
  'inference_mode',
  'megatron_core',
  'peft_version',
  'qalora_group_size',
  'revision',
  'runtime_config',
]);
/** Initializations after which the base is as it was; others (PiSSA, OLoRA, …) move weight from the base. */
const plainInitializations: readonly unknown[] = [true, false, 'gaussian', 'orthogonal', 'eva', null, undefined];

function parsePeftConfig(text: string, where: string): { lora: LoraConfig; base: string } {
  const raw = parseJson(text, where, "PEFT's adapter_config.json");
  const parsed = PeftConfig.safeParse(raw);
  if (!parsed.success) {
    const message = `${where}: expected a LoRA adapter for causal language models. ${problemsIn(parsed.error)}`;
    throw new RatchetError('ModelUnsupported', message);
  }
  const { init_lora_weights: initialization, ...fields } = parsed.data;
  if (!plainInitializations.includes(initialization)) throw notComputed(where, 'init_lora_weights', initialization);
  for (const [name, value] of Object.entries(fields)) {
    if (!silentFields.has(name) && !isOff(value)) throw notComputed(where, name, value);
  }
  const { r, lora_alpha: alpha, lora_dropout: dropout, use_rslora: rankStabilized } = parsed.data;
  const lora = { r, alpha, dropout, targetModules: parsed.data.target_modules, rankStabilized };
  return { lora, base: parsed.data.base_model_name_or_path };
}

function isOff(value: unknown): boolean {
  if (value === null || value === false) return true;
  return typeof value === 'object' && Object.keys(value).length === 0;
}

function notComputed(where: string, name: string, value: unknown): RatchetError {
  return new RatchetError(
    'ModelUnsupported',
    `${where}: "${name}" is ${JSON.stringify(value)}, which the embedded engine does not compute. It reads plain LoRA ` +
      `adapters; merge this one into its base with PEFT (merge_and_unload) and load the result.`,
  );
}
