import assert from 'node:assert/strict';
import { fuseAdditions } from './fuse.ts';
import {
  type Attribute,
  type Dimension,
  type ElementType,
  encodeModel,
  type GraphNode,
  type GraphPort,
  type Initializer,
  type TensorShape,
} from './model-proto.ts';

/** Turns the gradient of a node's first output into the gradient of one of its inputs; null without a gradient. */
type Backward = (gradient: Value) => Value | null;

/** A tensor that a graph will compute: a name with a shape, and how a gradient flows back through it. */
export interface Value {
  readonly graph: Graph;
  readonly name: string;
  readonly shape: TensorShape;
  readonly type: ElementType;
  /** False for constants, frozen inputs and everything made of them alone: no gradient node is emitted for those. */
  readonly needsGradient: boolean;
  readonly inputs: readonly Value[];
  /** Aligned with inputs; null if no gradient flows back. */
  readonly backward: readonly (Backward | null)[];
}

interface NodeOptions {
  readonly attributes?: Readonly<Record<string, Attribute>>;
  readonly domain?: 'com.microsoft';
  readonly shape: TensorShape;
  readonly type?: ElementType;
  readonly backward?: readonly (Backward | null)[];
  /** Shapes of further outputs, which carry no gradient. */
  readonly extraOutputs?: readonly TensorShape[];
}

interface GraphOutput extends GraphPort {
  readonly source: string;
}

/** Collects nodes in the order they are made, which is the order ONNX wants, and writes them as a model file. */
export class Graph {
  readonly #nodes: GraphNode[] = [];
  readonly #inputs: GraphPort[] = [];
  readonly #outputs: GraphOutput[] = [];
  readonly #initializers: Initializer[] = [];
  readonly #constants = new Map<string, Value>();
  readonly #sizes = new Map<string, Value>();
  readonly #shapes = new Map<string, Value>();
  readonly #parts = new Map<string, unknown>();
  readonly #shapeOf = new Map<string, TensorShape>();
  #nextId = 0;

  input(name: string, type: ElementType, shape: TensorShape, options: { needsGradient?: boolean } = {}): Value {
    this.#inputs.push({ name, type, shape });
    return this.#leaf(name, type, shape, options.needsGradient ?? false);
  }

  /** Names a value as an output; the shape is that of the value. */
  output(name: string, value: Value): void {
    this.#outputs.push({ name, type: value.type, shape: value.shape, source: value.name });
  }

  /** An output that is also the name of a node's own output, so that ONNX Runtime can write it in place. */
  directOutput(value: Value): void {
    this.output(value.name, value);
  }

  scalar(value: number): Value {
    return this.#cached(`float ${value}`, () => this.table(Float32Array.of(value), []));
  }

  integers(values: readonly number[]): Value {
    const bytes = () => new Uint8Array(BigInt64Array.from(values, BigInt).buffer);
    return this.#cached(`ints ${values.join()}`, () => this.#initializer('int64', [values.length], bytes()));
  }

  bytes(values: Uint8Array, shape: readonly number[]): Value {
    return this.#initializer('uint8', shape, values);
  }

  table(values: Float32Array, shape: readonly number[]): Value {
    const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    return this.#initializer('float32', shape, bytes);
  }

  /** Placeholder for an optional input. */
  absent(): Value {
    return this.#leaf('', 'float32', [], false);
  }

  /** A part that several operators of this graph use; made once. */
  shared<Part>(key: string, make: () => Part): Part {
    const part = (this.#parts.get(key) as Part | undefined) ?? make(); // under this key `make` put it there
    this.#parts.set(key, part);
    return part;
  }

  /** One node. Its first output is returned; `nodes` gives the others as well. */
  node(operator: string, inputs: readonly Value[], options: NodeOptions): Value {
    return this.nodes(operator, inputs, options)[0];
  }

  nodes(operator: string, inputs: readonly Value[], options: NodeOptions): [Value, ...Value[]] {
    const backward = options.backward ?? [];
    const type = options.type ?? inputs[0]?.type ?? 'float32';
    const needsGradient = inputs.some((input, i) => input.needsGradient && backward[i] != null);
    const first: Value = {
      graph: this,
      name: this.#fresh(),
      shape: options.shape,
      type,
      needsGradient,
      inputs,
      backward,
    };
    const extra = (options.extraOutputs ?? []).map((shape) => this.#leaf(this.#fresh(), type, shape, false));
    this.#nodes.push({
      operator,
      inputs: inputs.map((input) => input.name),
      outputs: [first.name, ...extra.map((value) => value.name)],
      attributes: options.attributes ?? {},
      domain: options.domain ?? '',
    });
    this.#shapeOf.set(first.name, first.shape);
    return [first, ...extra];
  }

  /** A node with given names of outputs (the in-place caches of a decode graph). */
  namedNode(node: GraphNode, outputs: readonly GraphPort[]): Value[] {
    this.#nodes.push(node);
    return outputs.map((port) => this.#leaf(port.name, port.type, port.shape, false));
  }

  /** Defines how the size called `name` is read while the graph runs: dimension `axis` of `value`. */
  defineSize(name: string, value: Value, axis: number): void {
    const shape = this.node('Shape', [value], { shape: [value.shape.length], type: 'int64' });
    const size = this.node('Slice', [shape, this.integers([axis]), this.integers([axis + 1])], {
      shape: [1],
      type: 'int64',
    });
    this.#sizes.set(name, size);
  }

  /** A shape as an int64 vector, for Reshape: at most one size may be undefined and is inferred (−1). */
  reshapeVector(shape: TensorShape): Value {
    const named = shape.filter((size) => typeof size === 'string');
    const unknown = named.filter((size) => !this.#sizes.has(size));
    assert(unknown.length <= 1, `cannot reshape to [${shape.join()}]: the sizes ${unknown.join()} are not defined`);
    // A single named size is inferred even when it is defined: a constant costs nothing at run time.
    if (named.length <= 1) return this.integers(shape.map((size) => (typeof size === 'number' ? size : -1)));
    return this.#concatenatedShape(shape);
  }

  /** A shape as an int64 vector, for Expand: every named size is defined. */
  shapeVector(shape: TensorShape): Value {
    const unknown = shape.find((size) => typeof size === 'string' && !this.#sizes.has(size));
    assert(unknown === undefined, `the size ${unknown} is not defined`);
    return this.#concatenatedShape(shape);
  }

  get inputNames(): string[] {
    return this.#inputs.map(({ name }) => name);
  }

  get outputNames(): string[] {
    return this.#outputs.map(({ name }) => name);
  }

  /** `constants` are inputs that the session gets once and for all: the runtime may move and pack them as it likes. */
  encode(constants: ReadonlySet<string> = new Set()): Uint8Array {
    const kept = this.#outputs.map(({ source }) => source);
    const nodes = fuseAdditions(this.#nodes, { shapeOf: this.#shapeOf, kept });
    return encodeModel({
      nodes: nameOutputs(nodes, this.#outputs),
      inputs: this.#inputs.filter(({ name }) => !constants.has(name)),
      outputs: this.#outputs,
      initializers: this.#initializers,
      externals: this.#inputs
        .filter(({ name }) => constants.has(name))
        .map(({ name, type, shape }) => ({ name, type, shape: fixedShape(name, shape) })),
    });
  }

  #concatenatedShape(shape: TensorShape): Value {
    const made = this.#shapes.get(shape.join());
    if (made) return made;
    const parts = shape.map((size) => this.#sizeVector(size));
    const vector = this.node('Concat', parts, {
      attributes: { axis: { int: 0 } },
      shape: [parts.length],
      type: 'int64',
    });
    this.#shapes.set(shape.join(), vector);
    return vector;
  }

  #sizeVector(size: Dimension): Value {
    if (typeof size === 'number') return this.integers([size]);
    return this.#sizes.get(size) ?? this.integers([-1]);
  }

  #initializer(type: ElementType, shape: readonly number[], bytes: Uint8Array): Value {
    const name = this.#fresh();
    this.#initializers.push({ name, type, shape, bytes });
    return this.#leaf(name, type, shape, false);
  }

  #cached(key: string, make: () => Value): Value {
    const cached = this.#constants.get(key) ?? make();
    this.#constants.set(key, cached);
    return cached;
  }

  #leaf(name: string, type: ElementType, shape: TensorShape, needsGradient: boolean): Value {
    this.#shapeOf.set(name, shape);
    return { graph: this, name, shape, type, needsGradient, inputs: [], backward: [] };
  }

  #fresh(): string {
    return `v${this.#nextId++}`;
  }
}

function fixedShape(name: string, shape: TensorShape): readonly number[] {
  return shape.map((size) => {
    assert(typeof size === 'number', `${name} is a constant: its sizes are fixed, and ${size} is not`);
    return size;
  });
}

/** Nodes write outputs under the names they go by, so that nothing is copied; a second name of one value is a copy. */
function nameOutputs(nodes: readonly GraphNode[], outputs: readonly GraphOutput[]): GraphNode[] {
  const written = new Set(nodes.flatMap((node) => node.outputs));
  const nameOf = new Map<string, string>();
  const copies: GraphNode[] = [];
  for (const { name, source } of outputs) {
    if (written.has(source) && !nameOf.has(source)) nameOf.set(source, name);
    else
      copies.push({
        operator: 'Identity',
        inputs: [nameOf.get(source) ?? source],
        outputs: [name],
        attributes: {},
        domain: '',
      });
  }
  const renamed = (names: readonly string[]): string[] => names.map((name) => nameOf.get(name) ?? name);
  return [
    ...nodes.map((node) => ({ ...node, inputs: renamed(node.inputs), outputs: renamed(node.outputs) })),
    ...copies,
  ];
}
