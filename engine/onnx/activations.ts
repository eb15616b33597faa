import type { Value } from './graph.ts';
import { add, multiply, stopGradient, subtract, sum } from './operators.ts';

/** Operators of some families, their gradients worked out by hand as in composites.ts. */

const slope = Math.sqrt(2 / Math.PI);
const cubic = 0.044715;

/**
 * gelu(gate) · up with gelu(x) = x (1 + t) / 2, t = tanh(√(2/π) (x + 0.044715 x³)) (Hendrycks & Gimpel 2016).
 * gelu′ = (1 + t) / 2 + x (1 − t²) √(2/π) (1 + 3 · 0.044715 x²) / 2.
 */
export function gatedGelu(gate: Value, up: Value): Value {
  const { graph, shape } = gate;
  const [x, other] = [stopGradient(gate), stopGradient(up)];
  const square = multiply(x, x);
  const inner = multiply(multiply(x, slope), add(multiply(square, cubic), 1));
  const t = graph.node('Tanh', [inner], { shape });
  const half = multiply(add(t, 1), 0.5);
  const gelu = multiply(x, half);
  const ofGate = (): Value => {
    const steep = multiply(add(multiply(square, 3 * cubic), 1), slope / 2);
    const fall = add(multiply(multiply(t, t), -1), 1);
    return add(half, multiply(multiply(x, fall), steep));
  };
  return {
    ...multiply(gelu, other),
    needsGradient: gate.needsGradient || up.needsGradient,
    inputs: [gate, up],
    backward: [(d) => multiply(multiply(d, other), ofGate()), (d) => multiply(d, gelu)],
  };
}

/** Over the last axis. With p the result: dx = p (d − Σ d p). */
export function softmax(x: Value): Value {
  const probabilities = stopGradient(
    x.graph.node('Softmax', [stopGradient(x)], { attributes: { axis: { int: -1 } }, shape: x.shape }),
  );
  return {
    ...probabilities,
    needsGradient: x.needsGradient,
    inputs: [x],
    backward: [
      (d) => {
        const mean = sum(multiply(d, probabilities), [x.shape.length - 1], { keep: true });
        return multiply(probabilities, subtract(d, mean));
      },
    ],
  };
}
