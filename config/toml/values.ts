import { z } from 'zod';
import { isKeptFromEnvironments } from '../../core/child-environment.ts';
import type { JsonValue } from '../../core/json-value.ts';
import { systemPromptCharsMax } from '../../core/limits.ts';
import { isEnvironmentFile } from '../../core/names.ts';

/** Types of values in run files. `meta.expected` of each is the text of its errors. */

/** The expected value in an error about the field. */
declare module 'zod' {
  interface GlobalMeta {
    expected?: string;
  }
}

export const whole = (min: number, max?: number) =>
  z
    .int()
    .min(min)
    .max(max ?? Number.MAX_SAFE_INTEGER)
    .meta({ expected: max === undefined ? `an integer ≥ ${min}` : `an integer from ${min} to ${max}` });
export const positive = (max?: number) => atMost(z.number().positive(), 'a number > 0', max);
export const atLeastZero = (max?: number) => atMost(z.number().min(0), 'a number ≥ 0', max);
const atMost = (type: z.ZodNumber, expected: string, max?: number) =>
  max === undefined ? type.meta({ expected }) : type.max(max).meta({ expected: `${expected} and ≤ ${max}` });
export const fraction = () => z.number().min(0).max(1).meta({ expected: 'a number from 0 to 1' });
export const decay = () => z.number().min(0).lt(1).meta({ expected: 'a number ≥ 0 and < 1' });
export const penalty = () => z.number().min(-2).max(2).meta({ expected: 'a number from -2 to 2' });
/** Limit of the policy server for one request. */
const stopTextsMax = 16;
export const anyNumber = () => z.number().meta({ expected: 'a number' });
/** The step to resume from, as in prime-rl. */
export const resumeStep = () =>
  z.int().min(-1).meta({ expected: 'a committed step (an integer ≥ 0), or -1 for the latest' });
export const flag = () => z.boolean().meta({ expected: 'true or false' });
export const text = () => z.string().regex(/\S/).meta({ expected: 'a text that is not empty' });
/** A prompt, or a file with it; '' is none. */
export const prompt = () =>
  z
    .string()
    .max(systemPromptCharsMax)
    .meta({ expected: `a text of at most ${systemPromptCharsMax} characters, or the name of a file with one` });
export const texts = () => z.array(text()).meta({ expected: 'a list of texts' });
export const choice = <const T extends readonly string[]>(...options: T) =>
  z.enum(options).meta({ expected: `one of ${options.map((option) => `"${option}"`).join(', ')}` });
/** A list of some of them. */
export const choices = <const T extends readonly string[]>(...options: T) =>
  z
    .array(z.enum(options))
    .min(1)
    .meta({ expected: `a list of ${options.map((option) => `"${option}"`).join(', ')}` });
export const stopTexts = () =>
  z
    .array(z.string().min(1))
    .max(stopTextsMax)
    .meta({ expected: `a list of at most ${stopTextsMax} texts, none of them empty` });
export const countOrAll = (what: string) =>
  z.union([z.literal(-1), z.int().min(1)]).meta({ expected: `an integer ≥ 1, or -1 for all ${what}` });
/** Bound of evaluations and prompt searches. */
export const concurrency = () =>
  z.union([z.literal(-1), z.int().min(1)]).meta({ expected: 'an integer ≥ 1, or -1 for no bound' });
const jsonValue: z.ZodType<JsonValue> = z.json();
export const args = () =>
  z.record(z.string(), jsonValue).meta({ expected: 'a table of texts, numbers, true or false, lists and tables' });
/** Names of environment variables that an environment may see. */
export const passedVariables = () =>
  z
    .array(
      z
        .string()
        .regex(/^[A-Za-z_]\w{0,127}$/)
        .refine((name) => !isKeptFromEnvironments(name)),
    )
    .meta({
      expected:
        'a list of names of environment variables such as ["OPENAI_API_KEY"], none of AWS, Temporal, W&B or Ratchet',
    });
export const environmentId = () =>
  z
    .string()
    .refine((id) => environmentIdPattern.test(id) || isEnvironmentFile(id))
    .meta({
      expected: 'an environment id such as "reverse-text" or "owner/reverse-text", or a file such as "./my-env.ts"',
    });
const environmentIdPattern = /^(?:[A-Za-z0-9][\w.-]*\/)?[A-Za-z0-9][\w.-]{0,63}(?:@[\w.+-]+)?$/;
/** Names become folder and metric names; `agg` is prime-rl's name for the sum over environments. */
export const environmentLabel = () =>
  z
    .string()
    .regex(/^(?!agg$)[A-Za-z0-9][\w.-]{0,63}$/)
    .meta({ expected: 'up to 64 letters, digits, dots, dashes and underscores; "agg" is reserved' });
