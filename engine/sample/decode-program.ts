import { packedParametersMin, packedWeightBytesMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import { parameterCount } from '../model/parameter-layout.ts';
import type { Parameters } from '../model/parameters.ts';
import type { InferenceSession } from '../onnx/runtime.ts';
import { openSession, type SessionOptions } from '../onnx/session.ts';
import type { DecodeSessions } from './decode-batch.ts';
import { buildDecodeGraph, type DecodePhase } from './decode-graph.ts';

export interface ProgramOptions extends SessionOptions {
  /**
   * Every version gets a session of its own for its steps, with its weights packed for the matrix kernels. Steps are a
   * tenth faster and their bits others than without; opening a version takes a few milliseconds per million parameters, and
   * its weights lie in memory twice. Where it is left out the model's size decides, and nothing else, so that a version's
   * bits are the same everywhere.
   */
  readonly packWeights?: boolean;
}

/** Versions without rows whose sessions are kept. */
const idleVersionsMax = 1;

interface PackedVersion {
  readonly step: Promise<Opened>;
  /** Lanes that decode rows of it. */
  users: number;
}

/** The sessions that decode, for any number of lanes at once: weights are fed, or packed into one for each version. */
export class DecodeProgram {
  readonly #config: ModelConfig;
  readonly #options: SessionOptions;
  readonly #prefill: Opened;
  /** null = each version has its own. */
  readonly #step: Opened | null;
  /** The latest used last. */
  readonly #packed = new Map<number, PackedVersion>();

  private constructor(
    config: ModelConfig,
    options: SessionOptions,
    sessions: { prefill: Opened; step: Opened | null },
  ) {
    this.#config = config;
    this.#options = options;
    this.#prefill = sessions.prefill;
    this.#step = sessions.step;
  }

  static async open(config: ModelConfig, { packWeights, ...options }: ProgramOptions): Promise<DecodeProgram> {
    const count = parameterCount(config);
    const isPacked = (packWeights ?? count >= packedParametersMin) && 4 * count <= packedWeightBytesMax;
    const prefill = await openPhase(config, 'prefill', options);
    return new DecodeProgram(config, options, {
      prefill,
      step: isPacked ? null : await openPhase(config, 'step', options),
    });
  }

  /** The sessions of a version, which are the lane's until `done`. */
  async use(version: number, parameters: Parameters): Promise<DecodeSessions> {
    if (this.#step) return sessionsOf(parameters, this.#prefill, this.#step);
    const packed = this.#packed.get(version) ?? {
      step: openPhase(this.#config, 'step', this.#options, parameters),
      users: 0,
    };
    this.#packed.delete(version);
    this.#packed.set(version, packed);
    packed.users++;
    try {
      await this.#releaseIdle(idleVersionsMax);
      return sessionsOf(parameters, this.#prefill, await packed.step);
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
    void packed.step.then(({ session }) => session.release());
  }

  async release(): Promise<void> {
    for (const packed of this.#packed.values()) packed.users = 0;
    await this.#releaseIdle(0);
    await this.#prefill.session.release();
    await this.#step?.session.release();
  }

  async #releaseIdle(keep: number): Promise<void> {
    const idle = [...this.#packed].filter(([, { users }]) => users === 0);
    const oldest = idle.slice(0, Math.max(0, idle.length - keep));
    // All at once, before anything is waited for: a version that is wanted again meanwhile gets a session of its own.
    for (const [version] of oldest) this.#packed.delete(version);
    for (const [, { step }] of oldest) await (await step).session.release();
  }
}

interface Opened {
  readonly session: InferenceSession;
  /** Name of the output that holds the logits. */
  readonly logits: string;
}

/** With the weights packed when they are given. */
async function openPhase(
  config: ModelConfig,
  phase: DecodePhase,
  options: SessionOptions,
  parameters?: Parameters,
): Promise<Opened> {
  const { graph, logits } = buildDecodeGraph(config, phase);
  return { session: await openSession(graph, options, parameters?.tensors), logits };
}

function sessionsOf({ tensors }: Parameters, prefill: Opened, step: Opened): DecodeSessions {
  return {
    weights: tensors,
    prefill: prefill.session,
    step: step.session,
    logits: { prefill: prefill.logits, step: step.logits },
  };
}
