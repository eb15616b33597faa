import { RatchetError } from '../../core/errors.ts';
import { memoryShareMax, parametersMax } from '../limits.ts';
import { type MachineMemory, machineMemory } from './machine-memory.ts';

/** Weights, gradient, the gradient of a micro-batch and two moments. */
export const copiesInTraining = 5;
/** Several passes over a batch also keep weights and moments of the start, to go back to when a later one is refused. */
export const copiesForPasses = 3;

interface MemoryOptions {
  /** Parameters that LoRA trains and copies; the model itself is in memory once. */
  readonly adapterCount?: number;
  /** Copies of the model's parameters that are in memory already. */
  readonly copiesHeld?: number;
  readonly memory?: MachineMemory;
}

const floatBytes = 4;

/**
 * Refuses a model whose parameters, in `copies` of 32-bit floats, would not leave the machine room to work. Needs
 * config.json alone (`parameterCount`), so it comes before any weight is read.
 */
export function requireMemory(
  parameterCount: number,
  copies: number,
  purpose: string,
  options: MemoryOptions = {},
): void {
  const { adapterCount, copiesHeld = 0, memory = machineMemory() } = options;
  const weightBytes = parameterCount * floatBytes;
  const neededBytes =
    adapterCount === undefined ? weightBytes * copies : weightBytes + adapterCount * floatBytes * copies;
  const allowedBytes = memory.totalBytes * memoryShareMax;
  const missingBytes = neededBytes - copiesHeld * weightBytes;
  const fits = neededBytes <= allowedBytes && missingBytes <= memory.availableBytes;
  if (fits && parameterCount <= parametersMax) return;
  const copied = adapterCount === undefined ? `${copies} ${copies === 1 ? 'copy' : 'copies'}` : 'LoRA';
  const couldAdapt = adapterCount === undefined && copies > 1 && weightBytes * loraShare <= allowedBytes;
  const smallerAdapters = adapterCount === undefined ? '' : ', a smaller r';
  throw new RatchetError(
    'ModelUnsupported',
    `The model has ${millions(parameterCount)} parameters, ${gibibytes(weightBytes)} in 32-bit floats; ${purpose} needs ` +
      `${gibibytes(neededBytes)} (${copied}). ${atHand(memory, allowedBytes)}` +
      (parameterCount > parametersMax ? ` It holds at most ${millions(parametersMax)} parameters in one array.` : '') +
      ` Use a smaller model${couldAdapt ? ', LoRA, which copies its adapters alone,' : smallerAdapters} or a larger machine; a model ` +
      `of this size is for a GPU engine, e.g. Tinker/SkyRL or prime-rl for training and vLLM for sampling.`,
  );
}

/** Adapters, their gradients and moments come to a few percent of the weights. */
const loraShare = 1.1;

function atHand({ totalBytes, availableBytes, isLimited }: MachineMemory, allowedBytes: number): string {
  const where = isLimited ? "This process's control group may use" : 'This machine has';
  return (
    `${where} ${gibibytes(totalBytes)}, of which the engine takes at most ${gibibytes(allowedBytes)}; ` +
    `${gibibytes(availableBytes)} are available now.`
  );
}

function gibibytes(bytes: number): string {
  const size = bytes / 2 ** 30;
  return `${size >= 0.1 ? size.toFixed(1) : size.toPrecision(1)} GiB`;
}

function millions(count: number): string {
  if (count >= 1e9) return `${(count / 1e9).toFixed(2)} billion`;
  return count >= 1e6 ? `${(count / 1e6).toFixed(1)} million` : `${count}`;
}
