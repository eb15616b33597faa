import type { z } from 'zod';
import { honouredValues, isOneOf } from '../../../../engine/server/fixed-parameters.ts';
import { HttpError } from '../../../../engine/server/http-error.ts';
import { shortened } from '../../../../engine/server/json.ts';
import { parseBody } from '../../../../engine/server/requests.ts';
import type { JsonValue } from '../../../../core/json-value.ts';

export type Fields = Readonly<Record<string, unknown>>;

/** Fields of OpenAI's and Anthropic's APIs that change nothing about what a model says. */
const inert = new Set([
  'betas',
  'cache_control',
  'client_metadata',
  'include',
  'inference_geo',
  'max_tool_calls',
  'metadata',
  'prompt_cache_key',
  'prompt_cache_options',
  'prompt_cache_retention',
  'safety_identifier',
  'service_tier',
  'speed',
  'store',
  'stream_options',
  'user',
]);

/**
 * Fields that ask for another kind of answer, with the values at which they ask for nothing. At another value a call for
 * the policy is refused. So are those that the policy server refuses (`fixed-parameters.ts`).
 */
const unsupported: ReadonlyMap<string, readonly unknown[]> = new Map(
  Object.entries({
    allowed_token_ids: [[]],
    background: [false],
    container: [null],
    conversation: [null],
    ignore_eos: [false],
    include_stop_str_in_output: [false],
    logit_bias: [{}],
    mcp_servers: [[]],
    min_tokens: [0],
    prompt: [null],
    stop_token_ids: [[]],
    web_search_options: [null],
  }),
);

/** Fields without effect that are worth a word only at other values than these. */
const unremarkable: ReadonlyMap<string, readonly unknown[]> = new Map(
  Object.entries({ parallel_tool_calls: [true], truncation: ['disabled'], context_management: [[]] }),
);

/** Fields of a body that its form does not read. */
export interface UnreadFields {
  /** Refuses a call for the policy; null = nothing does. */
  readonly refusal: HttpError | null;
  /** Fields without effect: the run's file decides their values, or nobody knows them. */
  readonly ignored: readonly string[];
}

export function unreadIn(body: Fields, read: ReadonlySet<string>): UnreadFields {
  const given = Object.entries(body).filter(([name, value]) => value != null && !read.has(name) && !inert.has(name));
  const fates = given.map(([name, value]) => ({ name: shortened(name, 100), fate: fateOf(name, value) }));
  const refused = fates.find(({ fate }) => fate === 'refused');
  return {
    refusal: refused === undefined ? null : unsupportedField(refused.name),
    ignored: fates.flatMap(({ name, fate }) => (fate === 'ignored' ? [name] : [])),
  };
}

function fateOf(name: string, value: unknown): 'refused' | 'ignored' | 'none' {
  const plain = unremarkable.get(name);
  if (plain !== undefined) return isOneOf(value, plain) ? 'none' : 'ignored';
  const neutral = unsupported.get(name) ?? honouredValues(name);
  if (neutral === undefined) return 'ignored';
  return isOneOf(value, neutral) ? 'none' : 'refused';
}

export function unsupportedField(param: string, instead = 'Leave it out.'): HttpError {
  const message = `"${param}" is not supported for the policy's model: the answer would not be what it asks for. ${instead}`;
  return new HttpError(400, message, { param, code: 'unsupported_parameter' });
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
