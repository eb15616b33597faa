import assert from 'node:assert/strict';
import { packedParametersMin, packedWeightBytesMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import type { LoraConfig } from '../model/adapter-layout.ts';
import { MergedParameters } from '../model/lora.ts';
import { embeddingsName, parameterCount } from '../model/parameter-layout.ts';
import type { Parameters } from '../model/parameters.ts';
import type { Feeds, InferenceSession, Tensors } from '../onnx/runtime.ts';
import { type Constants, openSession, type SessionOptions } from '../onnx/session.ts';
import type { DecodeSessions } from './decode-batch.ts';
import { buildDecodeGraph, type DecodePhase, type KeptWeights, tiedOutputName } from './decode-graph.ts';
import { rowsMin } from './sequence-request.ts';
import type { Quantization } from '../model/quantizations.ts';
import { Quantizer, quantizedRows } from './quantized-weights.ts';

export interface ProgramOptions extends SessionOptions {
  /**
   * Every version gets a session of its own for its steps, with its weights packed for the matrix kernels. Steps become
   * a tenth faster, with other bits; opening a version takes a few milliseconds per million parameters, and its weights
   * are in memory twice. The default depends on the model's size alone, so that a version's bits are the same everywhere.
   */
  readonly packWeights?: boolean;
  /**
   * Linear layers read weights of so many bits. A version that is a base and an adapter shares the base's sessions, and
   * its adapter stays in 32-bit floats. Any other version gets sessions of its own, whose quantized weights are in
   * memory beside the version's.
   */
  readonly quantize?: Quantization | undefined;
}

/** Idle versions whose sessions are kept. */
const idleVersionsMax = 1;

interface PackedVersion {
  readonly opened: Promise<OpenedVersion>;
  /** Lanes that decode its rows. */
  users: number;
  /** Callbacks of callers that wait for the sessions to close; null = the version is in use. */
  forgotten: (() => void)[] | null;
}

/** The sessions that decode, for any number of lanes at once: weights are fed, or packed into one for each version. */
export class DecodeProgram {
  readonly #config: ModelConfig;
  readonly #options: SessionOptions;
  /** Those that serve every version; null = each version has its own. */
  readonly #prefill: Opened | null;
  readonly #step: Opened | null;
  readonly #quantized: Quantized | null;
  /** Most recently used last. */
  readonly #packed = new Map<number, PackedVersion>();
  /** The latest one that versions with an adapter share. */
  #base: QuantizedBase | null = null;

  private constructor(
    config: ModelConfig,
    options: SessionOptions,
    sessions: { prefill: Opened | null; step: Opened | null; quantized: Quantized | null },
  ) {
    this.#config = config;
    this.#options = options;
    this.#prefill = sessions.prefill;
    this.#step = sessions.step;
    this.#quantized = sessions.quantized;
  }

  static async open(
    config: ModelConfig,
    { packWeights, quantize, ...options }: ProgramOptions,
  ): Promise<DecodeProgram> {
    if (quantize !== undefined) {
      const quantized = { quantization: quantize, quantizer: new Quantizer(config, quantize, options) };
      return new DecodeProgram(config, options, { prefill: null, step: null, quantized });
    }
    const count = parameterCount(config);
    const isPacked = (packWeights ?? count >= packedParametersMin) && 4 * count <= packedWeightBytesMax;
    const prefill = await openPhase(config, 'prefill', options);
    return new DecodeProgram(config, options, {
      prefill,
      step: isPacked ? null : await openPhase(config, 'step', options),
      quantized: null,
    });
  }

  /** The sessions of a version, which are the lane's until `done`. */
  async use(version: number, parameters: Parameters): Promise<DecodeSessions> {
    if (this.#prefill && this.#step) return sessionsOf(parameters, { prefill: this.#prefill, step: this.#step });
    const known = this.#packed.get(version);
    const packed = known ?? { opened: this.#openVersion(parameters), users: 0, forgotten: null };
    this.#packed.delete(version);
    this.#packed.set(version, packed);
    packed.users++;
    try {
      await this.#releaseIdle(idleVersionsMax);
      return sessionsOf(parameters, await packed.opened);
    } catch (error) {
      if (this.#packed.get(version) === packed) this.#packed.delete(version); // the next request tries again
      throw error;
    }
  }

  /** None of the version's rows run in the lane that used it. */
  done(version: number): void {
    const packed = this.#packed.get(version);
    if (!packed) return;
    packed.users--;
    if (packed.users === 0 && packed.forgotten) void this.#close(version, packed);
  }

  /** Marks that no more rows of this version will come. Resolves when its sessions are closed, once no lane uses them. */
  forget(version: number): Promise<void> {
    const packed = this.#packed.get(version);
    if (!packed) return Promise.resolve();
    return new Promise((resolve) => {
      packed.forgotten = [...(packed.forgotten ?? []), resolve];
      if (packed.users === 0) void this.#close(version, packed);
    });
  }

  async #close(version: number, packed: PackedVersion): Promise<void> {
    if (this.#packed.get(version) === packed) this.#packed.delete(version);
    const opened = await packed.opened.catch(() => null); // the caller that opened it got the error
    if (opened) await this.#releaseVersion(opened);
    for (const done of packed.forgotten ?? []) done();
  }

  /** Promises that nothing more will be sampled from this base. */
  async forgetBase(parameters: Parameters): Promise<void> {
    const base = this.#base;
    if (base?.parameters !== parameters) return;
    this.#base = null;
    if (base.versions === 0) await this.#releaseBase(base);
  }

  async release(): Promise<void> {
    for (const packed of this.#packed.values()) packed.users = 0;
    await this.#releaseIdle(0);
    const base = this.#base;
    this.#base = null;
    if (base) await this.#releaseBase(base);
    await this.#prefill?.session.release();
    await this.#step?.session.release();
    await this.#quantized?.quantizer.release();
  }

  async #openVersion(parameters: Parameters): Promise<OpenedVersion> {
    if (this.#quantized) {
      if (!(parameters instanceof MergedParameters) || !parameters.base)
        return this.#openQuantized(this.#quantized, parameters);
      const { adapter } = parameters;
      const base = this.#useBase(this.#quantized, parameters.base, adapter.lora);
      try {
        const opened = await base.opened;
        return { ...opened, base, own: { ...opened.own, ...adapter.tensors } };
      } catch (error) {
        base.versions--;
        if (this.#base === base) this.#base = null; // the next request tries again
        throw error;
      }
    }
    assert(this.#prefill, 'without quantized weights one session computes the prompts of every version');
    const [config, options] = [this.#config, this.#options];
    const { constants, own, hasTiedOutput } = this.#placed(parameters.tensors);
    const weights = { constants: { tensors: constants, stay: true }, kept: { hasTiedOutput } };
    const step = await openPhase(config, 'step', options, weights);
    return { prefill: this.#prefill, step, own };
  }

  async #openQuantized(
    { quantization, quantizer }: Quantized,
    parameters: Parameters,
    lora?: LoraConfig,
  ): Promise<OpenedVersion> {
    const [config, options] = [this.#config, this.#options];
    const { constants, own } = this.#placed(await quantizer.quantize(parameters));
    const weights = { constants: { tensors: constants }, kept: { quantization, lora } };
    const prefill = await openPhase(config, 'prefill', options, weights);
    return { prefill, step: await openPhase(config, 'step', options, weights), own };
  }

  /**
   * Splits a version's weights into those the session keeps and those it is fed. On a CPU the embedding table is fed, because the session
   * would copy it. On a GPU the session keeps it, since feeding would transfer it at every step.
   */
  #placed(tensors: Tensors): { constants: Tensors; own: Feeds; hasTiedOutput: boolean } {
    if (this.#options.provider === 'cuda') return { constants: tensors, own: {}, hasTiedOutput: false };
    const { [embeddingsName]: table, ...constants } = tensors;
    assert(table, 'a model has a table of embeddings');
    const hasTiedOutput = this.#quantized === null && this.#config.tiedEmbeddings;
    return {
      constants: hasTiedOutput ? { ...constants, [tiedOutputName]: table } : constants,
      own: { [embeddingsName]: table },
      hasTiedOutput,
    };
  }

  #useBase(quantized: Quantized, parameters: Parameters, lora: LoraConfig): QuantizedBase {
    const { revision } = parameters;
    const shape = JSON.stringify({ ...lora, dropout: 0 }); // sampling has no dropout
    const known = this.#base;
    if (known?.parameters === parameters && known.revision === revision && known.shape === shape) {
      known.versions++;
      return known;
    }
    const opened = this.#openQuantized(quantized, parameters, lora);
    this.#base = { parameters, revision, shape, opened, versions: 1 };
    if (known?.versions === 0) void this.#releaseBase(known);
    return this.#base;
  }

  async #releaseVersion({ prefill, step, base }: OpenedVersion): Promise<void> {
    if (base) {
      base.versions--;
      if (base.versions === 0 && base !== this.#base) await this.#releaseBase(base);
      return;
    }
    if (prefill !== this.#prefill) await prefill.session.release();
    await step.session.release();
  }

  async #releaseBase({ opened }: QuantizedBase): Promise<void> {
    const sessions = await opened.catch(() => null); // the request got the error
    await sessions?.prefill.session.release();
    await sessions?.step.session.release();
  }

  async #releaseIdle(keep: number): Promise<void> {
    const idle = [...this.#packed].filter(([, { users }]) => users === 0);
    const oldest = idle.slice(0, Math.max(0, idle.length - keep));
    // All at once, before anything is waited for: a version that is wanted again meanwhile gets a session of its own.
    for (const [version] of oldest) this.#packed.delete(version);
    for (const [version, packed] of oldest) await this.#close(version, packed);
  }
}

interface Quantized {
  readonly quantization: Quantization;
  readonly quantizer: Quantizer;
}

/** Sessions over quantized weights that take an adapter for every run. */
interface QuantizedBase {
  readonly parameters: Parameters;
  /** Revision of the weights when they were quantized. */
  readonly revision: number;
  /** Shape of the adapters. */
  readonly shape: string;
  readonly opened: Promise<OpenedVersion>;
  /** Versions that share it. */
  versions: number;
}

interface Opened {
  readonly session: InferenceSession;
  /** Name of the output that holds the logits. */
  readonly logits: string;
  readonly kept: KeptWeights;
}

interface OpenedVersion {
  readonly prefill: Opened;
  readonly step: Opened;
  /** The shared base that the sessions belong to, if any. */
  readonly base?: QuantizedBase;
  /** Feeds of every run: the weights that the sessions do not keep. */
  readonly own?: Feeds;
}

interface PhaseWeights {
  /** Packed by the session; without them weights are fed. */
  readonly constants?: Constants;
  readonly kept?: KeptWeights;
}

async function openPhase(
  config: ModelConfig,
  phase: DecodePhase,
  options: SessionOptions,
  { constants, kept = {} }: PhaseWeights = {},
): Promise<Opened> {
  const { graph, logits } = buildDecodeGraph(config, phase, kept);
  return { session: await openSession(graph, options, constants), logits, kept };
}

function sessionsOf(parameters: Parameters, { prefill, step, own = {} }: OpenedVersion): DecodeSessions {
  // A session that has weights of its own takes no others. Nor is an adapter merged for it.
  const weightsFor = ({ session }: Opened): Feeds => (session.hasConstants ? own : parameters.tensors);
  return {
    weights: { prefill: weightsFor(prefill), step: weightsFor(step) },
    prefill: prefill.session,
    step: step.session,
    rows: rowsFor(parameters.config, step.kept),
    logits: { prefill: prefill.logits, step: step.logits },
  };
}

function rowsFor(config: ModelConfig, { quantization, lora }: KeptWeights): DecodeSessions['rows'] {
  const multiple = quantization === undefined ? 1 : quantizedRows(config, quantization);
  // A router of experts and an adapter have sums of floats.
  const hasFloats = quantization === undefined || config.experts !== null || lora !== undefined;
  return { min: hasFloats ? rowsMin : multiple, multiple };
}
