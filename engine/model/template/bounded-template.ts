import { RatchetError } from '../../../core/errors.ts';
import { templateBytesMax, templateCharactersMax, templateWorkMax } from '../../limits.ts';
import { Evaluator } from './jinja/evaluator.ts';
import { globalsOf } from './jinja/globals.ts';
import type { Statement } from './jinja/nodes.ts';
import { parseTemplate } from './jinja/parser.ts';
import { Scope } from './jinja/scope.ts';
import { entriesAsWritten, valueOf } from './jinja/values.ts';
import { TemplateMeter } from './template-meter.ts';

/** A chat template that has been parsed. */
export type Template = readonly Statement[];

interface Bounds {
  /** Time for strftime_now, as `minuteOf` writes it; null = the current time. */
  readonly time?: string | null;
  readonly workMax?: number;
  readonly bytesMax?: number;
}

/**
 * Renders a chat template as transformers does with jinja2, within bounds on work and memory. A template comes with a model's files, so a
 * hostile one could block the whole process. Evaluations, loop turns and sizes of values are counted before the work is done, so a template
 * ends at the same place on every machine.
 */
export function renderBounded(
  template: Template,
  variables: Readonly<Record<string, unknown>>,
  { time = null, workMax = templateWorkMax, bytesMax = templateBytesMax }: Bounds = {},
): string {
  const meter = new TemplateMeter({ stepsMax: workMax, bytesMax });
  const globals = new Scope(null);
  for (const [name, value] of globalsOf(meter, time)) globals.set(name, value);
  const scope = new Scope(globals);
  for (const [name, value] of entriesAsWritten(variables)) if (value !== undefined) scope.set(name, valueOf(value));
  return new Evaluator(meter).render(template, new Scope(scope));
}

/** Throws `ModelUnsupported` if the text is not a Jinja template, or is too long. The message names the line. */
export function compileTemplate(template: string): Template {
  const refuse = (why: string, cause?: unknown): never => {
    throw new RatchetError('ModelUnsupported', `The chat template cannot be read: ${why}`, { cause });
  };
  if (template.length > templateCharactersMax)
    refuse(`expected a template of at most ${templateCharactersMax} letters, got ${template.length}.`);
  try {
    return parseTemplate(template);
  } catch (error) {
    if (error instanceof SyntaxError) return refuse(error.message, error);
    if (error instanceof RangeError) return refuse('its parts are too deep in one another.', error);
    throw error;
  }
}
