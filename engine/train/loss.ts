import type { Graph, Value } from '../onnx/graph.ts';
import {
  absolute,
  add,
  exponential,
  isGreater,
  largest,
  minimum,
  multiply,
  negate,
  stopGradient,
  subtract,
  sum,
  type TokenLogprobs,
} from '../onnx/operators.ts';

export interface Loss {
  readonly loss: Value;
  /** Sums, in the order of graphMetrics after the loss. */
  readonly metrics: readonly Value[];
}

/** −Σ m ℓ / Σ m. */
export function supervisedLoss(graph: Graph, logprobs: TokenLogprobs): Loss {
  const mask = vector(graph, 'mask');
  const loss = batchMean(graph, negate(sum(multiply(mask, logprobs.tokens), [0])));
  return { loss, metrics: [entropySum(logprobs, mask)] };
}

/**
 * CISPO (MiniMax-M1, 2025, eq. 4): −m · sg(min(ρ, c_hi)) · A · ℓ with ρ = exp(ℓ − μ); no lower clip. With a reference r
 * also β · m · (exp(d) − d − 1), d = log π_r − ℓ (Schulman, Approximating KL divergence, 2020, estimator k3).
 */
export function policyLoss(graph: Graph, logprobs: TokenLogprobs, kind: 'cispo' | 'cispo_kl'): Loss {
  const mask = vector(graph, 'mask');
  const clipHigh = graph.input('clip_high', 'float32', []);
  const difference = stopGradient(subtract(logprobs.tokens, vector(graph, 'behavior_logprobs')));
  const ratio = exponential(difference);
  const weight = multiply(multiply(minimum(ratio, clipHigh), vector(graph, 'advantages')), mask);
  const objective = negate(sum(multiply(weight, logprobs.tokens), [0]));
  const masked = (value: Value): Value => sum(multiply(mask, value), [0]);
  const metrics = [
    entropySum(logprobs, mask),
    masked(subtract(subtract(ratio, 1), difference)),
    masked(isGreater(ratio, clipHigh)),
    masked(ratio),
    largest(multiply(mask, absolute(difference))),
  ];
  if (kind === 'cispo') return { loss: batchMean(graph, objective), metrics };
  const divergence = klSum(graph, logprobs.tokens, mask);
  const penalty = multiply(divergence, graph.input('beta', 'float32', []));
  return { loss: batchMean(graph, add(objective, penalty)), metrics: [...metrics, stopGradient(divergence)] };
}

function klSum(graph: Graph, logprobs: Value, mask: Value): Value {
  const difference = subtract(vector(graph, 'reference_logprobs'), logprobs);
  const estimate = subtract(subtract(exponential(difference), difference), 1);
  return sum(multiply(mask, estimate), [0]);
}

function entropySum(logprobs: TokenLogprobs, mask: Value): Value {
  const negative = sum(multiply(logprobs.probabilities(), logprobs.vocabulary), [1]);
  return negate(sum(multiply(mask, negative), [0]));
}

/** A sum over this graph's tokens, divided by the mask's total over the whole batch. */
function batchMean(graph: Graph, total: Value): Value {
  return multiply(total, graph.input('inverse_mask_total', 'float32', []));
}

function vector(graph: Graph, name: string): Value {
  return graph.input(name, 'float32', ['selected']);
}
