import type { Value } from './graph.ts';
import { add } from './operators.ts';

/**
 * Reverse-mode differentiation (Griewank & Walther, Evaluating Derivatives, 2008, §3.2): emits the nodes that compute
 * d loss / d value for each of `values`. The loss is a scalar. A value the loss does not depend on gives null.
 */
export function gradients(loss: Value, values: readonly Value[]): (Value | null)[] {
  return gradientsFrom(loss, loss.graph.scalar(1), values);
}

/** Gradients from a result of any shape, given its own gradient. */
export function gradientsFrom(result: Value, gradient: Value, values: readonly Value[]): (Value | null)[] {
  const gradientOf = new Map<Value, Value>([[result, gradient]]);
  for (const value of inputsLast(result)) {
    const gradient = gradientOf.get(value);
    if (gradient) propagate(value, gradient, gradientOf);
  }
  return values.map((value) => gradientOf.get(value) ?? null);
}

function propagate(value: Value, gradient: Value, gradientOf: Map<Value, Value>): void {
  value.inputs.forEach((input, i) => {
    const backward = value.backward[i];
    if (!input.needsGradient || !backward) return;
    const contribution = backward(gradient);
    if (!contribution) return;
    const sofar = gradientOf.get(input);
    gradientOf.set(input, sofar ? add(sofar, contribution) : contribution);
  });
}

/** Every value the gradient passes through, each before its inputs. */
function inputsLast(loss: Value): Value[] {
  const order: Value[] = [];
  const seen = new Set<Value>();
  const visit = (value: Value): void => {
    if (seen.has(value) || !value.needsGradient) return;
    seen.add(value);
    value.inputs.forEach(visit);
    order.push(value);
  };
  visit(loss);
  return order.toReversed();
}
