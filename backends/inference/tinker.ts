import PQueue from 'p-queue';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import { saysOverlong } from '../../core/rl/failures.ts';
import type { TinkerInferenceSpec } from '../../config/run-spec.ts';
import { isTrouble, type SampleOutput, TinkerClient, type TinkerModel, TinkerTrouble } from '../tinker/index.ts';
import { loadModel, pathsOf } from '../tinker/load-model.ts';
import { orderOf, readVersion, samplerName, type TinkerVersion } from '../tinker/version-files.ts';
import { changesDistribution, requireFree } from './openai/openai-bodies.ts';
import { askPatiently } from './patience.ts';
import type { HoldOutcome, Inference, Sample, SampleRequest, ScoreRequest } from './types.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';

/** Servers compute with 32-bit seeds. */
const seedMax = 2 ** 31 - 1;
/** Versions that were loaded again here after the server had lost them; older ones are unloaded. */
const revivedMax = 2;
/** A model of ours that is not sampled for so long is unloaded: others may need its room. */
const idleMs = 20_000;

interface Revived {
  readonly model: TinkerModel;
  readonly path: string;
  inUse: number;
  /** Made by this process, which unloads it. */
  readonly isOwn: boolean;
  idle: ReturnType<typeof setTimeout> | undefined;
}

/** A version that can be sampled now. */
interface Served {
  readonly version: TinkerVersion;
  readonly path: string;
}

/** Steps of the weights that an answer came from, where the server exchanges them in place. */
type ServedSteps = Pick<Sample, 'servedStep' | 'servedThrough'>;

/**
 * Samples on a server of the Tinker API. Every version has a path there, so holding one costs nothing. If the server
 * has lost the model behind a path (it was restarted, or the trainer's session ended), the version is loaded again from
 * its training checkpoint, into a model of this process's own.
 *
 * Some servers sample from what a model has saved last, whichever path is asked for. It is asked after a turn which version that
 * was, and a lost version is looked for in the model that is there before one is made.
 */
export class TinkerInference implements Inference {
  readonly #spec: TinkerInferenceSpec;
  readonly #say: (line: string) => void;
  readonly #client: TinkerClient;
  readonly #queue: PQueue;
  readonly #versions = new Map<string, Promise<TinkerVersion>>();
  readonly #revived = new Map<string, Promise<Revived>>();
  /** The newest checkpoint of the model behind a path, when it was last seen. */
  readonly #latest = new Map<string, number>();
  /** Paths whose model the server has lost. */
  readonly #gone = new Set<string>();

  constructor(spec: TinkerInferenceSpec, say: (line: string) => void = () => undefined) {
    this.#spec = spec;
    this.#say = say;
    this.#client = new TinkerClient(spec, { say, patienceMs: 30_000 });
    this.#queue = new PQueue({ concurrency: spec.maxConcurrent });
  }

  async sample(request: SampleRequest): Promise<Sample> {
    requireFree(request, 'a server of the Tinker API');
    if (request.stop?.length)
      throw new RatchetError('Unsupported', '"stop" is not supported by a server of the Tinker API. Leave it out.');
    const { promptTokenIds, maxTokens, temperature, seed, topK, topP, signal } = request;
    const { output, steps } = await this.#ask(request.policy, signal, ({ version, path }) =>
      this.#client.sample({
        path,
        baseModel: version.baseModel,
        prompt: promptTokenIds,
        params: {
          max_tokens: maxTokens,
          temperature,
          seed: seed % seedMax,
          stop: version.endTokenIds,
          ...present({ top_k: topK ?? undefined, top_p: topP === undefined || topP === 1 ? undefined : topP }),
        },
        signal: signals(signal, this.#spec.timeoutS),
      }),
    );
    const [sequence] = output.sequences;
    if (!sequence) throw rejected(this.#spec.url, 'gave no sequence');
    if (sequence.logprobs.length !== sequence.tokens.length) {
      throw rejected(this.#spec.url, `gave ${sequence.tokens.length} tokens and ${sequence.logprobs.length} logprobs`);
    }
    requireFinite(this.#spec.url, sequence.logprobs, 'a token that it drew');
    // Unknown whether they are before or after top_p and top_k: they are taken for the sampler's, and either case is
    // corrected before the step.
    const told = changesDistribution(request)
      ? { logprobs: null, samplingLogprobs: sequence.logprobs }
      : { logprobs: sequence.logprobs };
    return { tokenIds: sequence.tokens, ...told, finishReason: sequence.stopReason, ...steps };
  }

  async score({ policy, tokenIds, positions }: ScoreRequest): Promise<readonly number[] | null> {
    const { output, steps } = await this.#ask(policy, undefined, ({ version, path }) =>
      this.#client.sample({
        path,
        baseModel: version.baseModel,
        prompt: tokenIds,
        params: { max_tokens: 1, temperature: 1, seed: 0 },
        promptLogprobs: true,
      }),
    );
    if (steps.servedStep !== undefined || steps.servedThrough !== undefined) return null; // of later weights
    const scored = positions.map((position) => output.promptLogprobs?.[position] ?? null);
    if (!scored.every((logprob) => logprob !== null)) return null;
    requireFinite(this.#spec.url, scored, 'a token of the prompt');
    return scored;
  }

  /** Samples a real token of that version: no other answer is proof. */
  async bringTo(policy: ServedPolicy): Promise<void> {
    const { endTokenIds } = await this.#versionOf(policy);
    await this.#ask(policy, undefined, ({ version, path }) =>
      this.#client.sample({
        path,
        baseModel: version.baseModel,
        prompt: endTokenIds.slice(0, 1),
        params: { max_tokens: 1, temperature: 1, seed: 0 },
      }),
    );
  }

  async hold(policy: ServedPolicy): Promise<HoldOutcome> {
    return servesLatest(await this.#versionOf(policy)) ? 'single' : 'held';
  }

  close(): void {
    this.#queue.clear();
    for (const revived of this.#revived.values()) void revived.then(unloadOwn).catch(() => undefined);
    this.#client.close();
  }

  async #ask(
    policy: ServedPolicy,
    signal: AbortSignal | undefined,
    ask: (served: Served) => Promise<SampleOutput>,
  ): Promise<{ readonly output: SampleOutput; readonly steps: ServedSteps }> {
    const version = await this.#versionOf(policy);
    return askPatiently(signal, () =>
      this.#queue.add(
        async () => {
          const revived = await this.#revived.get(version.digest)?.catch(() => null);
          const path = revived?.path ?? version.samplerPath;
          if (revived) revived.inUse += 1;
          clearTimeout(revived?.idle);
          const latest = this.#latest.get(path);
          try {
            const output = await ask({ version, path });
            return { output, steps: servesLatest(version) ? await this.#stepsOf(policy, version, path, latest) : {} };
          } catch (error) {
            if (isTrouble(error, 'lost', 'missing')) await this.#revive(version, path);
            throw inferenceError(error, policy);
          } finally {
            if (revived && --revived.inUse === 0 && revived.isOwn) this.#unloadIdle(version.digest, revived);
          }
        },
        signal ? { signal } : {},
      ),
    );
  }

  /**
   * The weights that a turn was sampled from, by the checkpoints of the model: it began with those that were saved for the
   * sampler last before it, and ended with those of the newest checkpoint at most.
   */
  async #stepsOf(
    { version: { step } }: ServedPolicy,
    { trainingPath }: TinkerVersion,
    path: string,
    before: number | undefined,
  ): Promise<ServedSteps> {
    const paths = await this.#client.checkpointsOf(path.split('/')[2]!);
    const newest = Math.max(...paths.map(orderOf), 0);
    this.#latest.set(path, newest);
    const own = orderOf(trainingPath);
    const [begun, ended] = [step + Math.max((before ?? own) - own, 0), step + Math.max(newest - own, 0)];
    return {
      ...(begun === step ? {} : { servedStep: begun }),
      ...(ended === begun ? {} : { servedThrough: ended }),
    };
  }

  #versionOf({ folder, version }: ServedPolicy): Promise<TinkerVersion> {
    const key = `${folder}#${version.digest}`;
    let known = this.#versions.get(key);
    if (!known) {
      known = readVersion(folder);
      known.catch(() => this.#versions.delete(key));
      this.#versions.set(key, known);
      if (this.#versions.size > 16) this.#versions.delete(this.#versions.keys().next().value!);
    }
    return known;
  }

  /** Once for all calls that found the same path lost. */
  async #revive(version: TinkerVersion, lostPath: string): Promise<void> {
    const known = this.#revived.get(version.digest);
    if (known && (await known.catch(() => null))?.path !== lostPath && (await known.catch(() => null)) !== null) return;
    if (this.#revived.get(version.digest) !== known) return; // another call was quicker
    const revived = this.#load(version, lostPath);
    revived.catch(() => undefined);
    this.#revived.set(version.digest, revived);
    const old = [...this.#revived].slice(0, -revivedMax);
    for (const [digest, gone] of old) {
      this.#revived.delete(digest);
      void gone.then(unloadOwn).catch(() => undefined);
    }
    await revived.catch((error: unknown) => {
      if (this.#revived.get(version.digest) === revived) this.#revived.delete(version.digest);
      throw inferenceError(error);
    });
  }

  #unloadIdle(digest: string, revived: Revived): void {
    clearTimeout(revived.idle);
    revived.idle = setTimeout(() => {
      this.#revived.delete(digest);
      void revived.model.unload();
    }, idleMs);
    revived.idle.unref();
  }

  async #load(version: TinkerVersion, lostPath: string): Promise<Revived> {
    this.#say(`the Tinker server has lost ${version.samplerPath}: loading it again from ${version.trainingPath}`);
    const { baseModel, rank, seed, trainingPath: from } = version;
    const wish = { baseModel, rank, seed, from, optimizer: false };
    if (servesLatest(version)) return this.#find(version, lostPath, wish);
    const model = await loadModel(this.#client, wish, this.#say);
    const path = await model.saveForSampler(`again-${Date.now().toString(36)}`, null);
    const revived: Revived = { model, path, inUse: 0, isOwn: true, idle: undefined };
    this.#unloadIdle(version.digest, revived);
    return revived;
  }

  /**
   * The version in the model that the server has now: the trainer, or another sampler, may have loaded it
   * again. Where none is, it is made here; the trainer unloads it when it needs the room.
   */
  async #find(version: TinkerVersion, lostPath: string, wish: Parameters<typeof loadModel>[1]): Promise<Revived> {
    const found = (await pathsOf(this.#client, version)).filter(
      ({ path }) => path !== lostPath && !this.#gone.has(path),
    );
    this.#gone.add(lostPath);
    const [first] = found;
    if (first)
      return { model: this.#client.modelOf(first.modelId), path: first.path, inUse: 0, isOwn: false, idle: undefined };
    try {
      const model = await loadModel(this.#client, wish, this.#say);
      const path = await model.saveForSampler(samplerName(version.trainingPath), null);
      const revived: Revived = { model, path, inUse: 0, isOwn: true, idle: undefined };
      this.#unloadIdle(version.digest, revived);
      return revived;
    } catch (error) {
      if (!isTrouble(error, 'refused', 'failed', 'lost')) throw error;
      throw new TinkerTrouble('full', `${error.message}. Waiting until the model there has this version`, { cause: error }); // prettier-ignore
    }
  }
}

async function unloadOwn({ model, isOwn }: Revived): Promise<void> {
  if (isOwn) await model.unload();
}

function servesLatest({ server }: TinkerVersion): boolean {
  return server?.sampling === 'latest';
}

function signals(signal: AbortSignal | undefined, timeoutS: number): AbortSignal {
  const timeout = AbortSignal.timeout(timeoutS * 1000);
  return signal ? AbortSignal.any([signal, timeout]) : timeout;
}

function rejected(url: string, what: string): RatchetError {
  return new RatchetError('InferenceRejected', `The Tinker server at ${url} ${what}.`);
}

/** Log probabilities that are trained on are numbers; Python's JSON may say NaN or -Infinity. */
function requireFinite(url: string, logprobs: readonly number[], of: string): void {
  const strange = logprobs.find((logprob) => !Number.isFinite(logprob));
  if (strange === undefined) return;
  throw rejected(url, `gave a log probability of ${strange} for ${of}; expected a number up to 0`);
}

function inferenceError(error: unknown, policy?: ServedPolicy): unknown {
  if (error instanceof Error && error.name === 'TimeoutError') {
    return new RatchetError(
      'InferenceUnavailable',
      'The Tinker server did not sample a turn in time ([inference] timeout).',
      { cause: error },
    );
  }
  if (!(error instanceof TinkerTrouble)) return error;
  const { message, kind } = error;
  if (kind === 'lost' && policy) return new RatchetError('VersionNotHeld', message, { cause: error });
  if (kind === 'missing' && policy) return new RatchetError('VersionNotHeld', message, { cause: error });
  if (kind === 'missing')
    return new RatchetError(
      'InferenceRejected',
      `${message}. This version cannot be sampled from any more: its checkpoints on the server are gone.`,
      { cause: error },
    );
  if (kind === 'refused')
    return new RatchetError(saysOverlong(message) ? 'PromptTooLong' : 'InferenceRejected', message, { cause: error });
  return new RatchetError('InferenceUnavailable', message, { cause: error });
}
