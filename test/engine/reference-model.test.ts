import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type ModelConfig, type Parameters, Sampler } from '../../engine/index.ts';
import { floats, ints, longs, openSession } from '../../engine/onnx/session.ts';
import { buildTrainGraph } from '../../engine/train/train-graph.ts';
import { microBatchesOf, randomBatch, randomParameters, tinyConfig } from './models.ts';

/** Qwen3 in plain double-precision loops, after transformers' modeling_qwen3.py, to hold the graphs against. */
type Row = number[];

function referenceLogprobs(parameters: Parameters, tokenIds: readonly number[], temperature: number): Row[] {
  const { config } = parameters;
  const embedding = parameters.view('model.embed_tokens.weight');
  let hidden = tokenIds.map((id) => [...embedding.subarray(id * config.hiddenSize, (id + 1) * config.hiddenSize)]);
  for (let layer = 0; layer < config.layerCount; layer++) hidden = referenceLayer(parameters, layer, hidden);
  const output = config.tiedEmbeddings ? 'model.embed_tokens.weight' : 'lm_head.weight';
  return hidden.map((row) => {
    const logits = project(parameters, output, norm(parameters, 'model.norm.weight', row)).map((x) => x / temperature);
    const total = logits.reduce((sum, logit) => sum + Math.exp(logit), 0);
    return logits.map((logit) => logit - Math.log(total));
  });
}

function referenceLayer(parameters: Parameters, layer: number, hidden: Row[]): Row[] {
  const { config } = parameters;
  const name = (part: string): string => `model.layers.${layer}.${part}.weight`;
  const normalized = hidden.map((row) => norm(parameters, name('input_layernorm'), row));
  const heads = (part: string, count: number, normName?: string): Row[][] =>
    normalized.map((row, position) => {
      const wide = project(parameters, name(`self_attn.${part}`), row);
      return Array.from({ length: count }, (_, h) => {
        const head = wide.slice(h * config.headSize, (h + 1) * config.headSize);
        return normName ? rotate(config, norm(parameters, name(`self_attn.${normName}`), head), position) : head;
      });
    });
  const queries = heads('q_proj', config.headCount, 'q_norm');
  const keys = heads('k_proj', config.keyValueHeadCount, 'k_norm');
  const values = heads('v_proj', config.keyValueHeadCount);
  const group = config.headCount / config.keyValueHeadCount;
  return hidden.map((row, position) => {
    const attended = queries[position]!.flatMap((query, h) => {
      const kv = Math.floor(h / group);
      const past = keys.slice(0, position + 1).map((key) => key[kv]!);
      const scores = past.map((key) => Math.exp(dot(query, key) / Math.sqrt(config.headSize)));
      const total = scores.reduce((a, b) => a + b, 0);
      return query.map((_, i) => scores.reduce((sum, score, t) => sum + (score / total) * values[t]![kv]![i]!, 0));
    });
    const middle = plus(row, project(parameters, name('self_attn.o_proj'), attended));
    const input = norm(parameters, name('post_attention_layernorm'), middle);
    const up = project(parameters, name('mlp.up_proj'), input);
    const gated = project(parameters, name('mlp.gate_proj'), input).map((x, i) => (x / (1 + Math.exp(-x))) * up[i]!);
    return plus(middle, project(parameters, name('mlp.down_proj'), gated));
  });
}

/** rotate_half: the first half of a head pairs with the second. */
function rotate({ headSize, ropeTheta }: ModelConfig, head: Row, position: number): Row {
  const half = headSize / 2;
  return head.map((x, i) => {
    const angle = position * ropeTheta ** ((-2 * (i % half)) / headSize);
    const other = i < half ? -head[i + half]! : head[i - half]!;
    return x * Math.cos(angle) + other * Math.sin(angle);
  });
}

function norm(parameters: Parameters, name: string, row: Row): Row {
  const weight = parameters.view(name);
  const scale = 1 / Math.sqrt(dot(row, row) / row.length + parameters.config.normEpsilon);
  return row.map((x, i) => x * scale * weight[i]!);
}

function project(parameters: Parameters, name: string, row: Row): Row {
  const weight = parameters.view(name);
  return Array.from({ length: weight.length / row.length }, (_, o) =>
    row.reduce((sum, x, i) => sum + x * weight[o * row.length + i]!, 0),
  );
}

const dot = (a: Row, b: Row): number => a.reduce((sum, x, i) => sum + x * b[i]!, 0);
const plus = (a: Row, b: Row): Row => a.map((x, i) => x + b[i]!);

for (const tiedEmbeddings of [true, false]) {
  test(`graphs agree with the formulas of Qwen3, ${tiedEmbeddings ? 'tied' : 'untied'}`, async () => {
    const config = { ...tinyConfig, tiedEmbeddings };
    const parameters = randomParameters(config, 8);
    await requireTrainGraphAgrees(parameters, 0.8);
    await requireSamplerAgrees(parameters, 0.8);
  });
}

async function requireTrainGraphAgrees(parameters: Parameters, temperature: number): Promise<void> {
  const samples = randomBatch(parameters.config, 5, 6);
  const [micro] = await microBatchesOf(samples);
  const session = await openSession(buildTrainGraph(parameters.config, 'score'), { threads: 1 });
  const output = await session.run({
    ...parameters.tensors,
    tokens: ints(micro!.tokens, [micro!.rows.length, micro!.width]),
    selected: longs(micro!.selected, [micro!.selected.length]),
    targets: longs(micro!.targets, [micro!.targets.length]),
    inverse_temperature: floats(new Float32Array(micro!.targets.length).fill(1 / temperature), [
      micro!.targets.length,
      1,
    ]),
  });
  const logprobs = output['logprobs']!.data as Float32Array;
  logprobs.forEach((logprob, i) => {
    const { tokenIds } = samples[micro!.sourceRow[i]!]!;
    const position = micro!.sourcePosition[i]!;
    const expected = referenceLogprobs(parameters, tokenIds, temperature)[position - 1]![tokenIds[position]!]!;
    assert.ok(Math.abs(logprob - expected) < 2e-5, `${logprob} against ${expected}`);
  });
  await session.release();
}

async function requireSamplerAgrees(parameters: Parameters, temperature: number): Promise<void> {
  const sampler = await Sampler.open(parameters.config, { threads: 1 });
  const requests = [[3], [4, 5, 6, 7], [8, 2]].map((promptTokenIds, seed) => ({
    promptTokenIds,
    maxTokens: 12,
    temperature,
    seed,
    stopTokenIds: [],
  }));
  const results = await sampler.generate(parameters, requests);
  results.forEach(({ tokenIds, logprobs }, i) => {
    const prompt = requests[i]!.promptTokenIds;
    const expected = referenceLogprobs(parameters, [...prompt, ...tokenIds], temperature);
    tokenIds.forEach((id, t) => {
      assert.ok(Math.abs(logprobs[t]! - expected[prompt.length + t - 1]![id]!) < 2e-5);
    });
  });
  await sampler.release();
}
