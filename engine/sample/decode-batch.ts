import assert from 'node:assert/strict';
import { type InferenceSession, Tensor } from 'onnxruntime-node';
import { uniform } from '../../core/random.ts';
import { prefillPositionsMax } from '../limits.ts';
import type { Parameters } from '../model/parameters.ts';
import { floats, ints, longs } from '../onnx/session.ts';
import type { KeyValueCache } from './key-value-cache.ts';
import type { GenerateOptions, SampleRequest, SampleResult } from './sampler.ts';

export interface DecodeSessions {
  readonly prefill: InferenceSession;
  readonly step: InferenceSession;
}

interface BatchParts {
  readonly parameters: Parameters;
  readonly requests: readonly SampleRequest[];
  readonly sessions: DecodeSessions;
  readonly cache: KeyValueCache;
  /** Holds the distinct prompts of one prefill run before their rows are handed to the choices. */
  readonly prefillCache: KeyValueCache;
}

/** Distinct prompt with the rows that continue it. */
interface PromptGroup {
  readonly tokenIds: readonly number[];
  readonly rows: number[];
}

/** A batch of one row takes another path through the matrix kernels and gives other bits, so there is none. */
const rowsMin = 2;
/** The largest u: u · total is then below total in 32-bit floats, so the draw always ends on a possible token. */
const uniformMax = 1 - 2 ** -23;
/** Cache lengths are rounded up, so that batches of similar lengths share memory. */
const cacheLengthStep = 8;

/**
 * Rows decoded together from their prompts to their ends. Row = slot: rows keep their place until one finishes, then
 * the last live row moves into the gap, so that every step computes live rows only.
 */
export class DecodeBatch {
  readonly #parts: BatchParts;
  readonly #tokenIds: number[][];
  readonly #logprobs: number[][];
  readonly #finished: ('stop' | 'length' | null)[];
  /** Slot → row. A slot beyond the rows is padding and names −1. */
  readonly #rowOf: number[];
  #live: number;

  /** By slot. */
  readonly #tokens: Int32Array;
  readonly #lengths: Int32Array;
  readonly #uniforms: Float32Array;
  readonly #inverseTemperatures: Float32Array;
  readonly #greedy: Uint8Array;

  constructor(parts: BatchParts) {
    const count = parts.requests.length;
    const slots = Math.max(count, rowsMin);
    this.#parts = parts;
    this.#tokenIds = parts.requests.map(() => []);
    this.#logprobs = parts.requests.map(() => []);
    this.#finished = parts.requests.map(() => null);
    this.#rowOf = Array.from({ length: slots }, (_, slot) => (slot < count ? slot : -1));
    this.#live = count;
    this.#tokens = new Int32Array(slots);
    this.#lengths = new Int32Array(slots).fill(1);
    this.#uniforms = new Float32Array(slots);
    this.#inverseTemperatures = new Float32Array(slots).fill(1);
    this.#greedy = new Uint8Array(slots).fill(1);
    parts.requests.forEach((request, slot) => this.#fillSlot(slot, request));
  }

  async run({ signal, onTokens }: GenerateOptions): Promise<SampleResult[]> {
    const { requests, cache } = this.#parts;
    if (requests.length === 0) return [];
    const longest = Math.max(...requests.map((request) => request.promptTokenIds.length + request.maxTokens));
    cache.resize(this.#rowOf.length, Math.ceil(longest / cacheLengthStep) * cacheLengthStep);
    signal?.throwIfAborted();
    await this.#prefill();
    onTokens?.(requests.length);
    this.#compact();
    while (this.#live > 0) {
      signal?.throwIfAborted();
      onTokens?.(this.#live);
      await this.#step();
      this.#compact();
    }
    return requests.map((_, row) => this.#result(row));
  }

  #fillSlot(slot: number, { promptTokenIds, temperature }: SampleRequest): void {
    this.#lengths[slot] = promptTokenIds.length;
    this.#greedy[slot] = Number(temperature === 0);
    this.#inverseTemperatures[slot] = temperature === 0 ? 1 : 1 / temperature;
  }

  /** Prompts of similar length run together, each distinct prompt once. */
  async #prefill(): Promise<void> {
    const groups = groupPrompts(this.#parts.requests).toSorted((a, b) => a.tokenIds.length - b.tokenIds.length);
    for (const run of splitByPositions(groups)) await this.#prefillRun(run);
  }

  async #prefillRun(groups: readonly PromptGroup[]): Promise<void> {
    const { prefillCache, cache, sessions } = this.#parts;
    const width = Math.max(...groups.map((group) => group.tokenIds.length));
    const batch = Math.max(groups.length, rowsMin);
    prefillCache.resize(batch, width);
    const slots = groups.flatMap((group) => group.rows);
    const last = groups.flatMap((group, i) => group.rows.map(() => i * width + group.tokenIds.length - 1));
    while (last.length < rowsMin) last.push(last[0]!);
    const output = await this.#run(sessions.prefill, prefillCache, batch, {
      ...prefillFeeds(groups, batch, width),
      last: longs(BigInt64Array.from(last, BigInt), [last.length]),
      ...this.#choiceFeeds(last.map((_, i) => slots[i] ?? slots[0]!)),
    });
    groups.forEach((group, i) => {
      for (const row of group.rows) cache.copyRow(prefillCache, i, row, group.tokenIds.length);
    });
    slots.forEach((slot, i) => this.#accept(slot, output.tokens[i]!, output.logprobs[i]!));
  }

  async #step(): Promise<void> {
    const rows = Math.max(this.#live, rowsMin);
    const lengths = this.#lengths.subarray(0, rows);
    let longest = 0;
    for (const length of lengths) longest = Math.max(longest, length);
    const output = await this.#run(this.#parts.sessions.step, this.#parts.cache, rows, {
      tokens: ints(this.#tokens.slice(0, rows), [rows, 1]),
      past_lengths: ints(
        lengths.map((length) => length - 1),
        [rows],
      ),
      total_length: ints(Int32Array.of(longest), []),
      ...this.#choiceFeeds(null),
    });
    for (let slot = 0; slot < this.#live; slot++) this.#accept(slot, output.tokens[slot]!, output.logprobs[slot]!);
  }

  async #run(
    session: InferenceSession,
    cache: KeyValueCache,
    rows: number,
    feeds: Record<string, Tensor>,
  ): Promise<{ tokens: Int32Array; logprobs: Float32Array }> {
    const { feeds: past, fetches } = cache.tensors(rows);
    const output = await session.run(
      { ...this.#parts.parameters.tensors, ...past, ...feeds },
      { ...fetches, token: null, logprob: null },
    );
    const tokens = output['token']?.data;
    const logprobs = output['logprob']?.data;
    assert(
      tokens instanceof Int32Array && logprobs instanceof Float32Array,
      'a decode graph gives tokens and logprobs',
    );
    return { tokens, logprobs };
  }

  /** How each of the given slots draws its next token; null = the live slots in order. */
  #choiceFeeds(slots: readonly number[] | null): Record<string, Tensor> {
    const count = slots?.length ?? Math.max(this.#live, rowsMin);
    const uniforms = new Float32Array(count);
    const inverseTemperatures = new Float32Array(count);
    const greedy = new Uint8Array(count);
    for (let i = 0; i < count; i++) {
      const slot = slots ? slots[i]! : i;
      uniforms[i] = this.#drawUniform(slot);
      inverseTemperatures[i] = this.#inverseTemperatures[slot]!;
      greedy[i] = this.#greedy[slot]!;
    }
    return {
      uniform: floats(uniforms, [count, 1]),
      inverse_temperature: floats(inverseTemperatures, [count, 1]),
      greedy: new Tensor('bool', greedy, [count, 1]),
    };
  }

  #drawUniform(slot: number): number {
    const row = this.#rowOf[slot]!;
    if (row < 0 || this.#greedy[slot] === 1) return 0;
    return Math.min(uniform(this.#parts.requests[row]!.seed, this.#tokenIds[row]!.length), uniformMax);
  }

  #accept(slot: number, tokenId: number, logprob: number): void {
    const row = this.#rowOf[slot]!;
    const request = this.#parts.requests[row]!;
    const tokenIds = this.#tokenIds[row]!;
    tokenIds.push(tokenId);
    this.#logprobs[row]!.push(logprob);
    this.#tokens[slot] = tokenId;
    this.#lengths[slot] = request.promptTokenIds.length + tokenIds.length;
    if (request.stopTokenIds.includes(tokenId)) this.#finished[row] = 'stop';
    else if (tokenIds.length === request.maxTokens) this.#finished[row] = 'length';
  }

  /** Finished rows leave their slots to the last live ones. */
  #compact(): void {
    for (let slot = 0; slot < this.#live;) {
      if (this.#finished[this.#rowOf[slot]!] === null) {
        slot++;
        continue;
      }
      this.#live--;
      if (slot < this.#live) this.#moveSlot(this.#live, slot);
    }
    // A slot that pads the batch to two rows repeats whatever it held: at a position its cache has.
    for (let slot = this.#live; slot < Math.min(rowsMin, this.#rowOf.length); slot++) this.#parkSlot(slot);
  }

  #moveSlot(from: number, to: number): void {
    this.#parts.cache.moveRow(from, to);
    this.#rowOf[to] = this.#rowOf[from]!;
    for (const values of [this.#tokens, this.#lengths, this.#inverseTemperatures, this.#greedy]) {
      values[to] = values[from]!;
    }
  }

  #parkSlot(slot: number): void {
    this.#rowOf[slot] = -1;
    this.#tokens[slot] = 0;
    this.#lengths[slot] = 1;
    this.#greedy[slot] = 1;
    this.#inverseTemperatures[slot] = 1;
  }

  #result(row: number): SampleResult {
    const finishReason = this.#finished[row];
    assert(finishReason, 'a batch ends when every row has');
    return { tokenIds: this.#tokenIds[row]!, logprobs: this.#logprobs[row]!, finishReason };
  }
}

function groupPrompts(requests: readonly SampleRequest[]): PromptGroup[] {
  const groups = new Map<string, PromptGroup>();
  requests.forEach(({ promptTokenIds }, row) => {
    const key = promptTokenIds.join();
    const group = groups.get(key);
    if (group) group.rows.push(row);
    else groups.set(key, { tokenIds: promptTokenIds, rows: [row] });
  });
  return [...groups.values()];
}

/** Groups in order, as many per run as their padded positions allow. They come sorted by length. */
function splitByPositions(groups: readonly PromptGroup[]): PromptGroup[][] {
  const runs: PromptGroup[][] = [];
  for (const group of groups) {
    const run = runs.at(-1);
    if (run && (run.length + 1) * group.tokenIds.length <= prefillPositionsMax) run.push(group);
    else runs.push([group]);
  }
  return runs;
}

/** Rows beyond the groups are padding: one token 0 each. */
function prefillFeeds(groups: readonly PromptGroup[], batch: number, width: number): Record<string, Tensor> {
  const tokens = new Int32Array(batch * width);
  const pastLengths = new Int32Array(batch);
  groups.forEach(({ tokenIds }, i) => {
    tokens.set(tokenIds, i * width);
    pastLengths[i] = tokenIds.length - 1;
  });
  return {
    tokens: ints(tokens, [batch, width]),
    past_lengths: ints(pastLengths, [batch]),
    total_length: ints(Int32Array.of(width), []),
  };
}
