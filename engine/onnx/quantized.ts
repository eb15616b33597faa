import type { Graph, Value } from './graph.ts';

/**
 * A way to keep the weight of a linear layer in fewer bits, for sampling: the fewer bytes of weights a step reads, the sooner it is
 * done. No gradient.
 */
export interface QuantizedScheme {
  /** The tensors that replace a weight [out, in]; their names are the weight's with endings. */
  readonly tensorsFor: (name: string, shape: readonly number[]) => readonly QuantizedTensor[];
  /** weight [out, in] → its parts, in the order of `tensorsFor`. */
  readonly quantize: (weight: Value) => readonly Value[];
  /** x Wᵀ for x [rows, in] and the parts of W. */
  readonly product: (x: Value, parts: readonly Value[]) => Value;
  /** Rows that give each row the bits it has among many: a multiple of this, at least. */
  readonly rowsMultiple: 1 | 2;
}

export interface QuantizedTensor {
  readonly name: string;
  readonly type: 'int8' | 'uint8' | 'float32';
  readonly shape: readonly number[];
}

export function quantizedInputs(graph: Graph, tensors: readonly QuantizedTensor[]): readonly Value[] {
  return tensors.map(({ name, type, shape }) => graph.input(name, type, shape));
}
