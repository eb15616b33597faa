import { createHash, type Hash } from 'node:crypto';
import type { Tensor } from '../onnx/runtime.ts';
import { RatchetError } from '../../core/errors.ts';
import { floats } from '../onnx/session.ts';
import type { ModelConfig } from './config.ts';
import { elementCount, parameterLayout, type ParameterSpec } from './parameter-layout.ts';

/** Tensors by name over one flat array, so that an optimizer, a checkpoint or a digest sees a single vector. */
export class FlatTensors {
  readonly layout: readonly ParameterSpec[];
  #flat: Float32Array | (() => Float32Array);
  #views: ReadonlyMap<string, Float32Array> | null = null;
  #tensors: Readonly<Record<string, Tensor>> | null = null;
  #revision = 0;

  /** `flat` may be made when it is first read. */
  constructor(
    layout: readonly ParameterSpec[],
    flat: Float32Array | (() => Float32Array) = new Float32Array(elementCount(layout)),
  ) {
    this.layout = layout;
    this.#flat = flat;
  }

  get flat(): Float32Array {
    if (typeof this.#flat === 'function') this.#flat = this.#flat();
    return this.#flat;
  }

  /** The flat array, unless it has not been made yet. */
  get memory(): Float32Array | null {
    return typeof this.#flat === 'function' ? null : this.#flat;
  }

  /** Feeds for a session: tensor name → tensor over the flat array's memory. */
  get tensors(): Readonly<Record<string, Tensor>> {
    return (this.#tensors ??= Object.fromEntries(
      this.layout.map((spec) => [spec.name, floats(this.#slice(spec), spec.shape)]),
    ));
  }

  /** Changes with the values: results computed from them are then outdated. */
  get revision(): number {
    return this.#revision;
  }

  /** Must be called after a write to values that others may have read. */
  changed(): void {
    this.#revision++;
  }

  /** A view, not a copy: writing to it changes the model. */
  view(name: string): Float32Array {
    this.#views ??= new Map(this.layout.map((spec) => [spec.name, this.#slice(spec)]));
    const view = this.#views.get(name);
    if (!view) throw new RatchetError('ModelUnsupported', `The model has no tensor "${name}".`);
    return view;
  }

  /** SHA-256 of the flat array, lower-case hex. */
  digest(): string {
    return updateWithFloats(createHash('sha256'), this.flat).digest('hex');
  }

  #slice({ offset, length }: ParameterSpec): Float32Array {
    return this.flat.subarray(offset, offset + length);
  }
}

/** The weights of one policy version. Their digest is the version's identity. */
export class Parameters extends FlatTensors {
  readonly config: ModelConfig;

  constructor(config: ModelConfig, flat?: Float32Array | (() => Float32Array)) {
    super(parameterLayout(config), flat);
    this.config = config;
  }

  clone(): Parameters {
    return new Parameters(this.config, this.flat.slice());
  }
}

/** A hash takes less than 2 GiB at a time. */
const hashedFloats = 1 << 26;

export function updateWithFloats(hash: Hash, values: Float32Array): Hash {
  for (let done = 0; done < values.length; done += hashedFloats) {
    const { buffer, byteOffset, byteLength } = values.subarray(done, done + hashedFloats);
    hash.update(new Uint8Array(buffer, byteOffset, byteLength));
  }
  return hash;
}
