import type { ModelConfig } from '../model/config.ts';
import { decoderLogits, weightInputs } from '../model/decoder.ts';
import { gradients } from '../onnx/gradient.ts';
import { Graph, type Value } from '../onnx/graph.ts';
import { multiply, reshape, selectRows, stack, tokenLogprobs } from '../onnx/operators.ts';
import { causalAttention } from './attention.ts';
import { policyLoss, supervisedLoss } from './loss.ts';

/**
 * score: log probabilities of given tokens, no gradient.
 * sft: cross entropy. cispo: the policy gradient. cispo_kl: the same with a KL term against a reference policy.
 */
export type TrainGraphKind = 'score' | 'sft' | 'cispo' | 'cispo_kl';

/** What each graph reports, in this order, as sums over its tokens (a maximum for the last of cispo). */
export const graphMetrics = {
  score: [],
  sft: ['loss', 'entropy'],
  cispo: ['loss', 'entropy', 'mismatchKl', 'clipFraction', 'ratioMean', 'maxLogprobDifference'],
  cispo_kl: ['loss', 'entropy', 'mismatchKl', 'clipFraction', 'ratioMean', 'maxLogprobDifference', 'klDivergence'],
} as const;

export const gradientName = (parameter: string): string => `gradient.${parameter}`;

/**
 * Inputs: `tokens` int32 [batch, sequence] padded on the right; `selected` int64 [selected] = index, in the flattened
 * tokens, of each position whose next token counts; `targets` int64 [selected] = those next tokens; `mask` and other
 * vectors [selected]; scalars. The loss is divided by the mask's total over the whole batch, which is handed in, so
 * that gradients of micro-batches add up to the gradient of the batch.
 */
export function buildTrainGraph(config: ModelConfig, kind: TrainGraphKind): Graph {
  const graph = new Graph();
  const tokens = graph.input('tokens', 'int32', ['batch', 'sequence']);
  graph.defineSize('batch', tokens, 0);
  graph.defineSize('sequence', tokens, 1);
  const selected = graph.input('selected', 'int64', ['selected']);
  graph.defineSize('positions', reshape(tokens, ['positions']), 0);
  const weights = weightInputs(graph, config, kind !== 'score');
  const logits = decoderLogits(reshape(tokens, ['positions']), {
    config,
    weights,
    attend: causalAttention(graph, config),
    selectOutputs: (rows) => selectRows(rows, selected),
  });
  const scaled = multiply(logits, graph.input('inverse_temperature', 'float32', []));
  const logprobs = tokenLogprobs(scaled, graph.input('targets', 'int64', ['selected']));
  if (kind === 'score') {
    graph.output('logprobs', logprobs.tokens);
    return graph;
  }
  const { loss, metrics } = kind === 'sft' ? supervisedLoss(graph, logprobs) : policyLoss(graph, logprobs, kind);
  graph.output('metrics', stack([loss, ...metrics]));
  outputGradients(graph, loss, weights);
  return graph;
}

function outputGradients(graph: Graph, loss: Value, weights: ReadonlyMap<string, Value>): void {
  const names = [...weights.keys()];
  const results = gradients(loss, [...weights.values()]);
  results.forEach((gradient, i) => {
    if (gradient) graph.output(gradientName(names[i]!), gradient);
  });
}
