import { RatchetError } from '../../../core/errors.ts';
import type { OptimizerSettings } from '../../../core/settings/learning.ts';
import { elementCount, type ParameterSpec } from '../../model/parameter-layout.ts';
import { decodeSafetensors, encodeSafetensors } from '../../model/safetensors.ts';
import type { SessionOptions } from '../../onnx/session.ts';
import { AdamW } from './adamw.ts';
import { Cut } from './chunks.ts';
import { GradientNorm } from './gradient-norm.ts';
import { Muon } from './muon.ts';
import { damaged, type UpdateRule, type WeightUpdate } from './rule.ts';
import { Sgd, SignSgd } from './sgd.ts';

type OptimizerType = NonNullable<OptimizerSettings['type']>;

/**
 * The optimizer of flat weights, with the gradient clipped by its global norm. Every step names the optimizer; the
 * state is that of the one that made the steps so far. The bits of a step depend on the gradient and that state alone.
 */
export class WeightUpdates {
  readonly #layout: readonly ParameterSpec[];
  readonly #options: SessionOptions;
  readonly #whole: Cut;
  readonly #norm: GradientNorm;
  readonly #rules = new Map<OptimizerType, UpdateRule>();
  /** The optimizer of the steps so far; null before the first one. */
  #type: OptimizerType | null = null;
  /** Steps taken since the state was fresh. */
  #step = 0;

  constructor(layout: readonly ParameterSpec[], options: SessionOptions) {
    this.#layout = layout;
    this.#options = options;
    this.#whole = Cut.whole(elementCount(layout));
    this.#norm = new GradientNorm(this.#whole, options);
  }

  /** L2 norm: single precision within a chunk, double across them. Not finite when any element is not. */
  globalNorm(gradient: Float32Array): Promise<number> {
    return this.#norm.of(gradient);
  }

  async apply(weights: Float32Array, gradient: Float32Array, update: WeightUpdate): Promise<void> {
    const { type = 'adamw' } = update.optimizer;
    if (this.#type !== null && this.#type !== type) {
      throw new RatchetError(
        'CheckpointDamaged',
        `The optimizer state is of ${this.#type}, and the step is one of ${type}. A run keeps the optimizer that it began with.`,
      );
    }
    this.#type = type;
    this.#step++;
    await this.#rule(type).apply(weights, gradient, update, this.#step);
  }

  reset(): void {
    for (const rule of this.#rules.values()) rule.reset();
    this.#type = null;
    this.#step = 0;
  }

  /** Before the first step there is nothing to remember. AdamW's says nothing of its type. */
  save(): Uint8Array {
    const step = { shape: [1], data: BigInt64Array.of(BigInt(this.#step)) };
    const state = this.#type === null ? {} : this.#rule(this.#type).state();
    const isNamed = this.#type !== null && this.#type !== 'adamw';
    return encodeSafetensors({ ...state, step }, isNamed ? { optimizer: this.#type! } : {});
  }

  restore(state: Uint8Array): void {
    const { tensors, metadata } = decodeSafetensors(state, 'The optimizer state');
    const step = tensors.get('step')?.data;
    if (!(step instanceof BigInt64Array) || step[0] === undefined || step[0] < 0n) throw damaged('a step count');
    const type = typeNamed(metadata['optimizer'] ?? 'adamw');
    if (step[0] === 0n && tensors.size === 1) {
      this.reset();
      return;
    }
    this.#rule(type).restore(tensors);
    this.#type = step[0] === 0n ? null : type;
    this.#step = Number(step[0]);
  }

  async close(): Promise<void> {
    await Promise.all([...this.#rules.values()].map((rule) => rule.close()));
    await this.#norm.close();
  }

  #rule(type: OptimizerType): UpdateRule {
    const rule = this.#rules.get(type) ?? this.#open(type);
    this.#rules.set(type, rule);
    return rule;
  }

  #open(type: OptimizerType): UpdateRule {
    switch (type) {
      case 'adamw':
        return new AdamW(this.#whole, this.#options);
      case 'muon':
        return new Muon(this.#layout, this.#options);
      case 'sgd':
        return new Sgd(this.#whole, this.#options);
      case 'sign_sgd':
        return new SignSgd(this.#whole, this.#options);
      default:
        return type satisfies never;
    }
  }
}

function typeNamed(name: string): OptimizerType {
  if (name === 'adamw' || name === 'muon' || name === 'sgd' || name === 'sign_sgd') return name;
  throw damaged(`the state of an optimizer that is known, not of "${name}"`);
}
