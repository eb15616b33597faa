import assert from 'node:assert/strict';
import { packedParametersMin, packedWeightBytesMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import { parameterCount } from '../model/parameter-layout.ts';
import type { Parameters } from '../model/parameters.ts';
import type { Feeds, InferenceSession, Tensors } from '../onnx/runtime.ts';
import { openSession, type SessionOptions } from '../onnx/session.ts';
import type { DecodeSessions } from './decode-batch.ts';
import { buildDecodeGraph, type DecodePhase } from './decode-graph.ts';
import { rowsMin } from './sequence-request.ts';
import { type Quantization, Quantizer } from './quantized-weights.ts';

export interface ProgramOptions extends SessionOptions {
  /**
   * Every version gets a session of its own for its steps, with its weights packed for the matrix kernels. Steps are a
   * tenth faster and their bits others than without; opening a version takes a few milliseconds per million parameters, and
   * its weights lie in memory twice. Where it is left out the model's size decides, and nothing else, so that a version's
   * bits are the same everywhere.
   */
  readonly packWeights?: boolean;
  /**
   * Linear layers read weights of 8 bits: a version gets sessions of its own, whose quantized weights lie in memory beside the
   * version's.
   */
  readonly quantize?: Quantization | undefined;
}

/** Versions without rows whose sessions are kept. */
const idleVersionsMax = 1;

interface PackedVersion {
  readonly opened: Promise<OpenedVersion>;
  /** Lanes that decode rows of it. */
  users: number;
}

/** The sessions that decode, for any number of lanes at once: weights are fed, or packed into one for each version. */
export class DecodeProgram {
  readonly #config: ModelConfig;
  readonly #options: SessionOptions;
  /** Those that serve every version; null = each version has its own. */
  readonly #prefill: Opened | null;
  readonly #step: Opened | null;
  readonly #quantizer: Quantizer | null;
  /** The latest used last. */
  readonly #packed = new Map<number, PackedVersion>();

  private constructor(
    config: ModelConfig,
    options: SessionOptions,
    sessions: { prefill: Opened | null; step: Opened | null; quantizer: Quantizer | null },
  ) {
    this.#config = config;
    this.#options = options;
    this.#prefill = sessions.prefill;
    this.#step = sessions.step;
    this.#quantizer = sessions.quantizer;
  }

  static async open(
    config: ModelConfig,
    { packWeights, quantize, ...options }: ProgramOptions,
  ): Promise<DecodeProgram> {
    if (quantize !== undefined) {
      const quantizer = new Quantizer(config, options);
      return new DecodeProgram(config, options, { prefill: null, step: null, quantizer });
    }
    const count = parameterCount(config);
    const isPacked = (packWeights ?? count >= packedParametersMin) && 4 * count <= packedWeightBytesMax;
    const prefill = await openPhase(config, 'prefill', options);
    return new DecodeProgram(config, options, {
      prefill,
      step: isPacked ? null : await openPhase(config, 'step', options),
      quantizer: null,
    });
  }

  /** The sessions of a version, which are the lane's until `done`. */
  async use(version: number, parameters: Parameters): Promise<DecodeSessions> {
    if (this.#prefill && this.#step) return sessionsOf(parameters, { prefill: this.#prefill, step: this.#step });
    const packed = this.#packed.get(version) ?? { opened: this.#openVersion(parameters), users: 0 };
    this.#packed.delete(version);
    this.#packed.set(version, packed);
    packed.users++;
    try {
      await this.#releaseIdle(idleVersionsMax);
      return sessionsOf(parameters, await packed.opened);
    } catch (error) {
      if (this.#packed.get(version) === packed) this.#packed.delete(version); // the next one tries again
      throw error;
    }
  }

  /** None of the version's rows run in the lane that used it. */
  done(version: number): void {
    const packed = this.#packed.get(version);
    if (packed) packed.users--;
  }

  /** No rows of this version will come. */
  forget(version: number): void {
    const packed = this.#packed.get(version);
    if (packed?.users !== 0) return;
    this.#packed.delete(version);
    void packed.opened.then((opened) => this.#releaseVersion(opened));
  }

  async release(): Promise<void> {
    for (const packed of this.#packed.values()) packed.users = 0;
    await this.#releaseIdle(0);
    await this.#prefill?.session.release();
    await this.#step?.session.release();
    await this.#quantizer?.release();
  }

  async #openVersion(parameters: Parameters): Promise<OpenedVersion> {
    const [config, options, quantizer] = [this.#config, this.#options, this.#quantizer];
    if (!quantizer) {
      assert(this.#prefill, 'without quantized weights one session computes the prompts of every version');
      const step = await openPhase(config, 'step', options, { constants: parameters.tensors });
      return { prefill: this.#prefill, step };
    }
    const weights = { constants: await quantizer.quantize(parameters), isQuantized: true };
    const prefill = await openPhase(config, 'prefill', options, weights);
    return { prefill, step: await openPhase(config, 'step', options, weights) };
  }

  async #releaseVersion({ prefill, step }: OpenedVersion): Promise<void> {
    if (prefill !== this.#prefill) await prefill.session.release();
    await step.session.release();
  }

  async #releaseIdle(keep: number): Promise<void> {
    const idle = [...this.#packed].filter(([, { users }]) => users === 0);
    const oldest = idle.slice(0, Math.max(0, idle.length - keep));
    // All at once, before anything is waited for: a version that is wanted again meanwhile gets a session of its own.
    for (const [version] of oldest) this.#packed.delete(version);
    for (const [, { opened }] of oldest) await this.#releaseVersion(await opened);
  }
}

interface Opened {
  readonly session: InferenceSession;
  /** Name of the output that holds the logits. */
  readonly logits: string;
  readonly isQuantized: boolean;
}

interface OpenedVersion {
  readonly prefill: Opened;
  readonly step: Opened;
}

interface PhaseWeights {
  /** Packed by the session; without them weights are fed. */
  readonly constants?: Tensors;
  readonly isQuantized?: boolean;
}

async function openPhase(
  config: ModelConfig,
  phase: DecodePhase,
  options: SessionOptions,
  { constants, isQuantized = false }: PhaseWeights = {},
): Promise<Opened> {
  const { graph, logits } = buildDecodeGraph(config, phase, isQuantized);
  return { session: await openSession(graph, options, constants), logits, isQuantized };
}

function sessionsOf({ tensors, config }: Parameters, { prefill, step }: OpenedVersion): DecodeSessions {
  // A session that has weights of its own takes none.
  const weightsFor = ({ session }: Opened): Feeds => (session.hasConstants ? {} : tensors);
  return {
    weights: { prefill: weightsFor(prefill), step: weightsFor(step) },
    prefill: prefill.session,
    step: step.session,
    // A router of experts has sums of floats.
    rowsMin: step.isQuantized && config.experts === null ? 1 : rowsMin,
    logits: { prefill: prefill.logits, step: step.logits },
  };
}
