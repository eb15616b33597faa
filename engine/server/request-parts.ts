import { z } from 'zod';
import {
  chatMessagesMax,
  chatToolsMax,
  contentPartsMax,
  logitBiasTokensMax,
  requestChoicesMax,
  stopStringCharactersMax,
  stopStringsMax,
  stopTokenIdsMax,
} from '../limits.ts';
import { shortened } from './json.ts';

/**
 * Pieces of request bodies. A list is measured before its elements are looked at and ends at the first wrong one: a report
 * of ten million wrong elements would be larger than the machine.
 */

function listOf<Schema extends z.ZodType>(
  element: Schema,
  { min, max }: { min: number; max: number },
): z.ZodPipe<z.ZodCustom<unknown[], unknown[]>, z.ZodArray<Schema>> {
  const isMeasured = (input: unknown): boolean => Array.isArray(input) && input.length >= min && input.length <= max;
  const expected = max === Infinity ? `a list of at least ${min}` : `a list of ${min} to ${max}`;
  return z.custom<unknown[]>(isMeasured, { error: refusal(expected) }).pipe(z.array(element));
}

/** 0, 1, …: valid in some vocabulary. The sampler checks the model's own. */
export const tokenIdList = z.custom<number[]>((input) => isTokenIds(input) && input.length > 0, {
  error: refusal('a list of token ids (integers ≥ 0)'),
});

/** A text, token ids, or a list of either. */
export const promptInput = z.custom<string | string[] | number[] | number[][]>(isPrompt, {
  error: refusal('a text, a list of token ids (integers ≥ 0), or a list of texts or of token id lists'),
});

export const seedList = z.custom<number[]>(
  (input) => Array.isArray(input) && input.length <= requestChoicesMax && input.every(Number.isSafeInteger),
  { error: refusal(`a list of at most ${requestChoicesMax} integers`) },
);

const stopString = z.string().min(1).max(stopStringCharactersMax);
export const stopStrings = z
  .custom<string | string[]>((input) => typeof input === 'string' || Array.isArray(input), {
    error: refusal('a text or a list of texts'),
  })
  .transform((input): unknown[] => (Array.isArray(input) ? input : [input]))
  .pipe(listOf(stopString, { min: 0, max: stopStringsMax }));

export const stopTokenIdList = z.custom<number[]>((input) => isTokenIds(input) && input.length <= stopTokenIdsMax, {
  error: refusal(`a list of at most ${stopTokenIdsMax} token ids (integers ≥ 0)`),
});

export const allowedTokenIdList = z.custom<number[]>(isTokenIds, {
  error: refusal('a list of token ids (integers ≥ 0)'),
});

/** OpenAI's form, {"token id": bias}. */
export const logitBias = z
  .custom<Record<string, number>>(isLogitBias, {
    error: refusal(`an object of at most ${logitBiasTokensMax} entries, token id: bias from -100 to 100`),
  })
  .transform((biases) => new Map(Object.entries(biases).map(([id, bias]) => [Number(id), bias])));

/** JSON objects as they come: the template reads them, and a copy would not know how its numbers were written. */
const looseRecord = z.custom<Record<string, unknown>>(
  (input) => typeof input === 'object' && input !== null && !Array.isArray(input),
  { error: refusal('an object') },
);

const reservedVariables = new Set(['messages', 'tools', 'documents', 'add_generation_prompt']);

const contentPart = z.object({ type: z.literal('text'), text: z.string() });
const messageContent = z
  .union([z.string(), listOf(contentPart, { min: 0, max: contentPartsMax })], {
    error: 'expected a text or a list of parts of type "text"',
  })
  .nullish()
  .transform((content) => (Array.isArray(content) ? content.map((part) => part.text).join('') : (content ?? '')));

const toolCall = z.looseObject({
  type: z.literal('function').default('function'),
  function: z.looseObject({
    name: z.string(),
    arguments: z.union([z.string(), looseRecord], { error: 'expected a text of JSON or an object' }),
  }),
});

const chatMessage = z.looseObject({
  role: z
    .enum(['system', 'developer', 'user', 'assistant', 'tool'])
    .transform((role) => (role === 'developer' ? 'system' : role)),
  content: messageContent,
  tool_calls: listOf(toolCall, { min: 0, max: chatToolsMax }).nullish(),
});

export const chatMessages = listOf(chatMessage, { min: 1, max: chatMessagesMax });
/** A program's history: only the size of its body is bounded. */
export const chatHistory = listOf(chatMessage, { min: 1, max: Infinity });
export type ChatMessages = z.infer<typeof chatMessages>;

export const chatTools = listOf(
  z.looseObject({
    type: z.literal('function'),
    function: z.looseObject({
      name: z.string().min(1).max(256),
      description: z.string().nullish(),
      parameters: looseRecord.nullish(),
    }),
  }),
  { min: 0, max: chatToolsMax },
);
export type ChatTools = z.infer<typeof chatTools>;

/** Variables of the template, but for those the request has words of its own for. */
export const templateArguments = looseRecord.refine(
  (given) => Object.keys(given).every((name) => !reservedVariables.has(name)) && Object.keys(given).length <= 64,
  { error: `expected at most 64 variables of the chat template other than ${[...reservedVariables].join(', ')}` },
);

export const streamOptions = z.strictObject({
  include_usage: z.boolean().nullish(),
  continuous_usage_stats: z.literal(false).nullish(),
});

function isTokenIds(input: unknown): input is number[] {
  return Array.isArray(input) && input.every((id) => Number.isSafeInteger(id) && id >= 0);
}

function isPrompt(input: unknown): boolean {
  if (typeof input === 'string') return true;
  if (!Array.isArray(input) || input.length === 0) return false;
  const [first] = input as unknown[];
  if (typeof first === 'number') return isTokenIds(input);
  if (input.length > requestChoicesMax) return false;
  if (typeof first === 'string') return input.every((entry) => typeof entry === 'string');
  return input.every((entry) => isTokenIds(entry) && entry.length > 0);
}

function isLogitBias(input: unknown): boolean {
  if (typeof input !== 'object' || input === null || Array.isArray(input)) return false;
  const entries = Object.entries(input);
  if (entries.length > logitBiasTokensMax) return false;
  return entries.every(([id, bias]) => /^\d{1,10}$/.test(id) && typeof bias === 'number' && Math.abs(bias) <= 100);
}

function refusal(expected: string): (issue: { input?: unknown }) => string {
  return ({ input }) => `expected ${expected}, got ${described(input)}`;
}

const entriesDescribedMax = 1000;

/** A short description of the received value. */
export function described(input: unknown): string {
  if (input === undefined) return 'nothing';
  if (Array.isArray(input)) return describedList(input);
  if (typeof input === 'object' && input !== null) return `an object of ${Object.keys(input).length} entries`;
  return shortened(JSON.stringify(input), 50);
}

function describedList(list: readonly unknown[]): string {
  if (list.length === 0) return 'an empty list';
  const beginning = list.slice(0, entriesDescribedMax);
  const kinds = new Set(beginning.map(kindOf));
  const wrong = beginning.findIndex((entry) =>
    Array.isArray(entry) ? entry.length === 0 || !isTokenIds(entry) : isNoTokenId(entry),
  );
  const example = wrong < 0 || kinds.size > 1 ? '' : `, the one at ${wrong} being ${described(list[wrong])}`;
  return `a list of ${list.length} ${[...kinds].join(' and ')}${example}`;
}

function kindOf(entry: unknown): string {
  if (entry === null) return 'null';
  return Array.isArray(entry) ? 'lists' : `${typeof entry}s`;
}

function isNoTokenId(entry: unknown): boolean {
  return typeof entry === 'number' && (!Number.isSafeInteger(entry) || entry < 0);
}
