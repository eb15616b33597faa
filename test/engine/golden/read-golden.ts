/**
 * Tiny checkpoints made by transformers with the logits it gives for them (make_model_goldens.py), and adapters made by
 * PEFT with theirs (make_adapter_goldens.py).
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Parameters } from '../../../engine/model/parameters.ts';
import { decodeSafetensors } from '../../../engine/model/safetensors.ts';
import { decoderLogits, type LinearAdapter, weightInputs } from '../../../engine/model/decoder.ts';
import { Graph, type Value } from '../../../engine/onnx/graph.ts';
import { reshape } from '../../../engine/onnx/operators.ts';
import type { Tensor } from '../../../engine/onnx/runtime.ts';
import { ints, openSession } from '../../../engine/onnx/session.ts';
import { causalAttention } from '../../../engine/train/attention.ts';

export const goldenNames = [
  'qwen3-tied',
  'qwen3-untied-bf16',
  'qwen2-tied',
  'qwen2-untied-fp16',
  'llama3-scaled',
  'llama-plain',
  'llama-biased-linear',
  'mistral-window',
  'gemma3',
  'qwen3-moe',
  'qwen3-moe-plain-sum',
  'smollm3',
  'qwen2-yarn',
] as const;

export const goldenFolder = (name: string): string => fileURLToPath(new URL(`./models/${name}`, import.meta.url));

export const adapterFolder = (name: string): string => fileURLToPath(new URL(`./adapters/${name}`, import.meta.url));

export interface Golden {
  /** Random up to `promptLength`, then transformers' greedy continuation. */
  readonly tokenIds: number[];
  readonly promptLength: number;
  /** [positions · vocabulary] */
  readonly logits: Float32Array;
}

/** The text of config.json. */
export async function readConfig(name: string): Promise<string> {
  return readFile(join(goldenFolder(name), 'config.json'), 'utf8');
}

export async function readGolden(folder: string): Promise<Golden> {
  const file = join(folder, 'golden.safetensors');
  const { tensors } = decodeSafetensors(await readFile(file), file);
  const integers = (name: string): number[] => Array.from(tensors.get(name)!.data as BigInt64Array, Number);
  return {
    tokenIds: integers('tokens'),
    promptLength: integers('prompt')[0]!,
    logits: tensors.get('logits')!.data as Float32Array,
  };
}

export interface AdapterFeeds {
  readonly adapters: (graph: Graph) => ReadonlyMap<string, LinearAdapter>;
  readonly tensors: Readonly<Record<string, Tensor>>;
}

/** All logits of one row through the decoder as training runs it. */
export async function trainGraphLogits(
  parameters: Parameters,
  tokenIds: readonly number[],
  adapter?: AdapterFeeds,
): Promise<Float32Array> {
  const { config } = parameters;
  const graph = new Graph();
  const tokens = graph.input('tokens', 'int32', ['batch', 'sequence']);
  graph.defineSize('batch', tokens, 0);
  graph.defineSize('sequence', tokens, 1);
  graph.defineSize('positions', reshape(tokens, ['positions']), 0);
  const logits = decoderLogits(reshape(tokens, ['positions']), {
    config,
    weights: weightInputs(graph, config, false),
    ...(adapter && { adapters: adapter.adapters(graph) }),
    attend: causalAttention(graph, config),
    selectOutputs: (rows: Value) => rows,
  });
  graph.output('logits', logits);
  const session = await openSession(graph, { threads: 1 });
  const feeds = { ...parameters.tensors, ...adapter?.tensors };
  const output = await session.run({ ...feeds, tokens: ints(Int32Array.from(tokenIds), [1, tokenIds.length]) });
  await session.release();
  return output['logits']!.data as Float32Array;
}

/** Largest difference, as a part of the largest expected value. */
export function relativeDifference(actual: Float32Array, expected: Float32Array): number {
  if (actual.length !== expected.length) return Infinity;
  let [difference, scale] = [0, 0];
  for (let i = 0; i < expected.length; i++) {
    difference = Math.max(difference, Math.abs(actual[i]! - expected[i]!));
    scale = Math.max(scale, Math.abs(expected[i]!));
  }
  return difference / scale;
}

/** log softmax(logits[position])[id] */
export function logprobOf(golden: Golden, position: number, id: number): number {
  const width = golden.logits.length / golden.tokenIds.length;
  const row = golden.logits.subarray(position * width, (position + 1) * width);
  return row[id]! - Math.log(row.reduce((sum, logit) => sum + Math.exp(logit), 0));
}
