import { Environment, Interpreter, type Template } from '@huggingface/jinja';
import { minuteOf } from '../../core/minute-of.ts';
import { templateRangeMax, templateWorkMax } from '../limits.ts';

/**
 * Renders a chat template as Template.render does, up to a bound of work: a template comes with a model's files, and a loop in it
 * would stop everything else of this process, or fill its memory. Counted are the steps of its evaluation and what they give, so
 * that the same template ends at the same place on every machine. `time` is what the template's strftime_now tells, as
 * {@link minuteOf} writes it; null = the clock's.
 */
export function renderBounded(
  template: Template,
  variables: Readonly<Record<string, unknown>>,
  { time = null, workMax = templateWorkMax }: { readonly time?: string | null; readonly workMax?: number } = {},
): string {
  const scope = new NewScope();
  const strftime_now = (format: string): string => formatted(time ?? minuteOf(new Date()), format);
  for (const [name, value] of Object.entries({ ...globals, strftime_now, ...variables })) scope.set(name, value);
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
};

/** The part of Python's strftime that templates use: `%d %b %Y`. `time` as {@link minuteOf} writes it. */
function formatted(time: string, format: string): string {
  const date = new Date(`${time}Z`); // of no zone: read as UTC, and told as UTC
  const named = (options: Intl.DateTimeFormatOptions) =>
    new Intl.DateTimeFormat('en', { ...options, timeZone: 'UTC' }).format(date);
  const parts: Readonly<Record<string, () => string>> = {
    '%Y': () => time.slice(0, 4),
    '%m': () => time.slice(5, 7),
    '%d': () => time.slice(8, 10),
    '%H': () => time.slice(11, 13),
    '%M': () => time.slice(14, 16),
    '%b': () => named({ month: 'short' }),
    '%B': () => named({ month: 'long' }),
    '%a': () => named({ weekday: 'short' }),
    '%A': () => named({ weekday: 'long' }),
    '%%': () => '%',
  };
  return format.replaceAll(/%[YmdHMbBaA%]/g, (token) => parts[token]!());
}
