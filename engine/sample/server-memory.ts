import { RatchetError } from '../../core/errors.ts';
import { packedParametersMin, packedWeightBytesMax, trainLogitsMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import { type MachineMemory, machineMemory } from '../model/machine-memory.ts';
import { elementCount, embeddingsName, parameterLayout } from '../model/parameter-layout.ts';
import { rowBytes } from './row-bytes.ts';
import { defaultSamplingLimits, type SamplingLimits } from './sampling-limits.ts';
import type { Quantization } from '../model/quantizations.ts';

/** Memory plan of a policy server that samples a model; every figure is an upper bound. */
export interface ServerMemory {
  /** Total budget: as configured, or the default. */
  readonly budgetBytes: number;
  /** Memory of the process and its libraries. */
  readonly processBytes: number;
  /** Memory per version: its weights, and their copies in sessions. */
  readonly versionBytes: number;
  /** Memory for all loaded versions, and for the adapters' base if there is room. */
  readonly weightBytesMax: number;
  /** Whether the adapters' base stays loaded beside a version. */
  readonly keepsBase: boolean;
  readonly limits: SamplingLimits;
  /** Limits of prompt scoring, which runs beside sampling. */
  readonly scoring: ScoringLimits;
  /** All that sampling and scoring take beside weights. */
  readonly workBytes: number;
}

/** Limits for scoring prompts at once, as options of a GradientComputer. A single longer prompt may exceed them. */
export interface ScoringLimits {
  readonly positionsMax: number;
  readonly logitsMax: number;
}

/** Memory that models of other architectures use in the same process. */
interface OtherPlan {
  readonly workBytes: number;
  readonly versionBytes: number;
}

interface ServerUse {
  readonly others?: readonly OtherPlan[];
  /** null = decided by the machine and the model. */
  readonly memoryGb?: number | null | undefined;
  readonly quantize?: Quantization | undefined;
  readonly memory?: Pick<MachineMemory, 'totalBytes'>;
}

const mebibyte = 2 ** 20;
const gigabyte = 1e9;

/** Node, ONNX Runtime, the graphs, and garbage that is not collected yet; measured with small models. */
const plainProcessBytes = 140 * mebibyte;
/** Bytes per token of a tokenizer, including leftovers of parsing its files. */
const tokenBytes = 2048;
/** Least that sampling one row takes beside a version: its keys and values, a short run of its prompt, and a step. */
const workBytesMin = 64 * mebibyte;
/** Least memory for sampling if no budget is configured. */
const workBytesDefault = 160 * mebibyte;
/** The default: free on a common laptop. */
const budgetDefault = 1.5 * gigabyte;
/** Largest share of the machine's memory used by default, unless the model needs more. */
const machineShareDefault = 0.25;

/** Shares of the memory left beside the weights; a twentieth stays unused. */
const shares = { keysValues: 0.35, prefill: 0.25, step: 0.15, prompts: 0.1, scoring: 0.1 };
/** Share of the rest above `workBytesDefault` for versions beside the one being sampled. */
const versionsShare = 0.5;
const versionsMax = 8;
const positionsMin = 64;
const rowsMin = 8;
/** A row of logits by itself would have other bits. */
const scoredRowsMin = 8;
const logitCopies = 3;
/** Memory that the runtime has kept in pieces of other sizes. */
const slack = 1.5;

/**
 * Plans a policy server's memory. No bit depends on it: with less, more requests wait. Throws if one version and one
 * row do not fit, and states what would. Models of several architectures take turns in the room for weights; the later
 * one samples with the rest.
 */
export function serverMemory(config: ModelConfig, use: ServerUse = {}): ServerMemory {
  const { memoryGb = null, quantize, memory = machineMemory(), others = [] } = use;
  const weightBytes = 4 * elementCount(parameterLayout(config));
  const processBytes = plainProcessBytes + tokenBytes * config.vocabularySize;
  const versionBytes = weightBytes + sessionBytes(config, quantize);
  const largest = Math.max(versionBytes, ...others.map((other) => other.versionBytes));
  const held = processBytes + others.reduce((sum, { workBytes }) => sum + workBytes, largest);
  const defaults = Math.min(budgetDefault, machineShareDefault * memory.totalBytes);
  const budgetBytes = memoryGb === null ? Math.max(defaults, held + workBytesDefault) : memoryGb * gigabyte;
  if (budgetBytes < held + workBytesMin) throw new MemoryTooSmall(memoryGb!, held + workBytesMin, others.length > 0);
  const free = budgetBytes - held;
  const more = Math.min(
    versionsMax - 1,
    Math.floor((versionsShare * Math.max(0, free - workBytesDefault)) / versionBytes),
  );
  const workBytes = free - more * versionBytes;
  return {
    budgetBytes,
    processBytes,
    versionBytes,
    weightBytesMax: largest + more * versionBytes,
    keepsBase: more > 0,
    limits: limitsFor(config, workBytes, memoryGb !== null),
    scoring: scoringFor(config, workBytes),
    workBytes,
  };
}

/** Returns a budget that is enough, in GB, rounded up to one decimal. */
function enoughGb(bytes: number): number {
  return Math.ceil((10 * bytes) / gigabyte) / 10;
}

/** The configured budget is too small for the model. */
export class MemoryTooSmall extends RatchetError {
  readonly expected: string;
  readonly received: string;
  /** Smallest budget that is enough, in bytes. */
  readonly neededBytes: number;

  constructor(memoryGb: number, needed: number, isBesideOthers: boolean) {
    const beside = isBesideOthers ? ' beside the other models it holds' : '';
    const expected = `at least ${enoughGb(needed)}: one version of the model and one row take so much in the policy server${beside}`;
    super(
      'ConfigInvalid',
      `[inference] memory_gb (--memory-gb of a policy server): expected ${expected}; got ${memoryGb}. Write ${enoughGb(needed)}, or leave it out.`,
    );
    this.neededBytes = needed;
    this.expected = expected;
    this.received = String(memoryGb);
  }
}

function limitsFor(config: ModelConfig, bytes: number, isBound: boolean): SamplingLimits {
  const defaults = defaultSamplingLimits;
  const keyValueBytesMax = Math.min(defaults.keyValueBytesMax, Math.floor(shares.keysValues * bytes));
  const atMost = (max: number, min: number, each: number, share: number): number =>
    Math.max(min, Math.min(max, Math.floor((share * bytes) / each)));
  return {
    keyValueBytesMax,
    // Without a configured budget, a row longer than the default limit may run alone.
    aloneBytesMax: isBound ? keyValueBytesMax : defaults.aloneBytesMax,
    promptBytesMax: Math.min(defaults.promptBytesMax, Math.floor(shares.prompts * bytes)),
    prefillPositionsMax: atMost(defaults.prefillPositionsMax, positionsMin, prefillBytes(config), shares.prefill),
    rowsMax: atMost(defaults.rowsMax, rowsMin, stepBytes(config), shares.step),
  };
}

/** Half of it is for activations, and half for logits. */
function scoringFor(config: ModelConfig, bytes: number): ScoringLimits {
  const half = (shares.scoring * bytes) / 2;
  const logits = Math.max(scoredRowsMin * config.vocabularySize, Math.floor(half / (logitCopies * 4)));
  return {
    positionsMax: Math.max(positionsMin, Math.floor(half / (slack * layerBytes(config)))),
    logitsMax: Math.min(trainLogitsMax, logits),
  };
}

/** Bytes per position of a prefill run: its keys and values, and its share of the widest layer. */
function prefillBytes(config: ModelConfig): number {
  return rowBytes(config, 1) + slack * layerBytes(config);
}

/** Bytes per row of a step: logits, logits at the row's temperature, and probabilities. */
function stepBytes(config: ModelConfig): number {
  return logitCopies * 4 * config.vocabularySize + slack * layerBytes(config);
}

function layerBytes({ hiddenSize, headCount, keyValueHeadCount, headSize, feedForwardSize }: ModelConfig): number {
  return 4 * (4 * hiddenSize + 2 * (headCount + 2 * keyValueHeadCount) * headSize + 3 * feedForwardSize);
}

/** Bytes that sessions hold of a version beside its weights: packed weights, or quantized ones, which both sessions have. */
function sessionBytes(config: ModelConfig, quantize: Quantization | undefined): number {
  const layout = parameterLayout(config);
  const count = elementCount(layout);
  if (quantize === undefined) {
    return count >= packedParametersMin && 4 * count <= packedWeightBytesMax ? 4 * count : 0;
  }
  const table = layout.find(({ name }) => name === embeddingsName)!.length;
  const output = table; // 8 bits even if the layers have 4
  const layers = count - (config.tiedEmbeddings ? table : 2 * table);
  return 2 * Math.ceil(output + layers * bytesOf[quantize]);
}

/** Bytes per weight; blocks of 4 bits include scales. */
const bytesOf = { int8: 1, int4: 0.625 } as const;
