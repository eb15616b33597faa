import type { GraphNode, TensorShape } from './model-proto.ts';

interface Surroundings {
  /** Keyed by the value's name. */
  readonly shapeOf: ReadonlyMap<string, TensorShape>;
  /** Outputs of the graph. */
  readonly kept: readonly string[];
}

/**
 * Replaces Gemm(A, B) + C by Gemm(A, B, C) if the product has no other reader: residuals, biases and sums of gradients
 * cost no pass of their own.
 */
export function fuseAdditions(nodes: readonly GraphNode[], { shapeOf, kept }: Surroundings): GraphNode[] {
  const uses = countUses(nodes, kept);
  const products = new Map(
    nodes
      .filter(
        ({ operator, inputs, outputs }) => operator === 'Gemm' && inputs.length === 2 && uses.get(outputs[0]!) === 1,
      )
      .map((node) => [node.outputs[0]!, node]),
  );
  const fused = new Set<GraphNode>();
  const result = nodes.map((node) => {
    if (node.operator !== 'Add') return node;
    const [a, b] = node.inputs as [string, string];
    const [product, other] = products.has(b) ? [b, a] : [a, b];
    const gemm = products.get(product);
    const keepsShape = isSame(shapeOf.get(product), shapeOf.get(node.outputs[0]!));
    if (!gemm || a === b || !keepsShape || !isSame(shapeOf.get(other), shapeOf.get(product))) return node;
    products.delete(product);
    fused.add(gemm);
    return { ...gemm, inputs: [...gemm.inputs, other], outputs: node.outputs };
  });
  return result.filter((node) => !fused.has(node));
}

function countUses(nodes: readonly GraphNode[], kept: readonly string[]): Map<string, number> {
  const uses = new Map<string, number>();
  for (const name of [...nodes.flatMap(({ inputs }) => inputs), ...kept]) {
    uses.set(name, (uses.get(name) ?? 0) + 1);
  }
  return uses;
}

function isSame(a: TensorShape | undefined, b: TensorShape | undefined): boolean {
  return a !== undefined && b !== undefined && a.length === b.length && a.every((size, axis) => size === b[axis]);
}
