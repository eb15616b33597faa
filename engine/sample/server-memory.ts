import { RatchetError } from '../../core/errors.ts';
import { packedParametersMin, packedWeightBytesMax } from '../limits.ts';
import type { ModelConfig } from '../model/config.ts';
import { type MachineMemory, machineMemory } from '../model/machine-memory.ts';
import { elementCount, embeddingsName, parameterLayout } from '../model/parameter-layout.ts';
import { rowBytes } from './row-bytes.ts';
import { defaultSamplingLimits, type SamplingLimits } from './sampling-limits.ts';
import type { Quantization } from './quantizations.ts';

/** Memory plan of a policy server that samples a model; every figure is an upper bound. */
export interface ServerMemory {
  /** Total budget: as configured, or the default. */
  readonly budgetBytes: number;
  /** Memory of the process and its libraries. */
  readonly processBytes: number;
  /** Memory per version: its weights, and what sessions keep of them. */
  readonly versionBytes: number;
  /** Memory for all loaded versions, and for the adapters' base if there is room. */
  readonly weightBytesMax: number;
  /** Whether the adapters' base stays loaded beside a version. */
  readonly keepsBase: boolean;
  readonly limits: SamplingLimits;
}

interface ServerUse {
  /** Configured budget; null = a default that fits the machine and the model. */
  readonly memoryGb?: number | null | undefined;
  readonly quantize?: Quantization | undefined;
  readonly memory?: Pick<MachineMemory, 'totalBytes'>;
}

const mebibyte = 2 ** 20;
const gigabyte = 1e9;

/** Node, ONNX Runtime, the graphs, and garbage that was not collected yet. */
const processBytes = 200 * mebibyte;
/** Smallest work memory beside a version, for sampling one row: its keys and values, a short prefill run, and a step. */
const workBytesMin = 64 * mebibyte;
/** Smallest work memory if no budget is configured. */
const workBytesUsual = 192 * mebibyte;
/** Default budget, which a laptop usually has free. */
const budgetUsual = 1.5 * gigabyte;
/** Largest share of the machine's memory used by default, unless the model needs more. */
const machineShareUsual = 0.25;

/** Shares of the memory that is left beside the weights. A twentieth stays free. */
const shares = { keysValues: 0.4, prefill: 0.3, step: 0.15, prompts: 0.1 };
/** Share of the memory above `workBytesUsual` that further versions may use. */
const versionsShare = 0.5;
const versionsMax = 8;
const positionsMin = 64;
const rowsMin = 8;
/** Allowance for memory that the runtime keeps in blocks of other sizes. */
const slack = 1.5;

/**
 * Plans the memory of a policy server. Results do not depend on it: with less, more requests wait. Throws if one version and one row do not
 * fit, and names a budget that would be enough.
 */
export function serverMemory(config: ModelConfig, use: ServerUse = {}): ServerMemory {
  const { memoryGb = null, quantize, memory = machineMemory() } = use;
  const weightBytes = 4 * elementCount(parameterLayout(config));
  const versionBytes = weightBytes + sessionBytes(config, quantize);
  const needed = processBytes + versionBytes + workBytesMin;
  const usual = Math.min(budgetUsual, machineShareUsual * memory.totalBytes);
  const budgetBytes = memoryGb === null ? Math.max(usual, needed - workBytesMin + workBytesUsual) : memoryGb * gigabyte;
  if (budgetBytes < needed) throw new MemoryTooSmall(memoryGb!, needed);
  const free = budgetBytes - processBytes - versionBytes;
  const more = Math.min(
    versionsMax - 1,
    Math.floor((versionsShare * Math.max(0, free - workBytesUsual)) / versionBytes),
  );
  return {
    budgetBytes,
    processBytes,
    versionBytes,
    weightBytesMax: (1 + more) * versionBytes,
    keepsBase: more > 0,
    limits: limitsFor(config, free - more * versionBytes, memoryGb !== null),
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

  constructor(memoryGb: number, needed: number) {
    const expected = `at least ${enoughGb(needed)}: one version of the model and one row need that much in the policy server`;
    super(
      'ConfigInvalid',
      `[inference] memory_gb (--memory-gb of a policy server): expected ${expected}; got ${memoryGb}. Write ${enoughGb(needed)}, or leave it out.`,
    );
    this.expected = expected;
    this.received = String(memoryGb);
  }
}

function limitsFor(config: ModelConfig, bytes: number, isBound: boolean): SamplingLimits {
  const usual = defaultSamplingLimits;
  const keyValueBytesMax = Math.min(usual.keyValueBytesMax, Math.floor(shares.keysValues * bytes));
  const atMost = (max: number, min: number, each: number, share: number): number =>
    Math.max(min, Math.min(max, Math.floor((share * bytes) / each)));
  return {
    keyValueBytesMax,
    // Without a configured budget, a row longer than the usual limit may run alone.
    aloneBytesMax: isBound ? keyValueBytesMax : usual.aloneBytesMax,
    promptBytesMax: Math.min(usual.promptBytesMax, Math.floor(shares.prompts * bytes)),
    prefillPositionsMax: atMost(usual.prefillPositionsMax, positionsMin, prefillBytes(config), shares.prefill),
    rowsMax: atMost(usual.rowsMax, rowsMin, stepBytes(config), shares.step),
  };
}

/** Bytes per position of a prefill run: its keys and values, and the output of the widest layer. */
function prefillBytes(config: ModelConfig): number {
  return rowBytes(config, 1) + slack * layerBytes(config);
}

/** Bytes per row of a step: logits, logits at the row's temperature, and probabilities. */
function stepBytes(config: ModelConfig): number {
  return 3 * 4 * config.vocabularySize + slack * layerBytes(config);
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
