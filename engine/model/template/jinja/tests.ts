import type { TemplateMeter } from '../template-meter.ts';
import { isCase } from './methods.ts';
import type { Comparison } from './nodes.ts';
import { compared } from './operators.ts';
import {
  type Arguments,
  Callable,
  Dict,
  Float,
  given as present,
  isInt,
  isNumber,
  isText,
  List,
  Members,
  numberOf,
  Safe,
  Undefined,
  type Value,
} from './values.ts';
import { shown } from './texts.ts';

type Test = (of: Value, other: Value, meter: TemplateMeter) => boolean;

/** Applies a test of jinja2: `of is name(…)`. */
export function test(name: string, of: Value, { positional }: Arguments, meter: TemplateMeter): boolean {
  const check = tests.get(name);
  if (!check) throw new Error(`the test "${name.slice(0, 100)}" is not supported.`);
  if (positional.length === 0 && withArgument.has(name))
    throw new Error(`the test "${name}" expects a value to compare with.`);
  meter.spend(1, `the test "${name}"`);
  return check(of, positional[0] ?? null, meter);
}

const comparing =
  (operator: Comparison): Test =>
  (of, other, meter) =>
    compared(operator, of, other, meter);

function remainder(of: Value, by: number): number {
  if (isInt(present(of))) return Number(((BigInt(of as number) % BigInt(by)) + BigInt(by)) % BigInt(by));
  if (of instanceof Float) return ((of.value % by) + by) % by;
  throw new Error('expected a number in a test of whether it is odd, even or divisible.');
}

const comparisons: readonly (readonly [Comparison, readonly string[]])[] = [
  ['==', ['==', 'eq', 'equalto']],
  ['!=', ['!=', 'ne']],
  ['>', ['>', 'gt', 'greaterthan']],
  ['>=', ['>=', 'ge']],
  ['<', ['<', 'lt', 'lessthan']],
  ['<=', ['<=', 'le']],
  ['in', ['in']],
];
const withArgument = new Set([...comparisons.flatMap(([, names]) => names), 'divisibleby', 'sameas']);

const tests: ReadonlyMap<string, Test> = new Map<string, Test>([
  ...comparisons.flatMap(([operator, names]) => names.map((name): [string, Test] => [name, comparing(operator)])),
  ['boolean', (of) => typeof of === 'boolean'],
  [
    'callable',
    (of) => of instanceof Callable || of instanceof Undefined || (of instanceof Members && of.call !== null),
  ],
  ['defined', (of) => !(of instanceof Undefined)],
  ['undefined', (of) => of instanceof Undefined],
  ['divisibleby', (of, by) => remainder(of, numberOf(present(by) as number)) === 0],
  ['escaped', (of) => of instanceof Safe],
  ['even', (of) => remainder(of, 2) === 0],
  ['odd', (of) => remainder(of, 2) === 1],
  ['false', (of) => of === false],
  ['true', (of) => of === true],
  ['float', (of) => of instanceof Float],
  ['integer', (of) => typeof of === 'number' || typeof of === 'bigint'],
  ['iterable', (of) => isText(of) || of instanceof List || of instanceof Dict || of instanceof Undefined],
  ['lower', (of, _, meter) => isCase(shown(of, meter, 'the test "lower"'), 'lower', meter)],
  ['upper', (of, _, meter) => isCase(shown(of, meter, 'the test "upper"'), 'upper', meter)],
  ['mapping', (of) => of instanceof Dict],
  ['none', (of) => of === null],
  ['number', (of) => isNumber(of)],
  ['sameas', (of, other) => of === other],
  [
    'sequence',
    (of) => isText(of) || of instanceof Dict || of instanceof Undefined || (of instanceof List && !of.isOnce),
  ],
  ['string', (of) => isText(of)],
]);
