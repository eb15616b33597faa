/** Reference sampling from the papers and vLLM's documentation, in double precision and without optimization. */
import { uniform } from '../../core/random.ts';
import type { SequenceRequest } from '../../engine/sample/sequence-request.ts';

export interface PlainDraw {
  readonly tokenId: number;
  readonly logprob: number;
  readonly samplingLogprob: number;
  /** Probability of every token, after all modifications. */
  readonly probabilities: readonly number[];
  /** Sums of probabilities, in descending order, of which topP cut one. */
  readonly sums: readonly number[];
}

export function plainDraw(logits: readonly number[], request: SequenceRequest, output: readonly number[]): PlainDraw {
  const temperature = request.temperature === 0 ? 1 : request.temperature;
  const scores = penalized(logits, request, output);
  const cut = request.temperature === 0 ? { kept: scores, sums: [] } : truncated(scores, temperature, request);
  const probabilities = softmax(cut.kept.map((score) => score / temperature));
  const tokenId =
    request.temperature === 0
      ? scores.indexOf(Math.max(...scores))
      : invert(probabilities, uniform(request.seed, output.length));
  return {
    tokenId,
    logprob: Math.log(softmax(logits.map((logit) => logit / temperature))[tokenId]!),
    samplingLogprob: Math.log(probabilities[tokenId]!),
    probabilities,
    sums: cut.sums,
  };
}

function penalized(logits: readonly number[], request: SequenceRequest, output: readonly number[]): number[] {
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = request;
  const mayStop = request.ignoreEnd || output.length >= (request.minTokens ?? 0);
  return logits.map((logit, id) => {
    if (request.allowedTokenIds && !request.allowedTokenIds.includes(id)) return -Infinity;
    if (!mayStop && request.stopTokenIds.includes(id)) return -Infinity;
    let score = logit + (request.logitBias?.get(id) ?? 0);
    const count = output.filter((each) => each === id).length;
    if (count > 0 || request.promptTokenIds.includes(id)) {
      score = score > 0 ? score / repetitionPenalty : score * repetitionPenalty;
    }
    score -= frequencyPenalty * count;
    if (count > 0) score -= presencePenalty;
    return score;
  });
}

function truncated(
  scores: readonly number[],
  temperature: number,
  { topP = 1, topK = 0, minP = 0 }: SequenceRequest,
): { kept: number[]; sums: number[] } {
  let kept = [...scores];
  const probabilities = (): number[] => softmax(kept.map((score) => score / temperature));
  const likeliest = Math.max(...probabilities());
  const first = probabilities();
  kept = kept.map((score, id) => (first[id]! >= minP * likeliest ? score : -Infinity));
  if (topK > 0 && topK < kept.length) {
    const smallest = kept.toSorted((a, b) => b - a)[topK - 1]!;
    kept = kept.map((score) => (score >= smallest ? score : -Infinity));
  }
  const sums: number[] = [];
  if (topP < 1) {
    const second = probabilities();
    const order = second.map((_, id) => id).toSorted((a, b) => second[b]! - second[a]! || a - b);
    let before = 0;
    for (const id of order) {
      if (before >= topP) kept[id] = -Infinity;
      before += second[id]!;
      sums.push(before);
    }
  }
  return { kept, sums };
}

function softmax(scores: readonly number[]): number[] {
  const largest = Math.max(...scores);
  const weights = scores.map((score) => Math.exp(score - largest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
}

function invert(probabilities: readonly number[], u: number): number {
  let sum = 0;
  for (const [id, probability] of probabilities.entries()) {
    sum += probability;
    if (sum > u) return id;
  }
  return probabilities.findLastIndex((probability) => probability > 0);
}
