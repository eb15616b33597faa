import { RatchetError } from '../../../core/errors.ts';
import type { OptimizerSettings } from '../../../core/settings/learning.ts';
import type { NamedTensor } from '../../model/safetensors.ts';
import type { Tensor } from '../../onnx/runtime.ts';
import { floatScalar } from '../../onnx/session.ts';
import type { Span } from './chunks.ts';

export interface WeightUpdate {
  /** The gradient's global norm. */
  readonly norm: number;
  readonly learningRate: number;
  readonly optimizer: OptimizerSettings;
  /** Parts of the weights that do not decay. */
  readonly spared?: readonly Span[];
}

/** Moves weights along a gradient, with state from step to step. */
export interface UpdateRule {
  /** Changes the weights in place. `step` counts from 1. */
  apply(weights: Float32Array, gradient: Float32Array, update: WeightUpdate, step: number): Promise<void>;
  /** The optimizer's state; not a copy. */
  state(): Readonly<Record<string, NamedTensor>>;
  restore(tensors: ReadonlyMap<string, NamedTensor>): void;
  reset(): void;
  close(): Promise<void>;
}

/** Added to the norm when clipping, as torch.nn.utils.clip_grad_norm_ does. */
const clipEpsilon = 1e-6;

/** Factor on the gradient. */
export function clipOf({ norm, optimizer }: WeightUpdate): number {
  return Math.min(1, optimizer.maxGradNorm / (norm + clipEpsilon));
}

export function scalarTensors(values: Readonly<Record<string, number>>): Record<string, Tensor> {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, floatScalar(value)]));
}

/** A flat array of the state, of the length it must have. */
export function stateOf(tensors: ReadonlyMap<string, NamedTensor>, name: string, length: number): Float32Array {
  const data = tensors.get(name)?.data;
  if (!(data instanceof Float32Array) || data.length !== length) throw damaged(`${name} with ${length} floats`);
  return data;
}

export function damaged(expected: string): RatchetError {
  return new RatchetError(
    'CheckpointDamaged',
    `The optimizer state does not belong to this model: expected ${expected}. Restore it from the same checkpoint.`,
  );
}
