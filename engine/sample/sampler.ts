import { RatchetError } from '../../core/errors.ts';
import { workHereMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import type { Parameters } from '../model/parameters.ts';
import { DecodeLane, type Lane, type LaneCounters, type LaneEvents, noCounters, type RowEnd } from './decode-lane.ts';
import { DecodeProgram, type ProgramOptions } from './decode-program.ts';
import { LaneGroup } from './lane-group.ts';
import { defaultSamplingLimits, laneShare, type SamplingLimits } from './sampling-limits.ts';
import { requireSampleable, type SequenceRequest, type SampleResult } from './sequence-request.ts';
import type { SampledToken } from './token-choice.ts';

export type { SequenceRequest, SampleResult } from './sequence-request.ts';

interface GenerateOptions {
  readonly signal?: AbortSignal;
  /** Called once per sampled token, in the order of its row; `index` is that of the request in the call. */
  readonly onToken?: (index: number, tokenId: number, logprob: number) => void;
}

interface SamplerOptions extends ProgramOptions {
  /** Rows from which one more thread decodes; the smaller the model, the more unless given. It does not touch the bits. */
  readonly rowsPerThreadMin?: number;
  /** Memory limits in addition to the weights. */
  readonly limits?: SamplingLimits;
}

/** The counters of all lanes together. */
export interface SamplerCounters extends LaneCounters {
  /** Bound of `keyValueBytesUsed`. */
  readonly keyValueBytesMax: number;
}

interface Call {
  readonly version: Version;
  readonly onToken: GenerateOptions['onToken'];
  readonly rows: readonly CallRow[];
  unfinished: number;
  readonly resolve: (results: SampleResult[]) => void;
  readonly reject: (reason: unknown) => void;
}

interface CallRow {
  readonly id: number;
  readonly index: number;
  readonly request: SequenceRequest;
  readonly tokenIds: number[];
  readonly logprobs: number[];
  /** The same array as logprobs while no token was drawn from a changed distribution. */
  samplingLogprobs: number[];
  finishReason: 'stop' | 'length' | null;
}

interface SamplerParts {
  readonly program: DecodeProgram;
  readonly lane: Lane;
  readonly threads: number;
  readonly limits: SamplingLimits;
}

/** The weights of one policy version as long as they keep their values. */
interface Version {
  readonly key: number;
  readonly revision: number;
  callCount: number;
}

/**
 * Samples from any number of policy versions of one architecture. Rows of all calls are decoded together, as far as they
 * are of one version; versions take turns step by step, so that none waits for another's rows to end. A row's tokens and
 * logprobs do not depend on its neighbours nor on the number of threads, bit for bit: every matrix product runs on one
 * thread, no batch has a single row, and random numbers have keys.
 *
 * Weights must not change while rows of them wait or run. Between calls they may, as a trainer in the same process does, which
 * calls their `changed()`.
 */
export class Sampler {
  readonly config: ModelConfig;
  /** Bytes of keys and values of the smallest batch, in one thread. */
  readonly #rowBytesMax: number;
  readonly #limits: SamplingLimits;
  readonly #program: DecodeProgram;
  readonly #lane: Lane;
  #counters: LaneCounters = noCounters;
  readonly #versions = new WeakMap<Parameters, Version>();
  readonly #forgotten = new FinalizationRegistry<number>((key) => void this.#forget(key));
  readonly #rows = new Map<number, { readonly call: Call; readonly row: CallRow }>();
  #nextKey = 0;
  #nextId = 0;
  #isReleased = false;

  private constructor(config: ModelConfig, { program, lane, threads, limits }: SamplerParts) {
    this.config = config;
    this.#limits = limits;
    this.#rowBytesMax = laneShare(limits, threads).aloneBytesMax;
    this.#program = program;
    this.#lane = lane;
  }

  /** Starts lanes on several threads; each decodes rows of its own. */
  static async open(
    config: ModelConfig,
    { threads, rowsPerThreadMin: rowsMin, limits = defaultSamplingLimits, ...options }: SamplerOptions,
  ): Promise<Sampler> {
    const program = await DecodeProgram.open(config, { ...options, threads: 1 });
    const laneOptions = { ...limits, workHereMax };
    let sampler: Sampler;
    const events: LaneEvents = {
      token: (id, choice) => sampler.#accept(id, choice),
      fail: (ids, error) => sampler.#fail(ids, error),
      stepped: (ends, counters) => sampler.#stepped(ends, counters),
    };
    try {
      const lane =
        threads === 1
          ? new DecodeLane(config, program, laneOptions, events)
          : await LaneGroup.open(config, threads, { program, options: laneOptions, events, rowsMin });
      sampler = new Sampler(config, { program, lane, threads, limits });
      return sampler;
    } catch (error) {
      await program.release();
      throw error;
    }
  }

  /** Results in the order of the requests. An aborted call rejects with the signal's reason; its rows leave at the next step. */
  async generate(
    parameters: Parameters,
    requests: readonly SequenceRequest[],
    { signal, onToken }: GenerateOptions = {},
  ): Promise<SampleResult[]> {
    requests.forEach((request) => this.requireSampleable(request));
    signal?.throwIfAborted();
    if (this.#isReleased) throw released();
    if (requests.length === 0) return [];
    const version = this.#versionOf(parameters);
    return new Promise((resolve, reject) => {
      const rows = requests.map((request, index) => newRow(request, index, this.#nextId++));
      const onAbort = (): void => this.#end(call, () => reject(signal?.reason));
      const settled = <Value>(settle: (value: Value) => void) => {
        return (value: Value): void => {
          signal?.removeEventListener('abort', onAbort);
          settle(value);
        };
      };
      const call: Call = {
        version,
        onToken,
        rows,
        unfinished: rows.length,
        resolve: settled(resolve),
        reject: settled(reject),
      };
      signal?.addEventListener('abort', onAbort);
      version.callCount++;
      for (const row of rows) this.#rows.set(row.id, { call, row });
      this.#lane.submit(version.key, parameters, rows);
    });
  }

  /** Throws `InferenceRejected` for a request that `generate` would refuse. */
  requireSampleable(request: SequenceRequest): void {
    requireSampleable(request, this.config, this.#rowBytesMax);
  }

  get counters(): SamplerCounters {
    return { ...this.#counters, keyValueBytesMax: this.#limits.keyValueBytesMax };
  }

  /** Releases everything made from weights that no call uses any more. Resolves when it is closed. */
  async forget(parameters: Parameters): Promise<void> {
    const version = this.#versions.get(parameters);
    this.#versions.delete(parameters);
    if (version) await this.#forget(version.key);
    await this.#program.forgetBase(parameters);
  }

  /** Rejects calls in progress. */
  async release(): Promise<void> {
    this.#isReleased = true;
    for (const { call } of this.#rows.values()) this.#end(call, () => call.reject(released()));
    await this.#lane.close();
    await this.#program.release();
  }

  async #forget(key: number): Promise<void> {
    this.#lane.forget(key);
    await this.#program.forget(key);
  }

  #fail(ids: readonly number[], error: unknown): void {
    for (const id of ids) {
      const call = this.#rows.get(id)?.call;
      if (call) this.#end(call, () => call.reject(error));
    }
  }

  #stepped(ends: readonly RowEnd[], counters: LaneCounters): void {
    this.#counters = counters;
    for (const { id, finishReason } of ends) this.#finish(id, finishReason);
  }

  #accept(id: number, { tokenId, logprob, samplingLogprob }: SampledToken): void {
    const found = this.#rows.get(id);
    if (!found) return;
    const { call, row } = found;
    if (samplingLogprob !== logprob && row.samplingLogprobs === row.logprobs)
      row.samplingLogprobs = row.logprobs.slice();
    row.tokenIds.push(tokenId);
    row.logprobs.push(logprob);
    if (row.samplingLogprobs !== row.logprobs) row.samplingLogprobs.push(samplingLogprob);
    try {
      call.onToken?.(row.index, tokenId, logprob);
      const { isFinished, minTokens = 0 } = row.request;
      if (row.tokenIds.length < minTokens || !isFinished?.(row.tokenIds)) return;
    } catch (error) {
      this.#end(call, () => call.reject(error));
      return;
    }
    this.#lane.drop([id]);
    this.#finish(id, 'stop');
  }

  #finish(id: number, finishReason: 'stop' | 'length'): void {
    const found = this.#rows.get(id);
    if (!found) return;
    const { call, row } = found;
    row.finishReason = finishReason;
    this.#rows.delete(id);
    if (--call.unfinished > 0) return;
    call.version.callCount--;
    call.resolve(call.rows.map(resultOf));
  }

  /** Settles a call before all of its rows have ended. */
  #end(call: Call, settle: () => void): void {
    const ids = call.rows.flatMap(({ id }) => (this.#rows.delete(id) ? [id] : []));
    if (ids.length === 0) return;
    this.#lane.drop(ids);
    call.version.callCount--;
    settle();
  }

  /** Weights trained in place are another version: results of the old ones are dropped. */
  #versionOf(parameters: Parameters): Version {
    const known = this.#versions.get(parameters);
    if (known && (known.callCount > 0 || known.revision === parameters.revision)) return known;
    if (known) void this.#forget(known.key);
    const version = { key: this.#nextKey++, revision: parameters.revision, callCount: 0 };
    this.#versions.set(parameters, version);
    this.#forgotten.register(parameters, version.key);
    return version;
  }
}

function newRow(request: SequenceRequest, index: number, id: number): CallRow {
  const logprobs: number[] = [];
  return { id, index, request, tokenIds: [], logprobs, samplingLogprobs: logprobs, finishReason: null };
}

function resultOf({ tokenIds, logprobs, samplingLogprobs, finishReason }: CallRow): SampleResult {
  return { tokenIds, logprobs, samplingLogprobs, finishReason: finishReason! };
}

function released(): RatchetError {
  return new RatchetError(
    'InferenceUnavailable',
    'The sampler was closed while the call waited or ran. Open it again.',
  );
}
