import assert from 'node:assert/strict';
import { RatchetError } from '../../core/errors.ts';
import { losses, type PolicyLossType } from '../../core/rl/losses.ts';
import type { TokenLogprobs } from '../onnx/composites.ts';
import type { Graph, Value } from '../onnx/graph.ts';
import {
  absolute,
  add,
  exponential,
  isGreater,
  largest,
  matmul,
  minimum,
  multiply,
  negate,
  reshape,
  selectRows,
  stopGradient,
  subtract,
  sum,
} from '../onnx/operators.ts';

/** Inputs of a loss. Vectors are [selected]: one element per token that carries loss. */
export interface LossContext {
  /** ℓ = log softmax(logits / temperature) of each token under the weights in training. Carries the gradient. */
  readonly logprobs: Value;
  /** μ: log probabilities under the weights that sampled the token. */
  readonly behaviorLogprobs: Value;
  readonly advantages: Value;
  readonly mask: Value;
  /** Scalars: the bounds of the ratio; those of the mask in importance_sampling, dppo and ipo. */
  readonly clipLow: Value;
  readonly clipHigh: Value;
  /** Scalar: the weight of (ln ρ)² in dppo, ipo and dro. */
  readonly klTau: Value;
  /** Scalar: the largest weight that a ratio gives a token; null if the loss has no such cap. */
  readonly ratioMax: Value | null;
  /** Mean of ℓ − μ over the row of each token, without gradient; null in losses that do not request it. */
  readonly rowDifferences: Value | null;
  /** Log probabilities under the reference policy; null when the step has none. Its KL term is added by the trainer. */
  readonly referenceLogprobs: Value | null;
  /** Operators that a custom loss may use. */
  readonly operators: LossOperators;
}

/** The loss of each token, [selected]. Weighting by mask and aggregation, and the sum, are the trainer's. */
export type TokenLoss = (context: LossContext) => Value;

interface LossOperators {
  readonly add: typeof add;
  readonly subtract: typeof subtract;
  readonly multiply: typeof multiply;
  readonly negate: typeof negate;
  readonly exponential: typeof exponential;
  /** Throws for values with gradient: stop it first. */
  readonly minimum: typeof minimum;
  readonly maximum: typeof maximum;
  readonly absolute: typeof absolute;
  /** 1 where a > b, else 0; no gradient. */
  readonly isGreater: typeof isGreater;
  /** sg(·) in papers. */
  readonly stopGradient: typeof stopGradient;
}

const lossOperators: LossOperators = {
  add,
  subtract,
  multiply,
  negate,
  exponential,
  minimum,
  maximum,
  absolute,
  isGreater,
  stopGradient,
};

/** Our policy gradient losses; formulas: LossSpec. */
export const tokenLosses: Readonly<Record<Exclude<PolicyLossType, 'custom'>, TokenLoss>> = {
  cispo({ logprobs, behaviorLogprobs, advantages, clipHigh }) {
    const ratio = boundedExponential(stopGradient(subtract(logprobs, behaviorLogprobs)));
    return negate(multiply(multiply(minimum(ratio, clipHigh), advantages), logprobs));
  },

  /**
   * min() passes the gradient of the smaller branch and clip() none outside its bounds, so a token has the gradient of
   * ρ·A unless its clipped branch is the smaller one.
   */
  grpo(context) {
    const { advantages, ratioMax } = context;
    assert(ratioMax, 'the loss caps its ratios');
    const cut = isCut(context, ratioOf(context));
    const clipped = multiply(clippedRatio(context, ratioOf(context)), advantages);
    const kept = multiply(subtract(cut, 1), multiply(cappedRatio(context, { isLeftOut: cut, ratioMax }), advantages));
    return subtract(kept, multiply(cut, clipped));
  },

  /** Tokens outside the mask still count in the aggregation's denominator. */
  importance_sampling(context) {
    const { low, high } = outsideMask(context);
    const isLeftOut = add(low, high);
    return multiply(subtract(isLeftOut, 1), multiply(ratioWhereKept(context, isLeftOut), context.advantages));
  },

  dppo: (context) => trustRegionLoss(context, movedApart(context, 'dppo')),

  ipo: (context) => trustRegionLoss(context, movedApart(context, 'ipo')),

  /** Every token of a row has the row's ratio, and a gradient through its own ρ alone: sg(s / ρ) · ρ. */
  gspo(context) {
    const { logprobs, advantages } = context;
    const cut = isCut(context, rowRatio(context));
    const clipped = multiply(clippedRatio(context, rowRatio(context)), advantages);
    const ratio = multiply(rowRatio(context), exponential(subtract(logprobs, stopGradient(logprobs))));
    return subtract(multiply(subtract(cut, 1), multiply(ratio, advantages)), multiply(cut, clipped));
  },

  dro({ logprobs, behaviorLogprobs, advantages, klTau }) {
    const difference = subtract(logprobs, behaviorLogprobs);
    return subtract(multiply(klTau, multiply(difference, difference)), multiply(advantages, logprobs));
  },
};

/** A loss summed over this graph's tokens, with the metrics that go with it. */
interface Loss {
  readonly loss: Value;
  /** Sums, in the order of metricNames after the loss. */
  readonly metrics: readonly Value[];
  /** Σ p log p of each token's distribution, [selected]; null if unknown. */
  readonly negativeEntropies: Value | null;
}

/** Log probabilities of the tokens, and those of the whole vocabulary if they are computed here. */
type KnownLogprobs = Pick<TokenLogprobs, 'tokens'> & Partial<TokenLogprobs>;

/** −Σ w ℓ / normalizer. */
export function supervisedLoss(graph: Graph, logprobs: KnownLogprobs): Loss {
  const mask = vector(graph, 'mask');
  const loss = normalized(graph, negate(sum(multiply(vector(graph, 'weights'), logprobs.tokens), [0])));
  const nll = negate(sum(multiply(mask, stopGradient(logprobs.tokens)), [0]));
  const negativeEntropies = negativeEntropiesOf(logprobs);
  return { loss, metrics: [entropySum(negativeEntropies, mask), nll], negativeEntropies };
}

/**
 * Σ w (loss of the token + β · k3) / normalizer, with the k3 estimate exp(d) − d − 1, d = log π_r − ℓ, of the
 * divergence from a reference r if there is one (Schulman, Approximating KL divergence, 2020). An entropy bonus
 * subtracts entropyCoef · Σ m H / Σ m over the batch, H = −Σ p log p of the position.
 */
export function policyLoss(
  graph: Graph,
  logprobs: KnownLogprobs,
  options: {
    readonly type: PolicyLossType;
    readonly tokenLoss: TokenLoss;
    readonly hasReference: boolean;
    readonly hasEntropyBonus: boolean;
    /** The graph sees all tokens of its rows; otherwise figures of whole rows are inputs. */
    readonly seesRows: boolean;
  },
): Loss {
  const { type, tokenLoss, hasReference, hasEntropyBonus, seesRows } = options;
  const weights = vector(graph, 'weights');
  const behaviorLogprobs = vector(graph, 'behavior_logprobs');
  const context: LossContext = {
    logprobs: logprobs.tokens,
    behaviorLogprobs,
    advantages: taughtAdvantages(graph, logprobs.tokens),
    mask: vector(graph, 'mask'),
    clipLow: graph.input('clip_low', 'float32', []),
    clipHigh: graph.input('clip_high', 'float32', []),
    klTau: graph.input('kl_tau', 'float32', []),
    ratioMax: losses[type].capsRatios ? graph.input('ratio_max', 'float32', []) : null,
    rowDifferences: losses[type].comparesRows
      ? seesRows
        ? meansOfRows(graph, stopGradient(subtract(logprobs.tokens, behaviorLogprobs)))
        : vector(graph, 'row_differences')
      : null,
    referenceLogprobs: hasReference ? vector(graph, 'reference_logprobs') : null,
    operators: lossOperators,
  };
  const objective = sum(multiply(weights, tokenLoss(context)), [0]);
  const negativeEntropies = negativeEntropiesOf(logprobs);
  const metrics = policyMetrics(graph, context, type, negativeEntropies);
  const rewarded = (loss: Value): Value =>
    hasEntropyBonus ? subtract(loss, entropyBonus(graph, logprobs, context.mask)) : loss;
  if (!context.referenceLogprobs) return { loss: rewarded(normalized(graph, objective)), metrics, negativeEntropies };
  const divergence = k3(context.referenceLogprobs, logprobs.tokens);
  const penalty = multiply(sum(multiply(weights, divergence), [0]), graph.input('beta', 'float32', []));
  return {
    loss: rewarded(normalized(graph, add(objective, penalty))),
    metrics: [...metrics, sum(multiply(context.mask, stopGradient(divergence)), [0])],
    negativeEntropies,
  };
}

/** `entropy_weight` is the coefficient over Σ m of the whole batch. */
function entropyBonus(graph: Graph, { entropies }: KnownLogprobs, mask: Value): Value {
  assert(entropies, 'the distributions are known');
  return multiply(sum(multiply(mask, entropies()), [0]), graph.input('entropy_weight', 'float32', []));
}

/** A user's loss that refuses to give anything but one number per token that the weights can be trained by. */
export function checkedLoss(loss: (context: LossContext) => unknown, path: string): TokenLoss {
  const expected = `${path}, the custom loss, must give one number per token, a float32 value of shape [selected]`;
  const refuse = (message: string): never => {
    throw new RatchetError('Unsupported', message);
  };
  return (context) => {
    const { logprobs } = context;
    const value = computed(loss, context, path);
    if (!isValue(value)) return refuse(`${expected}; it gave ${value == null ? String(value) : `a ${typeof value}`}.`);
    if (value.shape.join() !== logprobs.shape.join() || value.type !== logprobs.type)
      return refuse(`${expected}; it gave [${value.shape.join(', ')}] of ${value.type}.`);
    if (value.graph !== logprobs.graph)
      return refuse(`${expected}, made by the operators it is called with; this one is of another graph.`);
    if (!value.needsGradient)
      return refuse(`${expected}, that depends on logprobs without stopGradient: nothing would be trained.`);
    return value;
  };
}

function computed(loss: (context: LossContext) => unknown, context: LossContext, path: string): unknown {
  try {
    return loss(context);
  } catch (cause) {
    throw new RatchetError(
      'Unsupported',
      `${path}, the custom loss, failed while its graph was built: ${String(cause)}`,
      { cause },
    );
  }
}

function isValue(given: unknown): given is Value {
  return (
    typeof given === 'object' && given !== null && 'graph' in given && 'shape' in given && 'needsGradient' in given
  );
}

function policyMetrics(
  graph: Graph,
  context: LossContext,
  type: PolicyLossType,
  negativeEntropies: Value | null,
): Value[] {
  const { mask } = context;
  const difference = stopGradient(subtract(context.logprobs, vector(graph, 'sampled_logprobs')));
  const ratio = boundedExponential(difference);
  const masked = (value: Value): Value => sum(multiply(mask, value), [0]);
  const { low, high } = clippedTokens(context, type);
  return [
    entropySum(negativeEntropies, mask),
    masked(subtract(subtract(ratio, 1), difference)),
    low ? masked(low) : graph.scalar(0),
    high ? masked(high) : graph.scalar(0),
    masked(ratio),
    largest(multiply(mask, absolute(difference))),
  ];
}

/** 1 for tokens whose ratio is below the lower bound, or above the upper one. */
function outsideMask(context: LossContext): { low: Value; high: Value } {
  const ratio = ratioOf(context);
  return { low: isGreater(context.clipLow, ratio), high: isGreater(ratio, context.clipHigh) };
}

/**
 * 1 for tokens whose probability has left its bounds, downwards and upwards: in ipo all of them, in dppo those that
 * their advantage pushes further.
 */
function movedApart(context: LossContext, type: 'dppo' | 'ipo'): { low: Value; high: Value } {
  const { logprobs, behaviorLogprobs, advantages, clipLow, clipHigh } = context;
  const moved = subtract(exponential(stopGradient(logprobs)), exponential(behaviorLogprobs));
  const [low, high] = [isGreater(negate(clipLow), moved), isGreater(moved, clipHigh)];
  if (type === 'ipo') return { low, high };
  const isPushedUp = isGreater(advantages, advantages.graph.scalar(0));
  return { low: multiply(low, subtract(high.graph.scalar(1), isPushedUp)), high: multiply(high, isPushedUp) };
}

/** −ρ·A of the tokens that are kept, and τ (ln ρ)² of all. */
function trustRegionLoss(context: LossContext, { low, high }: { low: Value; high: Value }): Value {
  const { logprobs, behaviorLogprobs, advantages, klTau, ratioMax } = context;
  const difference = subtract(logprobs, behaviorLogprobs);
  const isLeftOut = add(low, high);
  const ratio = ratioMax ? cappedRatio(context, { isLeftOut, ratioMax }) : ratioWhereKept(context, isLeftOut);
  const gain = multiply(subtract(isLeftOut, 1), multiply(ratio, advantages));
  return add(gain, multiply(klTau, multiply(difference, difference)));
}

/** min(ρ, cap) with gradient min(ρ, cap) · ∇ℓ: a token beyond the cap still learns, with the cap as its weight. */
function cappedRatio(context: LossContext, { isLeftOut, ratioMax }: { isLeftOut: Value; ratioMax: Value }): Value {
  const { logprobs } = context;
  const weight = minimum(stopGradient(ratioWhereKept(context, isLeftOut)), ratioMax);
  return multiply(weight, exponential(subtract(logprobs, stopGradient(logprobs))));
}

/** 1 for tokens affected by clipping or a mask, from below and from above; null if the loss has neither. */
function clippedTokens(context: LossContext, type: PolicyLossType): { low: Value | null; high: Value | null } {
  const { advantages, clipHigh } = context;
  const { bounds, comparesRows } = losses[type];
  if (bounds === null) return { low: null, high: null };
  if (bounds === 'cap') return { low: null, high: isGreater(ratioOf(context), clipHigh) };
  if (bounds === 'mask') return outsideMask(context);
  if (bounds === 'move') return movedApart(context, type === 'ipo' ? type : 'dppo');
  const cut = isCut(context, comparesRows ? rowRatio(context) : ratioOf(context));
  const high = isGreater(advantages, advantages.graph.scalar(0));
  return { low: multiply(cut, subtract(high.graph.scalar(1), high)), high: multiply(cut, high) };
}

/** 1 if clip(ρ)·A < ρ·A: the ratio has left its bounds in the direction of its advantage. */
function isCut(context: LossContext, ratio: Value): Value {
  const { advantages } = context;
  return isGreater(multiply(ratio, advantages), multiply(clippedRatio(context, ratio), advantages));
}

/** s = exp(mean over the row of ℓ − μ). */
function rowRatio({ rowDifferences }: LossContext): Value {
  assert(rowDifferences, 'the loss compares rows');
  return boundedExponential(rowDifferences);
}

/**
 * Replaces each token's value by the mean over its row. `row_shares` [rows, selected] has the tokens' shares in their
 * rows; `row_of` [selected] has the row of each token.
 */
function meansOfRows(graph: Graph, values: Value): Value {
  const shares = graph.input('row_shares', 'float32', ['rows', 'selected']);
  const rowOf = graph.input('row_of', 'int64', ['selected']);
  const means = matmul(shares, reshape(values, ['selected', 1]));
  return reshape(selectRows(means, rowOf), ['selected']);
}

/** advantage_tau · A + teacher_tau · w · sg(log π_T − ℓ), with a teacher's log probabilities and the correction w for the sampler, which A has already. */
function taughtAdvantages(graph: Graph, logprobs: Value): Value {
  const own = vector(graph, 'advantages');
  const lead = subtract(vector(graph, 'teacher_logprobs'), stopGradient(logprobs));
  return add(own, multiply(vector(graph, 'teacher_weights'), lead));
}

function ratioOf({ logprobs, behaviorLogprobs }: LossContext): Value {
  return boundedExponential(stopGradient(subtract(logprobs, behaviorLogprobs)));
}

/** ρ, with its gradient, of kept tokens with an advantage; 1 of others, whose ρ may be infinite: 0 · ∞ is NaN. */
function ratioWhereKept({ logprobs, behaviorLogprobs, advantages }: LossContext, isLeftOut: Value): Value {
  const hasAdvantage = isGreater(absolute(stopGradient(advantages)), advantages.graph.scalar(0));
  const isKept = multiply(add(negate(isLeftOut), 1), hasAdvantage);
  return exponential(multiply(isKept, subtract(logprobs, behaviorLogprobs)));
}

/** exp(x) of a value without gradient, finite as float32 and so in sums, too. */
function boundedExponential(value: Value): Value {
  return exponential(minimum(value, value.graph.scalar(80)));
}

function clippedRatio({ clipLow, clipHigh }: LossContext, ratio: Value): Value {
  return maximum(minimum(ratio, clipHigh), clipLow);
}

/** Elementwise maximum of values that carry no gradient. */
function maximum(a: Value, b: Value): Value {
  assert(!a.needsGradient && !b.needsGradient, 'maximum has no gradient: stop it first');
  return negate(minimum(negate(a), negate(b)));
}

function k3(referenceLogprobs: Value, logprobs: Value): Value {
  const difference = subtract(referenceLogprobs, logprobs);
  return subtract(subtract(exponential(difference), difference), 1);
}

/** 0 if the distributions are unknown. */
function negativeEntropiesOf({ vocabulary, probabilities }: KnownLogprobs): Value | null {
  return vocabulary && probabilities ? sum(multiply(probabilities(), vocabulary), [1]) : null;
}

function entropySum(negativeEntropies: Value | null, mask: Value): Value {
  return negativeEntropies === null ? mask.graph.scalar(0) : negate(sum(multiply(mask, negativeEntropies), [0]));
}

/** A sum over this graph's tokens, divided by the normalizer of the whole batch. */
function normalized(graph: Graph, total: Value): Value {
  return multiply(total, graph.input('inverse_normalizer', 'float32', []));
}

function vector(graph: Graph, name: string): Value {
  return graph.input(name, 'float32', ['selected']);
}
