import { Environment, Interpreter, type Template } from '@huggingface/jinja';
import { templateRangeMax, templateWorkMax } from '../limits.ts';

/**
 * Renders a chat template as Template.render does, up to a bound of work: a template comes with a model's files, and a loop in it
 * would stop everything else of this process, or fill its memory. Counted are the steps of its evaluation and what they give, so
 * that the same template ends at the same place on every machine.
 */
export function renderBounded(
  template: Template,
  variables: Readonly<Record<string, unknown>>,
  workMax = templateWorkMax,
): string {
  const scope = new NewScope();
  for (const [name, value] of Object.entries({ ...globals, ...variables })) scope.set(name, value);
  const rendered = new BoundedEvaluator(scope, workMax).run(template.parsed).value;
  if (typeof rendered === 'string') return rendered;
  throw new TypeError(`expected a template that gives a text, got ${typeof rendered}`);
}

/** Characters or items of a value that count as one step: each evaluation of a long text may copy it. */
const sizeOfStep = 64;

interface Scope {
  set(name: string, value: unknown): unknown;
}

/** Of the package's classes, whose own types lead nowhere under Node's way of finding modules. */
interface Evaluator {
  run(program: unknown): { readonly value: unknown };
  evaluate(node: unknown, scope: Scope): { readonly value: unknown };
}
const NewScope = Environment as unknown as new () => Scope;
const Evaluating = Interpreter as unknown as new (scope: Scope) => Evaluator;

class BoundedEvaluator extends Evaluating {
  readonly #workMax: number;
  #left: number;

  constructor(scope: Scope, workMax: number) {
    super(scope);
    this.#workMax = workMax;
    this.#left = workMax;
  }

  override evaluate(node: unknown, scope: Scope): { readonly value: unknown } {
    this.#spend(1);
    const result = super.evaluate(node, scope);
    const { value } = result;
    if (typeof value === 'string' || Array.isArray(value)) this.#spend(Math.floor(value.length / sizeOfStep));
    return result;
  }

  #spend(steps: number): void {
    this.#left -= steps;
    if (this.#left >= 0) return;
    throw new Error(`it takes more than ${this.#workMax} steps; templates of models take some hundred a message.`);
  }
}

/** As the package sets them, which does not export them; `range` bounded. */
const globals = {
  false: false,
  true: true,
  none: null,
  False: false,
  True: true,
  None: null,
  raise_exception(message: string): never {
    throw new Error(message);
  },
  range(...given: readonly [number, (number | undefined)?, (number | undefined)?]): number[] {
    const [start, stop] = given[1] === undefined ? [0, given[0]] : [given[0], given[1]];
    const step = given[2] ?? 1;
    const count = Math.max(0, Math.ceil((stop - start) / step));
    if (count <= templateRangeMax) return Array.from({ length: count }, (_, i) => start + i * step);
    throw new Error(`range() of ${count} numbers; expected at most ${templateRangeMax} and a step other than zero.`);
  },
  strftime_now: (format: string) => formatted(new Date(), format),
};

/** The part of Python's strftime that templates use: `%d %b %Y`. */
function formatted(date: Date, format: string): string {
  const two = (value: number) => String(value).padStart(2, '0');
  const month = (length: 'long' | 'short') => new Intl.DateTimeFormat('en', { month: length }).format(date);
  const parts: Readonly<Record<string, () => string>> = {
    '%Y': () => String(date.getFullYear()),
    '%m': () => two(date.getMonth() + 1),
    '%d': () => two(date.getDate()),
    '%b': () => month('short'),
    '%B': () => month('long'),
    '%H': () => two(date.getHours()),
    '%M': () => two(date.getMinutes()),
    '%%': () => '%',
  };
  return format.replaceAll(/%[YmdbBHM%]/g, (token) => parts[token]!());
}
