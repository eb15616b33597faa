import { layerParameterCount, loraParameterCount, type ModelShape, parameterCountOf } from './model-shape.ts';

/**
 * What a trainer and a policy server on GPUs would hold in memory, before anything is started. Every term is a count of
 * tensors that such a trainer keeps (PyTorch with FSDP2, as prime-rl sets it up: a master copy of the weights in
 * `optimization_dtype`, computed in bfloat16, flash attention, logits in float32), times their sizes. Nothing in it is fitted to
 * a measurement; allocators round up and fragment, which it leaves out. Bytes throughout; GPUs are sold in GiB.
 */

export type FloatType = 'float32' | 'bfloat16';

const bytesOf: Readonly<Record<FloatType, number>> = { float32: 4, bfloat16: 2 };

/** Adam's two moments, in float32. */
export const momentBytes = 8;

export interface TrainerSetting {
  readonly shape: ModelShape;
  /** null = all weights are trained. */
  readonly lora: { readonly r: number; readonly targetModules: readonly string[] } | null;
  /** Tokens of a packed row. */
  readonly seqLen: number;
  /** Rows that one GPU computes at once. */
  readonly microBatchSize: number;
  /** GPUs of the trainer; FSDP splits weights, gradients and moments among them. */
  readonly gpuCount: number;
  /** Of the master copy of the weights, and of the gradients. */
  readonly optimizationType: FloatType;
  /** Every how many layers' activations are computed again in the backward pass instead of being kept; null = none are. */
  readonly checkpointEvery: number | null;
  /** Weights, gradients and moments wait in the machine's memory. */
  readonly cpuOffload: boolean;
  /** The moments alone do. */
  readonly optimizerOffload: boolean;
  /** Tokens whose logits are there at once; null = those of all rows. */
  readonly headTokens: number | null;
}

export interface MemoryTerm {
  readonly what: 'weights' | 'gathered weights' | 'adapters' | 'gradients' | 'moments' | 'activations' | 'logits';
  readonly bytes: number;
  /** Where the figure comes from. */
  readonly because: string;
}

export interface MemoryPlan {
  /** Of one GPU. */
  readonly terms: readonly MemoryTerm[];
  readonly totalBytes: number;
  /** In the machine's memory, by what is offloaded there. */
  readonly hostBytes: number;
}

/** Memory of one of the trainer's GPUs when it is fullest: at the logits, or in the backward pass of a layer. */
export function planTrainerMemory(setting: TrainerSetting): MemoryPlan {
  const { shape, lora, gpuCount, optimizationType, cpuOffload } = setting;
  const elementBytes = bytesOf[optimizationType];
  const all = parameterCountOf(shape);
  const adapters = lora ? loraParameterCount(shape, lora) : 0;
  const trained = lora ? adapters : all;
  const split = gpuCount === 1 ? '' : ` ÷ ${gpuCount} GPUs`;
  const resident: MemoryTerm[] = [
    {
      what: 'weights',
      bytes: (all * elementBytes) / gpuCount,
      because: `${billions(all)} × ${elementBytes} bytes (${optimizationType})${split}`,
    },
    ...(lora
      ? [
          {
            what: 'adapters' as const,
            bytes: (adapters * elementBytes) / gpuCount,
            because: `${billions(adapters)} × ${elementBytes} bytes${split}`,
          },
        ]
      : []),
    {
      what: 'gradients',
      bytes: (trained * elementBytes) / gpuCount,
      because: `${billions(trained)} trained × ${elementBytes} bytes${split}`,
    },
    {
      what: 'moments',
      bytes: (trained * momentBytes) / gpuCount,
      because: `${billions(trained)} trained × ${momentBytes} bytes${split}`,
    },
  ];
  const isAway = ({ what }: MemoryTerm): boolean => cpuOffload || (setting.optimizerOffload && what === 'moments');
  const terms = [...resident.filter((term) => !isAway(term)), gathered(setting), ...activations(setting)];
  return { terms, totalBytes: total(terms), hostBytes: gpuCount * total(resident.filter(isAway)) };
}

/** What FSDP brings together to compute with, in bfloat16: the output layer, which stays, and two layers, one of them ahead. */
function gathered({ shape }: TrainerSetting): MemoryTerm {
  const head = shape.vocabularySize * shape.hiddenSize;
  const layer = layerParameterCount(shape, shape.layerCount - 1);
  return {
    what: 'gathered weights',
    bytes: (head + 2 * layer) * bytesOf.bfloat16,
    because: `output layer ${billions(head)} and two layers of ${billions(layer)}, × 2 bytes`,
  };
}

/** Copies of the logits in float32: as computed, divided by the temperature, and the gradients of both. */
const logitCopies = 4;

function activations(setting: TrainerSetting): MemoryTerm[] {
  const { shape, seqLen, microBatchSize, checkpointEvery } = setting;
  const tokens = seqLen * microBatchSize;
  const layerBytes = tokenBytesOfLayer(shape);
  const inputBytes = shape.hiddenSize * bytesOf.bfloat16;
  const checkpointed = checkpointEvery === null ? 0 : Math.ceil(shape.layerCount / checkpointEvery);
  const whole = shape.layerCount - checkpointed;
  const keptPerToken = checkpointed * inputBytes + whole * layerBytes;
  // A layer that is computed again is there whole, and so are the gradients of what it holds.
  const againPerToken = checkpointed === 0 ? layerBytes : 2 * layerBytes;
  const headTokens = Math.min(setting.headTokens ?? tokens, tokens);
  const logitBytes = headTokens * shape.vocabularySize * logitCopies * bytesOf.float32;
  const againBytes = tokens * againPerToken;
  const kept: MemoryTerm = {
    what: 'activations',
    bytes: tokens * keptPerToken + Math.max(0, againBytes - logitBytes),
    because: `${tokens} tokens × ${kilobytes(keptPerToken)} (${whole === 0 ? '' : `${whole} layers × ${kilobytes(layerBytes)}`}${whole > 0 && checkpointed > 0 ? ' + ' : ''}${checkpointed === 0 ? '' : `${checkpointed} layers' inputs × ${kilobytes(inputBytes)}`})`,
  };
  const logits: MemoryTerm = {
    what: 'logits',
    bytes: logitBytes,
    because: `${headTokens} tokens × ${shape.vocabularySize} × ${logitCopies} copies in float32`,
  };
  return [kept, logits];
}

/**
 * What autograd keeps of a layer, per token: two norms (their input in bfloat16 and float32, what was normalized, what comes
 * out), queries, keys and values, attention's output, and of the feed-forward part gate, up, the gate's activation and
 * their product. Flash attention keeps no scores.
 */
function tokenBytesOfLayer({ hiddenSize, headCount, keyValueHeadCount, headSize, ...shape }: ModelShape): number {
  const norm = hiddenSize * (2 * bytesOf.bfloat16 + bytesOf.float32 + bytesOf.bfloat16);
  const attention = (2 * headCount + 2 * keyValueHeadCount) * headSize * bytesOf.bfloat16;
  const { experts } = shape;
  const width = experts ? experts.feedForwardSize * (experts.perToken + experts.shared) : shape.feedForwardSize;
  // Each expert gets a copy of the token and gives one back.
  const routed = experts ? 2 * experts.perToken * hiddenSize * bytesOf.bfloat16 : 0;
  return 2 * norm + attention + 4 * width * bytesOf.bfloat16 + routed;
}

export interface Remedy {
  readonly change: string;
  /** Of one GPU, if nothing else changes. Negative: it costs. */
  readonly savesBytes: number;
  /** Of one GPU, with this remedy and those before it. */
  readonly totalBytes: number;
}

/**
 * The four remedies of "Training & Evaluation with Prime-RL" (GPU Memory Guidelines) in its order, without those that are
 * taken already.
 */
export function remediesFor(setting: TrainerSetting): Remedy[] {
  const halfLen = Math.max(1, Math.floor(setting.seqLen / 2));
  const twice = setting.gpuCount * 2;
  const remedies: { change: string; to: Partial<TrainerSetting> }[] = [
    ...(setting.checkpointEvery === 1
      ? []
      : [
          {
            change: '[trainer.model.ac] freq = 1: activations are computed again in the backward pass',
            to: { checkpointEvery: 1 },
          },
        ]),
    { change: `seq_len = ${halfLen} in place of ${setting.seqLen}`, to: { seqLen: halfLen } },
    { change: `${twice} trainer GPUs in place of ${setting.gpuCount}`, to: { gpuCount: twice } },
    ...(setting.cpuOffload
      ? []
      : [
          {
            change:
              "[trainer.model] fsdp_cpu_offload = true: weights, gradients and moments wait in the machine's memory",
            to: { cpuOffload: true },
          },
        ]),
  ];
  const bytesWith = (to: Partial<TrainerSetting>): number => planTrainerMemory({ ...setting, ...to }).totalBytes;
  const now = bytesWith({});
  let together: Partial<TrainerSetting> = {};
  return remedies.map(({ change, to }) => {
    together = { ...together, ...to };
    return { change, savesBytes: now - bytesWith(to), totalBytes: bytesWith(together) };
  });
}

export interface ServerSetting {
  readonly shape: ModelShape;
  readonly weightType: FloatType;
  /** GPUs that share one copy of the model. */
  readonly tensorParallel: number;
  /** Part of a GPU's memory that the server takes. */
  readonly gpuMemoryUtilization: number;
  readonly gpuBytes: number;
  /** Longest sequence; null = as the model has it. */
  readonly maxModelLen: number | null;
}

export interface ServerPlan {
  /** Of one GPU. */
  readonly weightBytes: number;
  readonly claimedBytes: number;
  /** What is left of the claim for keys and values; negative where the weights do not fit. */
  readonly keyValueBytes: number;
  readonly keyValueBytesPerToken: number;
  /** Tokens that all copies' GPUs of one server hold at once. */
  readonly keyValueTokens: number;
  /** Sequences of `maxModelLen` at once. */
  readonly longestSequences: number | null;
}

/** A policy server's memory on one GPU: weights, and keys and values in bfloat16 in what is left of its claim. */
export function planServerMemory(setting: ServerSetting): ServerPlan {
  const { shape, tensorParallel, maxModelLen } = setting;
  const weightBytes = (parameterCountOf(shape) * bytesOf[setting.weightType]) / tensorParallel;
  const claimedBytes = setting.gpuBytes * setting.gpuMemoryUtilization;
  const keyValueBytesPerToken = keyValueBytes(shape, bytesOf.bfloat16) / tensorParallel;
  const left = claimedBytes - weightBytes;
  const keyValueTokens = Math.max(0, Math.floor(left / keyValueBytesPerToken));
  return {
    weightBytes,
    claimedBytes,
    keyValueBytes: left,
    keyValueBytesPerToken,
    keyValueTokens,
    longestSequences: maxModelLen === null ? null : Math.floor(keyValueTokens / maxModelLen),
  };
}

/** Keys and values of one token in all layers. */
export function keyValueBytes({ layerCount, keyValueHeadCount, headSize }: ModelShape, elementBytes: number): number {
  return 2 * layerCount * keyValueHeadCount * headSize * elementBytes;
}

const total = (terms: readonly MemoryTerm[]): number => terms.reduce((sum, { bytes }) => sum + bytes, 0);

function billions(count: number): string {
  return count >= 1e9 ? `${(count / 1e9).toFixed(2)} B` : `${(count / 1e6).toFixed(1)} M`;
}

function kilobytes(bytes: number): string {
  return `${(bytes / 1024).toFixed(0)} KiB`;
}
