import { ProtobufWriter } from './protobuf.ts';

/** The parts of ONNX's ModelProto that a graph of ours uses. Field numbers: onnx/onnx.proto, IR version 10. */

export const elementTypes = { float32: 1, uint8: 2, int8: 3, int32: 6, int64: 7, bool: 9, bfloat16: 16 } as const;
export type ElementType = keyof typeof elementTypes;

/** A number, or the name of a size that each run decides. */
export type Dimension = number | string;
export type TensorShape = readonly Dimension[];

export type Attribute =
  | { readonly int: number }
  | { readonly float: number }
  | { readonly string: string }
  | { readonly ints: readonly number[] };

export interface GraphNode {
  readonly operator: string;
  /** Input names; '' leaves an optional input out. */
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly attributes: Readonly<Record<string, Attribute>>;
  /** '' = ONNX itself; 'com.microsoft' = ONNX Runtime's contributed operators. */
  readonly domain: '' | 'com.microsoft';
}

export interface GraphPort {
  readonly name: string;
  readonly type: ElementType;
  readonly shape: TensorShape;
}

export interface Initializer {
  readonly name: string;
  readonly type: ElementType;
  readonly shape: readonly number[];
  /** Little-endian elements. */
  readonly bytes: Uint8Array;
}

/** A constant that is handed over beside the file, when the session is made. */
interface ExternalInitializer {
  readonly name: string;
  readonly type: ElementType;
  readonly shape: readonly number[];
}

interface GraphParts {
  readonly nodes: readonly GraphNode[];
  readonly inputs: readonly GraphPort[];
  readonly outputs: readonly GraphPort[];
  readonly initializers: readonly Initializer[];
  readonly externals: readonly ExternalInitializer[];
}

const irVersion = 10;
const opset = 21;
const attributeTypes = { float: 1, int: 2, string: 3, ints: 7 };

export function encodeModel(parts: GraphParts): Uint8Array {
  return new ProtobufWriter()
    .int(1, irVersion)
    .string(2, 'ratchet')
    .message(7, encodeGraph(parts))
    .message(8, new ProtobufWriter().string(1, '').int(2, opset))
    .message(8, new ProtobufWriter().string(1, 'com.microsoft').int(2, 1))
    .finish();
}

function encodeGraph(parts: GraphParts): ProtobufWriter {
  const graph = new ProtobufWriter();
  parts.nodes.forEach((node, index) => graph.message(1, encodeNode(node, index)));
  graph.string(2, 'ratchet');
  for (const initializer of parts.initializers) graph.message(5, encodeInitializer(initializer));
  for (const external of parts.externals) graph.message(5, encodeExternal(external));
  for (const port of parts.inputs) graph.message(11, encodePort(port));
  for (const port of parts.outputs) graph.message(12, encodePort(port));
  return graph;
}

function encodeNode(node: GraphNode, index: number): ProtobufWriter {
  const writer = new ProtobufWriter();
  for (const input of node.inputs) writer.string(1, input);
  for (const output of node.outputs) writer.string(2, output);
  writer.string(3, `${node.operator}_${index}`).string(4, node.operator);
  for (const [name, attribute] of Object.entries(node.attributes)) writer.message(5, encodeAttribute(name, attribute));
  if (node.domain !== '') writer.string(7, node.domain);
  return writer;
}

function encodeAttribute(name: string, attribute: Attribute): ProtobufWriter {
  const writer = new ProtobufWriter().string(1, name);
  if ('float' in attribute) return writer.float(2, attribute.float).int(20, attributeTypes.float);
  if ('int' in attribute) return writer.int(3, attribute.int).int(20, attributeTypes.int);
  if ('string' in attribute) return writer.string(4, attribute.string).int(20, attributeTypes.string);
  for (const value of attribute.ints) writer.int(8, value);
  return writer.int(20, attributeTypes.ints);
}

function encodeInitializer(initializer: Initializer): ProtobufWriter {
  const writer = new ProtobufWriter();
  for (const size of initializer.shape) writer.int(1, size);
  return writer.int(2, elementTypes[initializer.type]).string(8, initializer.name).bytes(9, initializer.bytes);
}

/** Data location 1 = external; the file it names is never opened, since the data is handed over. */
function encodeExternal({ name, type, shape }: ExternalInitializer): ProtobufWriter {
  const writer = new ProtobufWriter();
  for (const size of shape) writer.int(1, size);
  const location = new ProtobufWriter().string(1, 'location').string(2, 'handed-over');
  return writer.int(2, elementTypes[type]).string(8, name).message(13, location).int(14, 1);
}

function encodePort(port: GraphPort): ProtobufWriter {
  const shape = new ProtobufWriter();
  for (const size of port.shape) shape.message(1, encodeDimension(size));
  const tensor = new ProtobufWriter().int(1, elementTypes[port.type]).message(2, shape);
  return new ProtobufWriter().string(1, port.name).message(2, new ProtobufWriter().message(1, tensor));
}

function encodeDimension(size: Dimension): ProtobufWriter {
  return typeof size === 'number' ? new ProtobufWriter().int(1, size) : new ProtobufWriter().string(2, size);
}
