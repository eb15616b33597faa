import { packedWeightBytesMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import { parameterCount, type Parameters } from '../model/parameters.ts';
import { openSession, type SessionOptions } from '../onnx/session.ts';
import type { DecodeSessions } from './decode-batch.ts';
import { buildDecodeGraph } from './decode-graph.ts';

export interface ProgramOptions extends SessionOptions {
  /**
   * Every version gets sessions of its own with its weights packed for the matrix kernels. Decoding is a tenth to a fifth
   * faster; opening a version takes 10 to 20 ms per million parameters and three times its memory; the bits are others than
   * without. For versions that are sampled for long. Models above packedWeightBytesMax are never packed.
   */
  readonly packWeights?: boolean;
}

/** Versions without rows whose sessions are kept. */
const idleVersionsMax = 1;

/** The sessions that decode: one pair for all versions, whose weights are fed, or a pair for each. */
export class DecodeProgram {
  readonly #config: ModelConfig;
  readonly #options: ProgramOptions;
  readonly #shared: DecodeSessions | null;
  /** The latest used last. */
  readonly #packed = new Map<number, { readonly sessions: DecodeSessions; isUsed: boolean }>();

  private constructor(config: ModelConfig, options: ProgramOptions, shared: DecodeSessions | null) {
    this.#config = config;
    this.#options = options;
    this.#shared = shared;
  }

  static async open(config: ModelConfig, options: ProgramOptions): Promise<DecodeProgram> {
    const isPacked = options.packWeights === true && 4 * parameterCount(config) <= packedWeightBytesMax;
    return new DecodeProgram(config, options, isPacked ? null : await openSessions(config, options));
  }

  /** The sessions of a version, which are its until `done`. */
  async use(version: number, parameters: Parameters): Promise<DecodeSessions> {
    if (this.#shared) return { ...this.#shared, weights: parameters.tensors };
    const sessions =
      this.#packed.get(version)?.sessions ?? (await openSessions(this.#config, this.#options, parameters));
    this.#packed.delete(version);
    this.#packed.set(version, { sessions, isUsed: true });
    await this.#releaseIdle(idleVersionsMax);
    return sessions;
  }

  /** None of the version's rows run. */
  done(version: number): void {
    const held = this.#packed.get(version);
    if (held) held.isUsed = false;
  }

  async release(): Promise<void> {
    for (const version of this.#packed.keys()) this.done(version);
    await this.#releaseIdle(0);
    if (this.#shared) await releaseSessions(this.#shared);
  }

  async #releaseIdle(keep: number): Promise<void> {
    const idle = [...this.#packed].filter(([, { isUsed }]) => !isUsed);
    for (const [version, { sessions }] of idle.slice(0, Math.max(0, idle.length - keep))) {
      this.#packed.delete(version);
      await releaseSessions(sessions);
    }
  }
}

/** With the weights in the graph when they are given. */
async function openSessions(
  config: ModelConfig,
  options: SessionOptions,
  parameters?: Parameters,
): Promise<DecodeSessions> {
  const prefill = buildDecodeGraph(config, 'prefill', parameters);
  const step = buildDecodeGraph(config, 'step', parameters);
  return {
    weights: {},
    prefill: await openSession(prefill.graph, options),
    step: await openSession(step.graph, options),
    logits: { prefill: prefill.logits, step: step.logits },
  };
}

async function releaseSessions({ prefill, step }: DecodeSessions): Promise<void> {
  await prefill.release();
  await step.release();
}
