import { gradientsFrom } from './gradient.ts';
import type { Value } from './graph.ts';
import { elementTypes } from './model-proto.ts';

/**
 * `compute` of some values, keeping only its inputs for the gradient: the backward pass computes the values between
 * again (Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost). The numbers are the same. Values that
 * `compute` reads beside `inputs` get no gradient from it.
 */
export function recomputed(inputs: readonly Value[], compute: (inputs: readonly Value[]) => Value): Value {
  const result = compute(inputs.map((input) => leaf(input, { needsGradient: false })));
  if (!inputs.some(({ needsGradient }) => needsGradient)) return result;
  let made: readonly (Value | null)[] | undefined;
  const gradientsOf = (d: Value): readonly (Value | null)[] => {
    const again = inputs.map((input) => leaf(isWeight(input) ? input : after(input, [d]), input));
    const made = gradientsFrom(compute(again), d, again);
    const ofWeights = made.filter((gradient, i) => gradient && isWeight(inputs[i]!)) as Value[];
    return made.map((gradient, i) => (gradient && !isWeight(inputs[i]!) ? after(gradient, ofWeights) : gradient));
  };
  return {
    ...result,
    needsGradient: true,
    inputs,
    backward: inputs.map((_, i) => (d) => (made ??= gradientsOf(d))[i] ?? null),
  };
}

/** A gradient goes to it and no further. */
function leaf(value: Value, { needsGradient }: Pick<Value, 'needsGradient'>): Value {
  return { ...value, needsGradient, inputs: [], backward: [] };
}

/** Weights have fixed sizes and are there from the start. */
function isWeight({ shape }: Value): boolean {
  return shape.every((size) => typeof size === 'number');
}

/**
 * x itself, available only after the others: otherwise the runtime would recompute the last layers at once, and delay
 * gradients of weights while it keeps their inputs. x is reshaped to its own shape plus 0, computed from whether a
 * number of the others is greater than itself.
 */
function after(x: Value, others: readonly Value[]): Value {
  if (others.length === 0) return x;
  const { graph, shape } = x;
  const firsts = others.map((other) => {
    const flat = graph.node('Reshape', [other, graph.integers([-1])], { shape: [`numbers of ${other.name}`] });
    return graph.node('Gather', [flat, graph.integers([0])], { shape: [1] });
  });
  const attributes = { axis: { int: 0 } };
  const numbers = graph.node('Concat', firsts, { attributes, shape: [firsts.length] });
  const never = graph.node('Greater', [numbers, numbers], { shape: [firsts.length], type: 'bool' });
  const whole = { attributes: { to: { int: elementTypes.int64 } }, shape: [firsts.length], type: 'int64' } as const;
  const zero = graph.node('ReduceSum', [graph.node('Cast', [never], whole), graph.integers([0])], {
    attributes: { keepdims: { int: 1 } },
    shape: [1],
    type: 'int64',
  });
  const size = graph.node('Shape', [x], { shape: [shape.length], type: 'int64' });
  const sizes = graph.node('Add', [size, zero], { shape: [shape.length], type: 'int64' });
  return graph.node('Reshape', [x, sizes], { shape });
}
