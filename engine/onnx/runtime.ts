import assert from 'node:assert/strict';
import { RatchetError } from '../../core/errors.ts';
import {
  addressOf,
  call,
  callAside,
  environment,
  held,
  logErrors,
  made,
  type Pointer,
  release,
  viewOf,
} from './c-api.ts';
import { cudaLibrariesFrom } from './runtime-package.ts';

/** ONNX Runtime's sessions and tensors, over its C API. */

/** Element types by name: their code (enum ONNXTensorElementDataType) and the array that holds them. */
const elementTypes = {
  float32: { code: 1, array: Float32Array },
  uint8: { code: 2, array: Uint8Array },
  int8: { code: 3, array: Int8Array },
  int32: { code: 6, array: Int32Array },
  int64: { code: 7, array: BigInt64Array },
  bool: { code: 9, array: Uint8Array },
} as const;

type TensorType = keyof typeof elementTypes;
type TensorData = Float32Array | Int8Array | Int32Array | BigInt64Array | Uint8Array;

/** Releases the runtime's half of a tensor when ours is collected. */
const values = new FinalizationRegistry<Pointer>((value) => release('releaseValue', value));

/** An array with a type and a shape. A run reads and writes the array itself: nothing is copied on the way. */
export class Tensor {
  readonly type: TensorType;
  readonly data: TensorData;
  readonly dims: readonly number[];
  #value: Pointer = 0n;

  constructor(type: TensorType, data: TensorData, dims: readonly number[]) {
    const { array } = elementTypes[type];
    const size = dims.reduce((product, dim) => product * dim, 1);
    assert(data instanceof array, `a ${type} tensor is held by a ${array.name}`);
    assert(data.length === size, `a tensor of shape [${dims.join()}] has ${size} elements, not ${data.length}`);
    this.type = type;
    this.data = held(data);
    this.dims = dims;
  }

  get size(): number {
    return this.data.length;
  }

  /** The runtime's view of it, made when it is first needed. */
  get value(): Pointer {
    if (this.#value !== 0n) return this.#value;
    const { data, dims } = this;
    const shape = BigInt64Array.from(dims, BigInt);
    // Memory of no bytes has no address; the runtime wants one.
    const memory = data.length === 0 ? nothing : data;
    const { code } = elementTypes[this.type];
    this.#value = made('createTensorWithData', cpuMemory(), memory, data.byteLength, shape, dims.length, code);
    values.register(this, this.#value);
    return this.#value;
  }
}

const nothing = new Float64Array(1);

interface SessionConfig {
  readonly threads: number;
  readonly provider: 'cpu' | 'cuda';
  /** Whether a run's allocations are laid out in one piece for later runs of the same shapes. */
  readonly plansMemory: boolean;
  /** Whether a thread that waits for the others keeps its processor meanwhile. */
  readonly spins: boolean;
}

interface Model {
  readonly file: Uint8Array;
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  /** Inputs with constant values; a run's feeds cannot override them. */
  readonly constants: Tensors;
  /**
   * The session reads constants in place and keeps them alive, instead of copying them. Only on a CPU. A copy would be
   * freed once a matrix is packed, but all copies are made before the first is freed.
   */
  readonly borrowsConstants: boolean;
}

export type Tensors = Readonly<Record<string, Tensor>>;

/** Inputs of a run: tensors, or the runtime's half of tensors that another thread holds. */
export type Feeds = Readonly<Record<string, { readonly value: Pointer }>>;

/** Everything that another thread needs to run an open session. */
export interface SharedSession {
  readonly session: Pointer;
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  readonly constantNames: readonly string[];
}

/** A run that is made again and again. */
export interface PreparedRun {
  /** On another thread: the tensors must not be touched before it is done. */
  readonly aside: () => Promise<void>;
  /** On this thread, which does nothing else meanwhile; it saves the hand-over, some 0.1 ms. */
  readonly here: () => void;
}

export class InferenceSession {
  /** Tensors that the session reads in place; null = it has its own copy. */
  readonly #constants: Map<string, Tensor | null>;
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  /** 0 once released. */
  #session: Pointer;
  readonly #names: Names = new Map();
  #running = 0;

  private constructor(session: Pointer, { inputNames, outputNames, constantNames }: Omit<SharedSession, 'session'>) {
    this.#session = session;
    this.#constants = new Map(constantNames.map((name) => [name, null]));
    this.inputNames = inputNames;
    this.outputNames = outputNames;
  }

  static async create(model: Model, config: SessionConfig): Promise<InferenceSession> {
    const options = sessionOptions(config);
    try {
      addConstants(options, model);
      const out = held(new BigUint64Array(1));
      const { file, constants, borrowsConstants, ...names } = model;
      await callAside('createSessionFromArray', [environment(), file, file.byteLength, options, out], constants);
      const session = new InferenceSession(out[0]!, { ...names, constantNames: Object.keys(constants) });
      if (borrowsConstants)
        for (const [name, tensor] of Object.entries(constants)) session.#constants.set(name, tensor);
      return session;
    } finally {
      release('releaseSessionOptions', options);
    }
  }

  get hasConstants(): boolean {
    return this.#constants.size > 0;
  }

  /**
   * Shares the session with another thread of this process, whose runs must end before this one releases the session.
   */
  share(): SharedSession {
    const { inputNames, outputNames } = this;
    return { session: this.#session, inputNames, outputNames, constantNames: [...this.#constants.keys()] };
  }

  /** A session that another thread has opened, and releases. */
  static attach({ session, ...names }: SharedSession): InferenceSession {
    return new InferenceSession(session, names);
  }

  /**
   * Computes the outputs in `fetches`, or all: into the given tensor, which is also returned, or into a new one for
   * null. Runs on another thread; the tensors must not be touched before it is done.
   */
  async run(feeds: Feeds, fetches?: Fetches): Promise<Record<string, Tensor>> {
    const wanted = this.#wanted(fetches);
    const prepared = this.#lay(feeds, wanted);
    await this.#compute(prepared);
    return takeOutputs(wanted, prepared);
  }

  runHere(feeds: Feeds, fetches?: Fetches): Record<string, Tensor> {
    const wanted = this.#wanted(fetches);
    const prepared = this.#lay(feeds, wanted);
    this.#computeHere(prepared);
    return takeOutputs(wanted, prepared);
  }

  /** A run for repeated use: its arguments are laid out once. */
  prepare(feeds: Feeds, fetches: Tensors): PreparedRun {
    const prepared = this.#lay(feeds, Object.entries(fetches));
    return { aside: () => this.#compute(prepared), here: () => this.#computeHere(prepared) };
  }

  #wanted(fetches: Fetches | undefined): Wanted {
    return fetches ? Object.entries(fetches) : this.outputNames.map((name): [string, null] => [name, null]);
  }

  #lay(feeds: Feeds, wanted: Wanted): Prepared {
    return { inputs: this.#placeInputs(feeds), outputs: place(this.#names, wanted), memory: [feeds, wanted] };
  }

  #placeInputs(feeds: Feeds): Placed {
    return place(
      this.#names,
      Object.entries(feeds).filter(([name]) => !this.#constants.has(name)),
    );
  }

  async #compute(prepared: Prepared): Promise<void> {
    const values = this.#argumentsOf(prepared);
    this.#running++;
    try {
      await callAside('run', values, prepared.memory);
    } finally {
      this.#running--;
    }
  }

  #computeHere(prepared: Prepared): void {
    call('run', ...this.#argumentsOf(prepared));
  }

  #argumentsOf({ inputs: { names, values }, outputs }: Prepared): unknown[] {
    assert(this.#session !== 0n, 'the session is open');
    return [this.#session, null, names, values, values.length, outputs.names, outputs.values.length, outputs.values];
  }

  async release(): Promise<void> {
    assert(this.#running === 0, 'nothing runs in a session that is released');
    if (this.#session !== 0n) release('releaseSession', this.#session);
    this.#session = 0n;
    for (const name of this.#constants.keys()) this.#constants.set(name, null);
  }
}

type Fetches = Readonly<Record<string, Tensor | null>>;
type Wanted = readonly (readonly [name: string, Tensor | null])[];

function takeOutputs(wanted: Wanted, { outputs }: Prepared): Record<string, Tensor> {
  return Object.fromEntries(wanted.map(([name, tensor], i) => [name, tensor ?? takeOver(outputs.values[i]!)]));
}

interface Placed {
  /** Addresses of C strings. */
  readonly names: BigUint64Array;
  /** Addresses; 0 = made by the run. */
  readonly values: BigUint64Array;
}

interface Prepared {
  readonly inputs: Placed;
  readonly outputs: Placed;
  /** Memory that the addresses point into. */
  readonly memory: unknown;
}

/** C strings by name, kept alive with their addresses. */
type Names = Map<string, { readonly text: Buffer; readonly address: Pointer }>;

function place(names: Names, entries: readonly (readonly [string, { readonly value: Pointer } | null])[]): Placed {
  return {
    names: held(BigUint64Array.from(entries, ([name]) => nameIn(names, name))),
    values: held(BigUint64Array.from(entries, ([, tensor]) => tensor?.value ?? 0n)),
  };
}

function nameIn(names: Names, name: string): Pointer {
  const known = names.get(name);
  if (known) return known.address;
  const text = Buffer.from(`${name}\0`);
  const address = addressOf(text);
  names.set(name, { text, address });
  return address;
}

function addConstants(options: Pointer, { constants, borrowsConstants }: Model): void {
  const entries = Object.entries(constants);
  if (entries.length === 0) return;
  const { names, values } = place(new Map(), entries);
  // The file names the data of constants without having it. This call alone satisfies the check of the file.
  call('addExternalInitializers', options, names, values, entries.length);
  if (borrowsConstants) names.forEach((name, i) => call('addInitializer', options, name, values[i]!));
}

function sessionOptions({ threads, provider, plansMemory, spins }: SessionConfig): Pointer {
  const options = made('createSessionOptions');
  try {
    call('setIntraOpNumThreads', options, threads);
    call('setInterOpNumThreads', options, 1);
    call('setSessionExecutionMode', options, sequential);
    call('setGraphOptimizationLevel', options, allOptimizations);
    call('setSessionLogSeverityLevel', options, logErrors);
    if (!spins) call('addSessionConfigEntry', options, 'session.intra_op.allow_spinning', '0');
    if (!plansMemory) call('disableMemPattern', options);
    if (provider === 'cuda') appendCuda(options);
    return options;
  } catch (error) {
    release('releaseSessionOptions', options);
    throw error;
  }
}

const sequential = 0;
const allOptimizations = 99;

function appendCuda(options: Pointer): void {
  const cuda = made('createCudaProviderOptions');
  try {
    call('appendCudaProvider', options, cuda);
  } catch (cause) {
    const expected = 'an NVIDIA GPU, CUDA 12, cuDNN 9, and the CUDA libraries of ONNX Runtime beside its own';
    const remedy = `\`${cudaLibrariesFrom()}\` fetches the last of them on Linux x64; provider = "cpu" needs none.`;
    throw new RatchetError('Unsupported', `provider = "cuda": expected ${expected}; got ${String(cause)}. ${remedy}`, {
      cause,
    });
  } finally {
    release('releaseCudaProviderOptions', cuda);
  }
}

let cpuMemoryInfo: Pointer | undefined;

function cpuMemory(): Pointer {
  return (cpuMemoryInfo ??= made('createCpuMemoryInfo', arenaAllocator, defaultMemory));
}

const arenaAllocator = 1;
const defaultMemory = 0;

/** Copies a value the runtime made into memory of ours, and releases it. */
function takeOver(value: Pointer): Tensor {
  const info = made('getTensorTypeAndShape', value);
  try {
    const code = new Int32Array(1);
    call('getTensorElementType', info, code);
    const rank = made('getDimensionsCount', info);
    const dims = new BigInt64Array(Math.max(1, Number(rank)));
    call('getDimensions', info, dims, rank);
    const shape = [...dims.subarray(0, Number(rank))].map(Number);
    const [type, { array }] = elementTypeOf(code[0]!);
    const size = shape.reduce((product, dim) => product * dim, 1);
    const bytes = size * array.BYTES_PER_ELEMENT;
    const data = size === 0 ? new array(0) : new array(viewOf(made('getTensorMutableData', value), bytes).slice(0));
    return new Tensor(type, data, shape);
  } finally {
    release('releaseTensorTypeAndShapeInfo', info);
    release('releaseValue', value);
  }
}

function elementTypeOf(code: number): [TensorType, (typeof elementTypes)[TensorType]] {
  const entry = Object.entries(elementTypes).find(([, element]) => element.code === code);
  assert(entry, `an output has element type ${code}; expected one of ${Object.keys(elementTypes).join(', ')}`);
  return entry as [TensorType, (typeof elementTypes)[TensorType]]; // keys of elementTypes are TensorTypes
}
