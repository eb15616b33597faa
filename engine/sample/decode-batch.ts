import assert from 'node:assert/strict';
import { type InferenceSession, Tensor } from '../onnx/runtime.ts';
import { uniform } from '../../core/random.ts';
import { decodeRowsMax, prefillPositionsMax } from '../limits.ts';
import type { Parameters } from '../model/parameters.ts';
import { floats, ints, longs } from '../onnx/session.ts';
import type { KeyValueCache } from './key-value-cache.ts';
import { rowsMin, type SampleRequest, type SampleResult } from './sample-request.ts';

export interface DecodeSessions {
  readonly prefill: InferenceSession;
  readonly step: InferenceSession;
}

/** A sequence being sampled. */
export interface Row {
  readonly request: SampleRequest;
  /** Whoever asked for it; rows are dropped by owner. */
  readonly owner: object;
  readonly tokenIds: number[];
  readonly logprobs: number[];
  readonly onToken: (tokenId: number, logprob: number) => void;
  readonly finish: (result: SampleResult) => void;
}

interface BatchParts {
  readonly parameters: Parameters;
  readonly sessions: DecodeSessions;
  readonly cache: KeyValueCache;
  /** Holds the distinct prompts of one prefill run before their keys and values go to the rows. */
  readonly prefillCache: KeyValueCache;
}

/** A distinct prompt with the slots of the rows that continue it. */
interface PromptGroup {
  readonly tokenIds: readonly number[];
  readonly slots: number[];
}

/** The largest u: u · total is then below total in 32-bit floats, so the draw always ends on a possible token. */
const uniformMax = 1 - 2 ** -23;

/**
 * Rows of one policy version, decoded together. Rows fill slots 0 … rowCount − 1; when one finishes, the last row moves
 * into its slot, so that every step computes live rows only.
 */
export class DecodeBatch {
  readonly #parts: BatchParts;
  readonly #rows: Row[] = [];
  #tokenCount = 0;

  /** By slot: the token to feed next, the row's length with it, and how the row samples. */
  readonly #tokens = new Int32Array(decodeRowsMax);
  readonly #lengths = new Int32Array(decodeRowsMax).fill(1);
  readonly #inverseTemperatures = new Float32Array(decodeRowsMax).fill(1);
  readonly #greedy = new Uint8Array(decodeRowsMax).fill(1);

  constructor(parts: BatchParts) {
    this.#parts = parts;
  }

  get rowCount(): number {
    return this.#rows.length;
  }

  /** The most positions any row may come to. */
  get longest(): number {
    return longestOf(this.#rows);
  }

  /** Tokens sampled since the last call. */
  takeTokenCount(): number {
    const count = this.#tokenCount;
    this.#tokenCount = 0;
    return count;
  }

  /** Takes rows in and samples their first tokens. Each distinct prompt is computed once. */
  async prefill(rows: readonly Row[]): Promise<void> {
    if (rows.length === 0) return;
    const first = this.#rows.length;
    this.#parts.cache.reserve({
      rows: Math.max(first + rows.length, rowsMin),
      length: Math.max(this.longest, longestOf(rows)),
      keep: first,
    });
    for (const row of rows) this.#fillSlot(this.#rows.push(row) - 1, row.request);
    const groups = groupPrompts(this.#rows, first).toSorted((a, b) => a.tokenIds.length - b.tokenIds.length);
    for (const run of splitByPositions(groups)) await this.#prefillRun(run);
    this.#compact();
  }

  /** One more token for every row. */
  async step(): Promise<void> {
    if (this.#rows.length === 0) return;
    const rows = Math.max(this.#rows.length, rowsMin);
    if (this.#rows.length < rows) this.#parkSlot(rows - 1);
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
      ...this.#choiceFeeds(Array.from({ length: rows }, (_, slot) => slot)),
    });
    this.#rows.forEach((_, slot) => this.#accept(slot, output.tokens[slot]!, output.logprobs[slot]!));
    this.#compact();
  }

  /** Forgets an owner's rows. */
  drop(owner: object): void {
    this.#removeRows((row) => row.owner === owner);
  }

  #fillSlot(slot: number, { promptTokenIds, temperature }: SampleRequest): void {
    this.#lengths[slot] = promptTokenIds.length;
    this.#greedy[slot] = Number(temperature === 0);
    this.#inverseTemperatures[slot] = temperature === 0 ? 1 : 1 / temperature;
  }

  async #prefillRun(groups: readonly PromptGroup[]): Promise<void> {
    const { prefillCache, cache, sessions } = this.#parts;
    const width = Math.max(...groups.map((group) => group.tokenIds.length));
    const batch = Math.max(groups.length, rowsMin);
    prefillCache.reserve({ rows: batch, length: width, keep: 0 });
    const slots = groups.flatMap((group) => group.slots);
    const last = groups.flatMap((group, i) => group.slots.map(() => i * width + group.tokenIds.length - 1));
    while (last.length < rowsMin) last.push(last[0]!);
    const output = await this.#run(sessions.prefill, prefillCache, batch, {
      ...prefillFeeds(groups, batch, width),
      last: longs(BigInt64Array.from(last, BigInt), [last.length]),
      ...this.#choiceFeeds(last.map((_, i) => slots[i] ?? slots[0]!)),
    });
    groups.forEach((group, i) => {
      for (const slot of group.slots)
        cache.copyRow(prefillCache, { from: i, to: slot, positions: group.tokenIds.length });
    });
    slots.forEach((slot, i) => this.#accept(slot, output.tokens[i]!, output.logprobs[i]!));
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

  /** How each of the given slots draws its next token. */
  #choiceFeeds(slots: readonly number[]): Record<string, Tensor> {
    const shape = [slots.length, 1];
    const pick = (slot: number): number => this.#drawUniform(slot);
    return {
      uniform: floats(Float32Array.from(slots, pick), shape),
      inverse_temperature: floats(
        Float32Array.from(slots, (slot) => this.#inverseTemperatures[slot]!),
        shape,
      ),
      greedy: new Tensor(
        'bool',
        Uint8Array.from(slots, (slot) => this.#greedy[slot]!),
        shape,
      ),
    };
  }

  #drawUniform(slot: number): number {
    const row = this.#rows[slot];
    if (!row || this.#greedy[slot] === 1) return 0;
    return Math.min(uniform(row.request.seed, row.tokenIds.length), uniformMax);
  }

  #accept(slot: number, tokenId: number, logprob: number): void {
    const row = this.#rows[slot]!;
    row.tokenIds.push(tokenId);
    row.logprobs.push(logprob);
    this.#tokens[slot] = tokenId;
    this.#lengths[slot] = row.request.promptTokenIds.length + row.tokenIds.length;
    this.#tokenCount++;
    row.onToken(tokenId, logprob);
  }

  #compact(): void {
    this.#removeRows((row) => {
      const finishReason = finishReasonOf(row);
      if (finishReason)
        row.finish({ tokenIds: row.tokenIds, logprobs: row.logprobs, samplingLogprobs: row.logprobs, finishReason });
      return finishReason !== null;
    });
  }

  /** Removed rows leave their slots to the last ones. */
  #removeRows(isRemoved: (row: Row) => boolean): void {
    for (let slot = 0; slot < this.#rows.length;) {
      if (!isRemoved(this.#rows[slot]!)) {
        slot++;
        continue;
      }
      const last = this.#rows.length - 1;
      if (slot < last) this.#moveSlot(last, slot);
      this.#rows.pop();
    }
  }

  #moveSlot(from: number, to: number): void {
    this.#parts.cache.moveRow(from, to);
    this.#rows[to] = this.#rows[from]!;
    for (const values of [this.#tokens, this.#lengths, this.#inverseTemperatures, this.#greedy]) {
      values[to] = values[from]!;
    }
  }

  /** A slot that pads the batch to two rows: token 0 at the first position. */
  #parkSlot(slot: number): void {
    this.#tokens[slot] = 0;
    this.#lengths[slot] = 1;
    this.#greedy[slot] = 1;
    this.#inverseTemperatures[slot] = 1;
  }
}

function finishReasonOf({ request, tokenIds }: Row): 'stop' | 'length' | null {
  if (!request.ignoreEnd && request.stopTokenIds.includes(tokenIds.at(-1)!)) return 'stop';
  if (tokenIds.length >= (request.minTokens ?? 0) && request.isFinished?.(tokenIds)) return 'stop';
  return tokenIds.length === request.maxTokens ? 'length' : null;
}

function longestOf(rows: readonly Row[]): number {
  return rows.reduce((longest, { request }) => Math.max(longest, request.promptTokenIds.length + request.maxTokens), 0);
}

/** Slots from `first` on, by prompt. */
function groupPrompts(rows: readonly Row[], first: number): PromptGroup[] {
  const groups = new Map<string, PromptGroup>();
  for (let slot = first; slot < rows.length; slot++) {
    const tokenIds = rows[slot]!.request.promptTokenIds;
    const key = tokenIds.join();
    const group = groups.get(key);
    if (group) group.slots.push(slot);
    else groups.set(key, { tokenIds, slots: [slot] });
  }
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
