import { uniform } from '../../core/random.ts';
import { forbidsStopTokens, modifiesDistribution, type SequenceRequest } from './sequence-request.ts';

/** One sampled token. Log probabilities are 32-bit floats, natural logarithms. */
export interface SampledToken {
  readonly tokenId: number;
  /** Under softmax(logits / temperature). */
  readonly logprob: number;
  /** Under the distribution that was sampled. */
  readonly samplingLogprob: number;
}

/** Rows [count, vocabulary] of a matrix that a graph gave. */
export interface LogitRows {
  readonly data: Float32Array;
  readonly vocabularySize: number;
}

/**
 * Draws the tokens of one row. Every draw is by inversion in ascending order of token ids: the token is the first at
 * which the running sum of probabilities exceeds uniform(seed, t), t = tokens sampled before it.
 *
 * A row that asks for softmax(logits / temperature) alone draws from probabilities that the graph made, and a greedy one takes the
 * token that the graph found; any other, and every row's first token, is drawn from the logits in double precision. Which of the two depends on the request and t
 * only, so that a row's tokens do not depend on its neighbours.
 */
export class TokenChooser {
  readonly #request: SequenceRequest;
  readonly #modifiesAlways: boolean;
  readonly #allowed: ReadonlySet<number> | null;
  /** Occurrences in the output, and 0 for tokens of the prompt alone; only kept for penalties. */
  readonly #occurrences = new Map<number, number>();
  #t = 0;

  constructor(request: SequenceRequest) {
    this.#request = request;
    this.#modifiesAlways = modifiesDistribution({ ...request, minTokens: 0 });
    this.#allowed = request.allowedTokenIds ? new Set(request.allowedTokenIds) : null;
    if (this.#isPenalized) for (const id of request.promptTokenIds) this.#occurrences.set(id, 0);
  }

  /** Whether the next token is drawn from logits. */
  get needsLogits(): boolean {
    return this.#t === 0 || this.#modifies;
  }

  /** Draws from softmax(logits / temperature), which the graph computed: row `row` of the probabilities. Greedy rows take `likeliest`. */
  fromProbabilities(probabilities: LogitRows, row: number, likeliest: number): SampledToken {
    const { data, vocabularySize } = probabilities;
    const start = row * vocabularySize;
    const { temperature, seed } = this.#request;
    const tokenId = temperature === 0 ? likeliest : drawn(data, start, start + vocabularySize, uniform(seed, this.#t));
    const logprob = Math.fround(Math.log(data[start + tokenId]!));
    return this.#chosen({ tokenId, logprob, samplingLogprob: logprob });
  }

  fromLogits(logits: LogitRows, row: number): SampledToken {
    const { vocabularySize, data } = logits;
    const { original, weights } = scratchOf(vocabularySize);
    original.set(data.subarray(row * vocabularySize, (row + 1) * vocabularySize));
    const { temperature, seed } = this.#request;
    const isGreedy = temperature === 0;
    const scale = isGreedy ? 1 : 1 / temperature;
    const scores = this.#modifies ? this.#penalized(original) : original;
    writeExponentials(scores, scale, weights);
    if (this.#modifies && !isGreedy) truncate(weights, this.#request);
    const tokenId = isGreedy ? largestIndex(scores) : draw(weights, uniform(seed, this.#t));
    const samplingLogprob = logOfShare(weights, tokenId);
    const logprob = this.#modifies ? logSoftmax(original, scale, tokenId) : samplingLogprob;
    return this.#chosen({ tokenId, logprob, samplingLogprob });
  }

  get #modifies(): boolean {
    return this.#modifiesAlways || forbidsStopTokens(this.#request, this.#t);
  }

  get #isPenalized(): boolean {
    const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = this.#request;
    return repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
  }

  #chosen(choice: SampledToken): SampledToken {
    this.#t++;
    if (this.#isPenalized) this.#occurrences.set(choice.tokenId, (this.#occurrences.get(choice.tokenId) ?? 0) + 1);
    return choice;
  }

  /** Allowed tokens, minTokens, bias, then penalties, in vLLM's order. */
  #penalized(original: Float64Array): Float64Array {
    const { logitBias, stopTokenIds, repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = this.#request;
    const scores = this.#allowed ? onlyAllowed(original, this.#allowed) : original.slice();
    if (forbidsStopTokens(this.#request, this.#t)) {
      for (const id of stopTokenIds) if (id >= 0 && id < scores.length) scores[id] = -Infinity;
    }
    for (const [id, bias] of logitBias ?? []) scores[id]! += bias;
    for (const [id, count] of this.#occurrences) {
      const score = scores[id]!;
      const repeated = score > 0 ? score / repetitionPenalty : score * repetitionPenalty;
      scores[id] = repeated - frequencyPenalty * count - (count > 0 ? presencePenalty : 0);
    }
    return scores;
  }
}

interface Truncation {
  readonly topP?: number;
  readonly topK?: number;
  readonly minP?: number;
}

/**
 * Sets the weights of tokens that may not be drawn to 0. `weights` are unnormalized probabilities whose largest is 1.
 * minP, topK and topP follow each other; each sees what the one before left, renormalized.
 */
export function truncate(weights: Float64Array, { topP = 1, topK = 0, minP = 0 }: Truncation): void {
  if (minP > 0) keepFrom(weights, minP);
  if (topK > 0 && topK < weights.length) keepFrom(weights, findEdge(weights, (count) => count >= topK).weight);
  if (topP < 1) keepNucleus(weights, topP);
}

/** The smallest set whose share reaches topP; among equals at its edge the smallest ids. */
function keepNucleus(weights: Float64Array, topP: number): void {
  const wanted = topP * sumOf(weights);
  const edge = findEdge(weights, (_, mass) => mass >= wanted);
  let room = edge.equals;
  for (let id = 0; id < weights.length; id++) {
    const weight = weights[id]!;
    if (weight < edge.weight || (weight === edge.weight && --room < 0)) weights[id] = 0;
  }
}

function keepFrom(weights: Float64Array, smallest: number): void {
  for (let id = 0; id < weights.length; id++) if (weights[id]! < smallest) weights[id] = 0;
}

interface Edge {
  readonly weight: number;
  /** Number of tokens with exactly that weight that belong to the set. */
  readonly equals: number;
}

/**
 * Takes weights in (0, 1] from the largest down until `isEnough` of their count and sum, and returns the last one; 0
 * when all are not enough. Weights fall into buckets by the exponent and three bits of the mantissa of their 32-bit
 * float, and only the last bucket is sorted: a pass over a large vocabulary costs at most a few nanoseconds a token.
 */
function findEdge(weights: Float64Array, isEnough: (count: number, mass: number) => boolean): Edge {
  const bits = new Uint32Array(new Float32Array(weights).buffer);
  const counts = new Int32Array(bucketCount);
  const masses = new Float64Array(bucketCount);
  for (let i = 0; i < weights.length; i++) {
    if (weights[i] === 0) continue;
    const bucket = bits[i]! >>> bucketShift;
    counts[bucket]!++;
    masses[bucket]! += weights[i]!;
  }
  let bucket = bucketCount - 1;
  let count = 0;
  let mass = 0;
  while (bucket >= 0 && !isEnough(count + counts[bucket]!, mass + masses[bucket]!)) {
    count += counts[bucket]!;
    mass += masses[bucket--]!;
  }
  if (bucket < 0) return { weight: 0, equals: weights.length };
  const members = weights.filter((weight, i) => weight > 0 && bits[i]! >>> bucketShift === bucket);
  members.sort().reverse();
  let last = 0;
  while (last < members.length - 1 && !isEnough(count + last + 1, (mass += members[last]!))) last++;
  const weight = members[last]!;
  return { weight, equals: last + 1 - members.indexOf(weight) };
}

const bucketShift = 20;
/** Up to the bucket of 1. */
const bucketCount = (0x3f800000 >>> bucketShift) + 1;

/** Index, relative to `start`, at which the running sum from `start` first exceeds u. */
function drawn(probabilities: Float32Array, start: number, end: number, u: number): number {
  let sum = 0;
  let i = start;
  while (i < end && !((sum += probabilities[i]!) > u)) i++;
  return i < end ? i - start : lastPossible(probabilities, start, end);
}

/** A sum of probabilities that ends a little below 1 leaves the rest to the last possible token. */
function lastPossible(probabilities: Float32Array, start: number, end: number): number {
  let i = end - 1;
  while (i > start && !(probabilities[i]! > 0)) i--;
  return i - start;
}

interface Scratch {
  readonly original: Float64Array;
  readonly weights: Float64Array;
}

let scratch: Scratch = { original: new Float64Array(0), weights: new Float64Array(0) };

/** Memory of one draw, which is over before the next one begins. */
function scratchOf(size: number): Scratch {
  if (scratch.original.length !== size) {
    scratch = { original: new Float64Array(size), weights: new Float64Array(size) };
  }
  return scratch;
}

/** exp(scale · (score − largest score)), so that the largest is 1. */
function writeExponentials(scores: Float64Array, scale: number, weights: Float64Array): void {
  const largest = scores[largestIndex(scores)]!;
  for (let i = 0; i < scores.length; i++) weights[i] = Math.exp(scale * (scores[i]! - largest));
}

function logSoftmax(scores: Float64Array, scale: number, index: number): number {
  const largest = scores[largestIndex(scores)]!;
  let sum = 0;
  for (let i = 0; i < scores.length; i++) sum += Math.exp(scale * (scores[i]! - largest));
  return Math.fround(scale * (scores[index]! - largest) - Math.log(sum));
}

function logOfShare(weights: Float64Array, index: number): number {
  return Math.fround(Math.log(weights[index]! / sumOf(weights)));
}

function draw(weights: Float64Array, u: number): number {
  const wanted = u * sumOf(weights);
  let sum = 0;
  for (let id = 0; id < weights.length; id++) {
    sum += weights[id]!;
    if (sum > wanted) return id;
  }
  return 0; // weights that are not numbers: the log probability is not a number either
}

/** Returns the first of equals. */
function largestIndex(values: Float64Array): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i]! > values[best]!) best = i;
  return best;
}

function sumOf(values: Float64Array): number {
  let sum = 0;
  for (let i = 0; i < values.length; i++) sum += values[i]!;
  return sum;
}

function onlyAllowed(scores: Float64Array, allowed: ReadonlySet<number>): Float64Array {
  const kept = new Float64Array(scores.length).fill(-Infinity);
  for (const id of allowed) kept[id] = scores[id]!;
  return kept;
}
