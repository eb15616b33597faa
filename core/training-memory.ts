import {
  layerParameterCounts,
  loraParameterCount,
  type LoraShape,
  type ModelShape,
  outerParameterCount,
  parameterCountOf,
} from './model-shape.ts';

/** Memory that PyTorch's trainer takes of each GPU, or of the machine for each rank where there is none, from a model's shape alone. */

/** A training step, as far as its memory depends on it. */
export interface TrainingLoad {
  readonly shape: ModelShape;
  /** null = all weights are trained. */
  readonly lora: LoraShape | null;
  /** Tokens of a micro-batch: those of the longest row. */
  readonly tokens: number;
  /** Precision of the computation, and of frozen weights. */
  readonly dtype: Precision;
  /** Precision of trained weights, their gradients and moments; adapters have float32. */
  readonly heldIn: Precision;
  /** Numbers that the optimizer keeps of each trained weight: 2 with AdamW. */
  readonly moments: number;
  /** Activations of every n-th layer are computed again; 0 = of none. */
  readonly recomputesEvery: number;
  /** GPUs that share weights, gradients and moments. */
  readonly ranks: number;
  /** Weights, gradients and moments wait in the memory of the CPU. */
  readonly offloadsWeights: boolean;
  /** Moments wait in the memory of the CPU. */
  readonly offloadsMoments: boolean;
  /** Several rows share a micro-batch, kept apart by a mask. */
  readonly isPacked: boolean;
  /** Ranks compute without GPUs, so that there is no other memory to wait in. */
  readonly onProcessor?: boolean;
  /** Logits of all tokens exist at once, as in trainers that do not compute them in chunks. */
  readonly wholeLogits?: boolean;
}

type Precision = 'float32' | 'bfloat16';

/** Bytes on each GPU. */
export interface TrainingMemory {
  readonly weights: number;
  readonly gradients: number;
  readonly moments: number;
  /** Whole weights of two layers, the embedding table and the output layer, which FSDP puts together to compute with. */
  readonly gathered: number;
  readonly activations: number;
  /** Logits and their gradients; or the gradients of a layer that is computed again, where these are more. */
  readonly working: number;
  readonly total: number;
}

/** Elements of a chunk of logits: `chunk_elements` of python/ratchet_torch/logprobs.py. */
const chunkElementsOf = { processor: 2 ** 23, gpu: 2 ** 25 };

/**
 * Bytes by precision, fitted to peaks of python/ratchet_torch on the CPU (test/data/torch-memory.json). A layer keeps so many for each token: by hidden
 * size, less where norms are frozen; by the widths of query, key and value; by feed-forward size; and by the norms of query and key.
 */
const fitted = {
  bfloat16: { element: 2, hidden: 16, frozenHidden: 12, attention: 4, feedForward: 8, headNorm: 6, logit: 18, chunk: 26 },
  float32: { element: 4, hidden: 20, frozenHidden: 16, attention: 8, feedForward: 16, headNorm: 8, logit: 16, chunk: 20 },
} as const; // prettier-ignore
/** Bytes of each logit where the output layer is frozen, since nothing is computed again backwards: in one chunk, and in the largest of several. */
const frozenOutput = { logit: 16, chunk: 20 };
/** Hidden states outside of the layers. */
const outerHiddenStates = 8;
/** A layer that is computed again, with the gradients that flow through it. */
const layerAgain = 1.1;
/** Masks that keep packed rows apart: bytes for each pair of tokens. */
const maskBytes = 9;

export function trainingMemory(load: TrainingLoad): TrainingMemory {
  const { shape, lora, dtype, tokens, recomputesEvery, ranks, offloadsWeights, offloadsMoments } = load;
  const { element } = fitted[dtype];
  const { logit, chunk } = lora && !load.wholeLogits ? frozenOutput : fitted[dtype];
  const parameters = parameterCountOf(shape);
  const trained = lora ? loraParameterCount(shape, lora) : parameters;
  const held = trained * (lora ? 4 : fitted[load.heldIn].element);
  const { onProcessor = false } = load;
  const chunkElements = chunkElementsOf[onProcessor ? 'processor' : 'gpu'];
  const share = offloadsWeights && !onProcessor ? 0 : 1 / ranks;
  // python/ratchet_torch/devices.py: such a rank has its weights without FSDP.
  const isAlone = onProcessor && ranks === 1 && dtype === 'float32' && load.heldIn === 'float32';
  const layerParameters = Math.max(...layerParameterCounts(shape));

  const ofLayer = tokens * layerBytes(load);
  const recomputed = recomputesEvery === 0 ? 0 : Math.ceil(shape.layerCount / recomputesEvery);
  const hiddenStates = tokens * element * shape.hiddenSize * (recomputed + outerHiddenStates);
  const logits = tokens * shape.vocabularySize;
  const chunks = logits <= chunkElements || load.wholeLogits ? logit * logits : chunk * chunkElements;
  const ofOutput = lora ? 0 : 4 * shape.vocabularySize * shape.hiddenSize;
  const ofAgain = (recomputed > 0 ? layerAgain * ofLayer : 0) + (lora ? 0 : (element + 4) * layerParameters);
  const parts = {
    weights: share * (held + (lora ? element * parameters : 0)),
    gradients: share * held,
    moments: offloadsMoments && !onProcessor ? 0 : share * held * load.moments,
    gathered: isAlone ? 0 : element * (outerParameterCount(shape) + 2 * layerParameters),
    activations:
      (shape.layerCount - recomputed) * ofLayer + hiddenStates + (load.isPacked ? maskBytes * tokens ** 2 : 0),
    working: Math.max(chunks + ofOutput, ofAgain),
  };
  return { ...parts, total: Object.values(parts).reduce((sum, part) => sum + part, 0) };
}

/** Bytes that a layer keeps of each token for its gradient. */
function layerBytes({ shape, lora, dtype }: TrainingLoad): number {
  const { hiddenSize, headSize, headCount, keyValueHeadCount, experts } = shape;
  const { element, hidden, frozenHidden, attention, feedForward, headNorm } = fitted[dtype];
  const [query, key] = [headCount * headSize, keyValueHeadCount * headSize];
  // Each expert of a token has a copy of its input.
  const width = experts ? (experts.perToken + experts.shared) * experts.feedForwardSize : shape.feedForwardSize;
  const copies = experts ? 2 * element * experts.perToken * hiddenSize : 0;
  return (
    (lora ? frozenHidden : hidden) * hiddenSize +
    attention * (query + key) +
    4 * headCount +
    feedForward * width +
    copies +
    (shape.queryKeyNorm ? headNorm * (query + key) : 0) +
    (lora ? element * lora.r * lora.targetModules.length : 0)
  );
}

/** A change of settings that needs less memory, in our own words. */
export interface MemoryChange {
  readonly setting: string;
  readonly value: number | boolean | string;
  readonly load: TrainingLoad;
}

/** Changes that make a step fit into so many bytes of each GPU, the least painful ones; null if none of them do. */
export function changesThatFit(load: TrainingLoad, bytesMax: number, gpus: number): readonly MemoryChange[] | null {
  const fits = (one: TrainingLoad): boolean => trainingMemory(one).total <= bytesMax;
  for (const change of changes) {
    const made = change(load, gpus);
    if (made && fits(made.load)) return [made];
  }
  const all: MemoryChange[] = [];
  for (const change of changes) {
    const made = change(all.at(-1)?.load ?? load, gpus);
    if (made === null) continue;
    all.push(made);
    if (fits(made.load)) return all;
  }
  return null;
}

/** Ordered by what each costs: time, precision, GPUs, length, and the time of copies to the CPU. */
const changes: readonly ((load: TrainingLoad, gpus: number) => MemoryChange | null)[] = [
  (load) => (load.recomputesEvery === 1 ? null : { setting: 'trainer.ac_freq', value: 1, load: { ...load, recomputesEvery: 1 } }),
  (load) => (load.dtype === 'bfloat16' ? null : { setting: 'trainer.dtype', value: 'bfloat16', load: { ...load, dtype: 'bfloat16' } }),
  (load, gpus) => (load.onProcessor || gpus <= load.ranks ? null : { setting: 'trainer.ranks', value: gpus, load: { ...load, ranks: gpus } }),
  (load) => (load.onProcessor || load.offloadsMoments ? null : { setting: 'trainer.optim_cpu_offload', value: true, load: { ...load, offloadsMoments: true } }),
  (load) => (load.onProcessor || load.offloadsWeights ? null : { setting: 'trainer.fsdp_cpu_offload', value: true, load: { ...load, offloadsWeights: true } }),
  (load) => shorter(load),
]; // prettier-ignore

function shorter(load: TrainingLoad): MemoryChange | null {
  const tokens = Math.floor(load.tokens / 2);
  return tokens < 512 ? null : { setting: 'seq_len', value: tokens, load: { ...load, tokens } };
}
