import { isDeepStrictEqual } from 'node:util';
import { RatchetError } from '../../core/errors.ts';
import { describeAdapter, readAdapter, saveAdapterFolder } from '../model/adapter-folder.ts';
import { adapterParameterCount, type LoraConfig } from '../model/adapter-layout.ts';
import { AdapterParameters, createAdapter, loraScale, policyDigest } from '../model/lora.ts';
import { requireMemory } from '../model/memory.ts';
import { loadModelFolder, loadParameters, type ModelFolder, saveModelFolder } from '../model/model-folder.ts';
import { type FlatTensors, Parameters } from '../model/parameters.ts';
import { openModel } from '../model/presets.ts';

/** Weights to compute with: a model's, with an adapter beside them or without. */
export interface PolicyWeights {
  readonly parameters: Parameters;
  readonly adapter: AdapterParameters | null;
}

interface OpenOptions {
  /** Seed of a preset's weights and of new adapters. */
  readonly seed: number;
  /** Adapters are trained, the weights stay; by default an adapter's folder decides for itself. */
  readonly lora?: LoraConfig | null;
}

/**
 * The weights in training, in one of two forms: all of them, or an adapter on a fixed base. A new adapter changes
 * nothing: until it is trained or loaded, the policy is its base.
 */
export class TrainedPolicy implements PolicyWeights {
  /** The model, which is the base if there is an adapter. */
  readonly model: ModelFolder;
  readonly adapter: AdapterParameters | null;
  readonly #seed: number;
  /** The base's folder; null for a preset. */
  #baseFolder: string | null;
  #baseDigest: string;
  /** Whether the adapter is untrained. Code that changes the adapter must clear it. */
  isAdapterNew: boolean;
  #reference: { readonly folder: string; readonly weights: PolicyWeights } | null = null;

  private constructor(opened: {
    readonly model: ModelFolder;
    readonly adapter: AdapterParameters | null;
    readonly seed: number;
    readonly baseFolder: string | null;
    readonly baseDigest: string;
    readonly isAdapterNew: boolean;
  }) {
    this.model = opened.model;
    this.adapter = opened.adapter;
    this.#seed = opened.seed;
    this.#baseFolder = opened.baseFolder;
    this.#baseDigest = opened.baseDigest;
    this.isAdapterNew = opened.isAdapterNew;
  }

  /** `folder` is a folder of Hugging Face files, of PEFT's, or a preset's name. */
  static async open(folder: string, { seed, lora }: OpenOptions): Promise<TrainedPolicy> {
    const isPreset = folder.startsWith('preset:');
    const described = isPreset ? null : await describeAdapter(folder);
    const baseFolder = described?.baseFolder ?? (isPreset ? null : folder);
    const model = described ? await loadModelFolder(described.baseFolder) : await openModel(folder, { seed });
    const adapted = lora === undefined ? (described?.lora ?? null) : lora;
    if (!adapted) {
      if (described) throw otherKind(folder, 'an adapter, and no LoRA was asked for');
      return new TrainedPolicy({ model, adapter: null, seed, baseFolder, baseDigest: '', isAdapterNew: false });
    }
    const adapterCount = adapterParameterCount(model.config, adapted);
    requireMemory(model.parameters.flat.length, 1, 'adapting it', { adapterCount, copiesHeld: 1 });
    const baseDigest = model.parameters.digest();
    const adapter = described
      ? await readAdapterLike(folder, described.lora, { lora: adapted, base: model.parameters, digest: baseDigest })
      : createAdapter(model.config, adapted, seed);
    return new TrainedPolicy({ model, adapter, seed, baseFolder, baseDigest, isAdapterNew: !described });
  }

  get parameters(): Parameters {
    return this.model.parameters;
  }

  /** The tensors that the optimizer changes. */
  get trained(): FlatTensors {
    return this.adapter ?? this.parameters;
  }

  gradientLike(): FlatTensors {
    const { adapter, parameters } = this;
    return adapter ? new AdapterParameters(adapter.config, adapter.lora) : new Parameters(parameters.config);
  }

  /** Identity of the policy; a server that loads the saved folder computes the same digest. */
  digest(): string {
    if (!this.adapter) return this.parameters.digest();
    return this.isAdapterNew ? this.#baseDigest : policyDigest(this.#baseDigest, this.adapter);
  }

  /**
   * Writes all weights as Hugging Face files, or the adapter as PEFT files with the tokenizer. `base` is the base's
   * path in the adapter's config, absolute or relative to `folder`; by default the folder from which the base was read.
   */
  async save(folder: string, base?: string): Promise<string> {
    if (!this.adapter) await saveModelFolder(this.model, folder);
    else await saveAdapterFolder({ ...this.#adapterFiles(base), adapter: this.adapter }, folder);
    // A folder with an adapter in it is that adapter's policy, also when it changes nothing yet.
    return this.adapter ? policyDigest(this.#baseDigest, this.adapter) : this.parameters.digest();
  }

  /** Loads the weights of another folder of the same architecture. */
  async load(folder: string): Promise<void> {
    this.#reference = null;
    const described = await describeAdapter(folder);
    if (described && !this.adapter) throw otherKind(folder, 'an adapter, while all weights are in training');
    const baseFolder = described?.baseFolder ?? folder;
    const base = await this.#loadParameters(baseFolder);
    if (!this.adapter) {
      this.parameters.flat.set(base.flat);
      this.parameters.changed();
      return;
    }
    const { config, lora } = this.adapter;
    const digest = base.digest();
    const adapter = described
      ? await readAdapterLike(folder, described.lora, { lora, base, digest })
      : createAdapter(config, lora, this.#seed);
    this.parameters.flat.set(base.flat);
    this.adapter.flat.set(adapter.flat);
    this.parameters.changed();
    this.adapter.changed();
    this.#baseFolder = baseFolder;
    this.#baseDigest = digest;
    this.isAdapterNew = !described;
  }

  /** Weights of another version, kept until another folder is requested. The base itself costs no copy. */
  async reference(folder: string): Promise<PolicyWeights> {
    if (this.#reference?.folder === folder) return this.#reference.weights;
    const loaded = await this.#loadParameters(folder);
    const isBase = this.adapter !== null && loaded.digest() === this.#baseDigest;
    const weights = { parameters: isBase ? this.parameters : loaded, adapter: null };
    this.#reference = { folder, weights };
    return weights;
  }

  async #loadParameters(folder: string): Promise<Parameters> {
    const loaded = await loadParameters(folder);
    // Equal shapes are not enough: the graphs contain constants of the model, such as rope_theta and rms_norm_eps.
    if (isDeepStrictEqual(loaded.config, this.parameters.config)) return loaded;
    throw new RatchetError('ModelUnsupported', `${folder} holds another architecture than the model in training.`);
  }

  #adapterFiles(base: string | undefined): {
    base: string;
    baseDigest: string;
    files: Readonly<Record<string, string>>;
  } {
    const name = base ?? this.#baseFolder;
    if (name === null) {
      throw new RatchetError(
        'Unsupported',
        'An adapter names its base by a folder; the base of this one is a preset. Save the preset to a folder, and open that.',
      );
    }
    // The base has its own config.json; beside the adapter it would promise weights that are not there.
    const { 'config.json': _, ...files } = this.model.files;
    return { base: name, baseDigest: this.#baseDigest, files };
  }
}

/** An adapter of a folder, if it is of the kind that is in training. */
async function readAdapterLike(
  folder: string,
  found: LoraConfig,
  wanted: { readonly lora: LoraConfig; readonly base: Parameters; readonly digest: string },
): Promise<AdapterParameters> {
  const { lora, base, digest } = wanted;
  const adapter = await readAdapter(folder, found, { config: base.config, digest });
  const expected = new AdapterParameters(base.config, lora);
  const isLike =
    JSON.stringify(adapter.layout) === JSON.stringify(expected.layout) && loraScale(found) === loraScale(lora);
  if (!isLike) throw otherKind(folder, 'an adapter with another r, alpha or other target modules');
  return new AdapterParameters(base.config, lora, adapter.flat);
}

function otherKind(folder: string, found: string): RatchetError {
  return new RatchetError(
    'ModelUnsupported',
    `${folder} holds ${found}. Train it with the settings in its adapter_config.json, or from the base model.`,
  );
}
