import type { z } from 'zod';
import { parseBody } from '../../../../engine/server/requests.ts';
import { HttpError } from '../../../../engine/server/http-error.ts';
import type { JsonValue } from '../../../../core/json-value.ts';

export type Fields = Readonly<Record<string, unknown>>;

/** Fields of OpenAI's and Anthropic's APIs that change nothing about what a model says. */
const inert = new Set([
  'background',
  'betas',
  'cache_control',
  'client_metadata',
  'context_management',
  'include',
  'metadata',
  'parallel_tool_calls',
  'prompt_cache_key',
  'prompt_cache_options',
  'prompt_cache_retention',
  'safety_identifier',
  'service_tier',
  'store',
  'stream_options',
  'top_logprobs',
  'truncation',
  'user',
]);

/** Names of fields that are neither read nor without effect. */
export function unhonouredIn(body: Fields, read: ReadonlySet<string>): string[] {
  return Object.entries(body).flatMap(([name, value]) => {
    const isEmpty = value === null || value === undefined || (Array.isArray(value) && value.length === 0);
    return isEmpty || read.has(name) || inert.has(name) ? [] : [name];
  });
}

/** A body read by a schema that lets further fields through; refusals name the field, what was expected and what came. */
export function readBody<Body>(schema: z.ZodType<Body>, body: unknown): { readonly read: Body; readonly all: Fields } {
  return { read: parseBody(schema, body), all: body as Fields };
}

export function namesIn(schema: z.ZodObject): ReadonlySet<string> {
  return new Set(Object.keys(schema.shape));
}

/** Values of some fields, as another model gets them. */
export function passedOn(all: Fields, names: readonly string[]): Record<string, JsonValue> {
  return Object.fromEntries(names.flatMap((name) => (all[name] == null ? [] : [[name, all[name] as JsonValue]])));
}

export function refuse(message: string, param: string): never {
  throw new HttpError(400, message, { param });
}

/** The arguments of a call as an object; what is none is kept under `input`. */
export function argumentsObject(text: string): Fields {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Fields;
  } catch {
    // kept below
  }
  return { input: text };
}
