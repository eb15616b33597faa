import assert from 'node:assert/strict';
import type { Feeds, InferenceSession, PreparedRun, Tensor } from '../onnx/runtime.ts';
import { decodeRowsMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import { floats, ints, longs } from '../onnx/session.ts';
import { likeliestName, probabilitiesName } from './decode-graph.ts';
import { rowLengthMax } from './admission.ts';
import type { KeyValueCache } from './key-value-cache.ts';
import { rowFloats } from './row-bytes.ts';
import { type ComputedPrompt, type PromptCache, PromptMemory } from './prompt-cache.ts';
import type { SamplingLimits } from './sampling-limits.ts';
import { rowsMin, type SequenceRequest } from './sequence-request.ts';
import type { SampledToken, LogitRows, TokenChooser } from './token-choice.ts';

export interface DecodeSessions {
  /** Feeds of every run; empty if the session has the weights itself. */
  readonly weights: { readonly prefill: Feeds; readonly step: Feeds };
  readonly prefill: InferenceSession;
  readonly step: InferenceSession;
  /**
   * Numbers of rows in a step that give every row the bits it has among many: at least `min`, which is 1 for sums of
   * whole numbers, and a multiple.
   */
  readonly rows: { readonly min: number; readonly multiple: number };
  /** Names of the outputs that hold the logits. */
  readonly logits: { readonly prefill: string; readonly step: string };
}

/** The part of a request that a lane needs. Hooks stay with the caller, who drops a row when they end it. */
export type RowRequest = Omit<SequenceRequest, 'isFinished'>;

export interface Row {
  readonly id: number;
  readonly request: RowRequest;
  readonly chooser: TokenChooser;
  sampledCount: number;
  /** The row's result is no longer needed; it leaves at the next step. */
  isDropped: boolean;
}

interface RowEvents {
  readonly token: (id: number, choice: SampledToken) => void;
  readonly end: (id: number, finishReason: 'stop' | 'length') => void;
}

interface BatchParts {
  readonly config: ModelConfig;
  readonly sessions: DecodeSessions;
  readonly cache: KeyValueCache;
  /** Holds the distinct prompts of one prefill run before their keys and values are kept. */
  readonly prefillCache: KeyValueCache;
  readonly prompts: PromptCache;
  readonly limits: Pick<SamplingLimits, 'prefillPositionsMax' | 'rowsMax'>;
  /** Begins the keys of this version's prompts. */
  readonly promptPrefix: string;
  readonly events: RowEvents;
  /** Whether a number of positions is computed on this thread. */
  readonly isHere: (positions: number) => boolean;
}

/** A distinct prompt with the slots of the rows that continue it. */
interface PromptGroup {
  readonly key: string;
  readonly tokenIds: readonly number[];
  readonly slots: number[];
}

/** Feeds and fetches of a step over a number of rows, rewritten for each step. */
interface StepTensors {
  readonly rows: number;
  readonly revision: number;
  readonly tokens: Int32Array;
  readonly pastLengths: Int32Array;
  readonly totalLength: Int32Array;
  readonly inverseTemperatures: Float32Array;
  readonly feeds: Feeds;
  readonly fetches: Record<string, Tensor>;
  /** Computes the probabilities and the likeliest tokens. */
  readonly run: PreparedRun;
  readonly probabilities: LogitRows;
  /** Reused output buffer, sized for the most rows so far. */
  readonly probabilityMemory: Float32Array;
  readonly likeliest: BigInt64Array;
}

/**
 * Rows of one policy version, decoded together. Rows fill slots 0 … rowCount − 1; when one finishes, the last row moves
 * into its slot, so that every step computes live rows only.
 *
 * A prompt is computed once. Its beginning is taken from another prompt, which leaves the bits as they are, but never from
 * tokens that were sampled: keys and values computed in steps of one token have other bits than those of a prompt.
 */
export class DecodeBatch {
  readonly #parts: BatchParts;
  readonly #rows: Row[] = [];
  /** null = other rows since it was looked for. */
  #longest: number | null = null;
  #tensors: StepTensors | null = null;
  readonly #counts = { sampled: 0, promptTokens: 0, promptTokensComputed: 0 };

  /** Indexed by slot: the token to feed next, the row's length with it, and its temperature. */
  readonly #tokens = new Int32Array(decodeRowsMax);
  readonly #lengths = new Int32Array(decodeRowsMax).fill(1);
  readonly #inverseTemperatures = new Float32Array(decodeRowsMax).fill(1);

  constructor(parts: BatchParts) {
    this.#parts = parts;
  }

  get rowCount(): number {
    return this.#rows.length;
  }

  get rowIds(): number[] {
    return this.#rows.map(({ id }) => id);
  }

  /** The most positions any row may come to. */
  get longest(): number {
    return (this.#longest ??= longestOf(this.#rows));
  }

  /** Counts since the last call. */
  takeCounts(): { sampled: number; promptTokens: number; promptTokensComputed: number } {
    const counts = { ...this.#counts };
    Object.assign(this.#counts, { sampled: 0, promptTokens: 0, promptTokensComputed: 0 });
    return counts;
  }

  /** Takes rows in and samples their first tokens. */
  async prefill(rows: readonly Row[]): Promise<void> {
    if (rows.length === 0) return;
    const first = this.#rows.length;
    this.#parts.cache.reserve({
      rows: Math.max(this.#padded(first + rows.length), rowsMin),
      length: Math.max(this.longest, longestOf(rows)),
      keep: first,
    });
    for (const row of rows) this.#fillSlot(this.#rows.push(row) - 1, row.request);
    this.#longest = null;
    const missing: PromptGroup[] = [];
    for (const group of groupPrompts(this.#rows, first, this.#parts.promptPrefix)) {
      this.#counts.promptTokens += group.tokenIds.length * group.slots.length;
      const computed = this.#parts.prompts.get(group.key);
      if (computed) this.#continue(group, computed);
      else missing.push(group);
    }
    const whole: PromptGroup[] = [];
    for (const group of missing) if (!(await this.#extend(group))) whole.push(group);
    whole.sort((a, b) => a.tokenIds.length - b.tokenIds.length);
    for (const run of splitByPositions(whole, this.#parts.limits)) await this.#compute(run);
    this.removeFinished();
  }

  /** Samples one more token for every row. */
  async step(): Promise<void> {
    if (this.#rows.length === 0) return;
    const rows = this.#padded(this.#rows.length);
    if (this.#rows.length < rows) this.#parkSlot(rows - 1);
    const tensors = this.#stepTensors(rows);
    this.#writeFeeds(tensors);
    const { sessions } = this.#parts;
    let logits: LogitRows | null = null;
    if (this.#rows.some((row) => row.chooser.needsLogits)) {
      const output = await this.#run(sessions.step, rows, tensors.feeds, {
        ...tensors.fetches,
        [sessions.logits.step]: null,
      });
      logits = this.#matrix(output[sessions.logits.step]);
    } else if (this.#parts.isHere(rows)) tensors.run.here();
    else await tensors.run.aside();
    this.#rows.forEach(({ chooser, isDropped }, slot) => {
      if (isDropped) return;
      const choice =
        logits && chooser.needsLogits
          ? chooser.fromLogits(logits, slot)
          : chooser.fromProbabilities(tensors.probabilities, slot, Number(tensors.likeliest[slot]));
      this.#accept(slot, choice);
    });
    this.removeFinished();
  }

  /** Removed rows leave their slots to the last ones. */
  removeFinished(): void {
    for (let slot = 0; slot < this.#rows.length;) {
      if (!this.#rows[slot]!.isDropped) {
        slot++;
        continue;
      }
      const last = this.#rows.length - 1;
      if (slot < last) this.#moveSlot(last, slot);
      this.#rows.pop();
      this.#longest = null;
    }
  }

  #padded(rows: number): number {
    const { min, multiple } = this.#parts.sessions.rows;
    return Math.max(min, Math.ceil(rows / multiple) * multiple);
  }

  #fillSlot(slot: number, { promptTokenIds, temperature }: RowRequest): void {
    this.#lengths[slot] = promptTokenIds.length;
    this.#inverseTemperatures[slot] = temperature === 0 ? 1 : 1 / temperature;
  }

  /** Computes a prompt from another that shares its beginning; false without one. */
  async #extend(group: PromptGroup): Promise<boolean> {
    const { prefillCache, prompts, promptPrefix } = this.#parts;
    const { tokenIds } = group;
    if (tokenIds.length < sharedPositionsMin) return false;
    const found = prompts.nearest(promptPrefix, tokenIds);
    if (!found) return false;
    const { length } = tokenIds;
    const start = length - evenWidth(Math.max(1, length - found.sharedCount));
    if (start < sharedPositionsMin) return false;
    prefillCache.reserve({ rows: 1, length: tokenIds.length, keep: 0 });
    prefillCache.writeRow(0, found.prompt.keysValues, start, found.prompt.tokenIds.length);
    await this.#runPrefill([group], start);
    return true;
  }

  async #compute(groups: readonly PromptGroup[]): Promise<void> {
    const { prefillCache } = this.#parts;
    const length = evenWidth(Math.max(...groups.map((group) => group.tokenIds.length)));
    prefillCache.reserve({ rows: groups.length, length, keep: 0 });
    await this.#runPrefill(groups, 0);
  }

  /** Positions from `start` on, which is 0 unless there is a single group. */
  async #runPrefill(groups: readonly PromptGroup[], start: number): Promise<void> {
    const { prefillCache, sessions, prompts, config } = this.#parts;
    const { feeds, fetches } = prefillCache.tensors(groups.length);
    const prefill = prefillFeeds(groups, start);
    const output = await this.#run(
      sessions.prefill,
      prefill['tokens']!.size,
      { ...sessions.weights.prefill, ...feeds, ...prefill },
      { ...fetches, [sessions.logits.prefill]: null },
    );
    const { data } = this.#matrix(output[sessions.logits.prefill]);
    const memory = new PromptMemory();
    groups.forEach((group, i) => {
      const { key, tokenIds } = group;
      const logits = memory.take(config.vocabularySize);
      logits.set(data.subarray(i * config.vocabularySize, (i + 1) * config.vocabularySize));
      const keysValues = memory.take(rowFloats(config, tokenIds.length));
      const computed = { tokenIds, keysValues: prefillCache.readRow(i, tokenIds.length, keysValues), logits };
      prompts.set(key, computed);
      this.#counts.promptTokensComputed += tokenIds.length - start;
      this.#continue(group, computed);
    });
  }

  async #run(
    session: InferenceSession,
    positions: number,
    feeds: Feeds,
    fetches: Readonly<Record<string, Tensor | null>>,
  ): Promise<Record<string, Tensor>> {
    return this.#parts.isHere(positions) ? session.runHere(feeds, fetches) : session.run(feeds, fetches);
  }

  /** First tokens of the rows that share a prompt. */
  #continue({ tokenIds, slots }: PromptGroup, { keysValues, logits }: ComputedPrompt): void {
    const row = { data: logits, vocabularySize: logits.length };
    for (const slot of slots) {
      this.#parts.cache.writeRow(slot, keysValues, tokenIds.length);
      this.#accept(slot, this.#rows[slot]!.chooser.fromLogits(row, 0));
    }
  }

  #matrix(tensor: Tensor | undefined): LogitRows {
    const data = tensor?.data;
    assert(data instanceof Float32Array, 'a decode graph gives logits');
    return { data, vocabularySize: this.#parts.config.vocabularySize };
  }

  #stepTensors(rows: number): StepTensors {
    const { cache, sessions, config } = this.#parts;
    const made = this.#tensors;
    if (made?.rows === rows && made.revision === cache.revision) return made;
    const { feeds, fetches } = cache.tensors(rows);
    const tokens = new Int32Array(rows);
    const pastLengths = new Int32Array(rows);
    const totalLength = new Int32Array(1);
    const inverseTemperatures = new Float32Array(rows);
    const shape = [rows, config.vocabularySize];
    // Memory of a step of more rows serves fewer: a new piece for every row that ends would wait for the collector.
    const size = rows * config.vocabularySize;
    const fits = made !== null && made.probabilityMemory.length >= size;
    const probabilityMemory = fits ? made.probabilityMemory : new Float32Array(size);
    const probabilities = { data: probabilityMemory.subarray(0, size), vocabularySize: config.vocabularySize };
    const stepFeeds = {
      ...sessions.weights.step,
      ...feeds,
      tokens: ints(tokens, [rows, 1]),
      past_lengths: ints(pastLengths, [rows]),
      total_length: ints(totalLength, []),
      inverse_temperature: floats(inverseTemperatures, [rows, 1]),
    };
    const likeliest = new BigInt64Array(rows);
    const stepFetches = {
      ...fetches,
      [probabilitiesName]: floats(probabilities.data, shape),
      [likeliestName]: longs(likeliest, [rows]),
    };
    this.#tensors = {
      rows,
      revision: cache.revision,
      tokens,
      pastLengths,
      totalLength,
      inverseTemperatures,
      probabilities,
      probabilityMemory,
      likeliest,
      feeds: stepFeeds,
      fetches: stepFetches,
      run: sessions.step.prepare(stepFeeds, stepFetches),
    };
    return this.#tensors;
  }

  #writeFeeds({ rows, tokens, pastLengths, totalLength, inverseTemperatures }: StepTensors): void {
    let longest = 0;
    for (let slot = 0; slot < rows; slot++) {
      const length = this.#lengths[slot]!;
      longest = Math.max(longest, length);
      tokens[slot] = this.#tokens[slot]!;
      pastLengths[slot] = length - 1;
      inverseTemperatures[slot] = this.#inverseTemperatures[slot]!;
    }
    totalLength[0] = longest;
  }

  #accept(slot: number, choice: SampledToken): void {
    const row = this.#rows[slot]!;
    const { request } = row;
    row.sampledCount++;
    this.#tokens[slot] = choice.tokenId;
    this.#lengths[slot] = request.promptTokenIds.length + row.sampledCount;
    this.#counts.sampled++;
    this.#parts.events.token(row.id, choice);
    const isStop = !request.ignoreEnd && request.stopTokenIds.includes(choice.tokenId);
    if (row.isDropped || (!isStop && row.sampledCount < request.maxTokens)) return;
    row.isDropped = true;
    this.#parts.events.end(row.id, isStop ? 'stop' : 'length');
  }

  #moveSlot(from: number, to: number): void {
    this.#parts.cache.moveRow(from, to);
    this.#rows[to] = this.#rows[from]!;
    for (const values of [this.#tokens, this.#lengths, this.#inverseTemperatures]) values[to] = values[from]!;
  }

  /** A slot that pads the batch: token 0 at the first position. */
  #parkSlot(slot: number): void {
    this.#tokens[slot] = 0;
    this.#lengths[slot] = 1;
    this.#inverseTemperatures[slot] = 1;
  }
}

function longestOf(rows: readonly Row[]): number {
  return rows.reduce((longest, { request }) => Math.max(longest, rowLengthMax(request)), 0);
}

/** Groups the slots from `first` on by prompt. */
function groupPrompts(rows: readonly Row[], first: number, prefix: string): PromptGroup[] {
  const groups = new Map<string, PromptGroup>();
  for (let slot = first; slot < rows.length; slot++) {
    const tokenIds = rows[slot]!.request.promptTokenIds;
    const key = prefix + tokenIds.join();
    const group = groups.get(key);
    if (group) group.slots.push(slot);
    else groups.set(key, { key, tokenIds, slots: [slot] });
  }
  return [...groups.values()];
}

/** Groups in order, as many per run as their padded positions and their logits allow. They come sorted by length. */
function splitByPositions(
  groups: readonly PromptGroup[],
  { prefillPositionsMax, rowsMax }: BatchParts['limits'],
): PromptGroup[][] {
  const runs: PromptGroup[][] = [];
  for (const group of groups) {
    const run = runs.at(-1);
    const fits = run && run.length < rowsMax && (run.length + 1) * group.tokenIds.length <= prefillPositionsMax;
    if (fits) run.push(group);
    else runs.push([group]);
  }
  return runs;
}

/** A single prompt is a batch of one: the rows of its matrix products are its positions. */
function prefillFeeds(groups: readonly PromptGroup[], start: number): Record<string, Tensor> {
  const batch = groups.length;
  const width = evenWidth(Math.max(...groups.map(({ tokenIds }) => tokenIds.length)) - start);
  const tokens = new Int32Array(batch * width);
  const pastLengths = new Int32Array(batch);
  // At least two rows of logits: one alone takes the path of a single row through the output layer.
  const last = new BigInt64Array(Math.max(batch, rowsMin));
  for (const [i, { tokenIds }] of groups.entries()) {
    tokens.set(tokenIds.slice(start), i * width);
    pastLengths[i] = tokenIds.length - 1;
    last[i] = BigInt(i * width + tokenIds.length - start - 1);
  }
  return {
    tokens: ints(tokens, [batch, width]),
    past_lengths: ints(pastLengths, [batch]),
    total_length: ints(Int32Array.of(start + width), []),
    last: longs(last, [last.length]),
  };
}

/**
 * Positions of a prefill run, so that no matrix product has a single row, which gives other bits than among others: neither
 * the layers' nor those of the attention kernel, which takes positions in blocks (of an even size, twice a head's as a
 * rule) and the rest by themselves.
 */
function evenWidth(positions: number): number {
  return positions + (positions % 2);
}

/**
 * A prompt takes its beginning from another when they share this many tokens: such prompts are computed one by one, since
 * the attention kernel knows a past before several new positions for a batch of one alone.
 */
const sharedPositionsMin = 64;
