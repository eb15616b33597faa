import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import { unlike } from '../../answer-words.ts';
import { finishOf } from './finish-reason.ts';
import { requireChoices } from './openai-bodies.ts';
import { areIds, isLogprob } from './token-lists.ts';
import type { ToolCall } from '../../../core/rl/rollout/rollout.ts';
import type { ChatRequest, ChatSample } from '../types.ts';

/** The fields of an answer that a turn needs. Everything else may be missing, or be of any shape. */
const Choice = z
  .looseObject({})
  .transform(withMessage)
  .pipe(z.looseObject({ message: z.looseObject({}) }));
const ChatCompletion = z.object({ choices: z.array(Choice).min(1, 'expected a choice, got none') });

type Fields = Readonly<Record<string, unknown>>;

/** A choice with its message, which some servers call a delta, or give as a text like /v1/completions. */
function withMessage(choice: Fields): Fields {
  const { message, delta, text } = choice;
  return { ...choice, message: message ?? delta ?? (typeof text === 'string' ? { content: text } : undefined) };
}

/**
 * The turn in an answer of `/v1/chat/completions`. Tolerant of variants: the finish reason, counts, the shapes of
 * content and thoughts. Throws `InferenceRejected` if ids are needed and missing, and `UnusableAnswer` without a
 * choice.
 */
export function turnIn(answer: unknown, { tokens }: Pick<ChatRequest, 'tokens'>, root: string): ChatSample {
  const where = `${root}/v1/chat/completions`;
  requireChoices(answer, root, '/v1/chat/completions');
  const said = fieldsOf(answer);
  const read = ChatCompletion.safeParse(answer);
  if (!read.success) {
    const message = `${where}: expected a chat completion with one choice, got ${unlike(read.error, answer)}. Is it an OpenAI-compatible API?`;
    throw new RatchetError('InferenceRejected', message);
  }
  const choice = firstOf(read.data.choices);
  const heard = messageIn(fieldsOf(choice['message']), where);
  // A turn that is trained on must be whole.
  const hasAnswer = tokens === 'none' && (heard.text !== '' || heard.toolCalls !== undefined);
  const turn = {
    ...heard,
    finishReason: finishOf(choice['finish_reason'], { root, hasAnswer }),
    usage: usageIn(said['usage']),
  };
  return { ...turn, ...(tokens === 'required' ? tokensIn(said, choice, where) : idsIn(said, choice)) };
}

/** The texts and calls of a message. */
function messageIn(message: Fields, where: string): Pick<ChatSample, 'text' | 'reasoning' | 'toolCalls' | 'isRefusal'> {
  const content = contentIn(message['content'], where);
  const refusal = typeof message['refusal'] === 'string' ? message['refusal'] : content.refusal;
  const text = content.text === '' ? refusal : content.text;
  const toolCalls = callsIn(message, where);
  const named = [message['reasoning_content'], message['reasoning'], message['reasoning_details'], message['thinking']];
  const reasoning = content.thoughts || (named.map(thoughtsIn).find((thoughts) => thoughts !== '') ?? '');
  return {
    text,
    ...(reasoning === '' ? {} : { reasoning }),
    ...(toolCalls.length === 0 ? {} : { toolCalls }),
    ...(text !== '' && text === refusal ? { isRefusal: true } : {}),
  };
}

/** A text, or its parts: some servers put thoughts and refusals between them. */
function contentIn(content: unknown, where: string): { text: string; thoughts: string; refusal: string } {
  const found = { text: '', thoughts: '', refusal: '' };
  if (content === undefined || content === null) return found;
  for (const part of Array.isArray(content) ? (content as unknown[]) : [content]) {
    const fields = fieldsOf(part);
    if (typeof part === 'string') found.text += part;
    else if (typeof fields['refusal'] === 'string') found.refusal += fields['refusal'];
    else if (/think|reason/.test(String(fields['type']))) found.thoughts += thoughtsIn(part);
    else if (typeof fields['text'] === 'string') found.text += fields['text'];
    else if (!Array.isArray(content)) throw unread('content', content, 'a text, or parts with a text', where);
  }
  return found;
}

const thoughtKeys = ['text', 'thinking', 'summary', 'content', 'reasoning', 'reasoning_content'];

function thoughtsIn(thoughts: unknown): string {
  if (typeof thoughts === 'string') return thoughts;
  if (Array.isArray(thoughts)) return thoughts.map(thoughtsIn).join('');
  const fields = fieldsOf(thoughts);
  const key = thoughtKeys.find((one) => typeof fields[one] === 'string' || Array.isArray(fields[one]));
  return key === undefined ? '' : thoughtsIn(fields[key]);
}

/** Ids of the calls in an answer that `turnIn` has read; undefined if the server gives none. */
export function callIdsIn(answer: unknown): (string | undefined)[] {
  const { choices } = fieldsOf(answer);
  const choice = withMessage(firstOf((choices as unknown[]).map(fieldsOf)));
  return callsOf(fieldsOf(choice['message'])).map((call) => {
    const { id } = fieldsOf(call);
    return typeof id === 'string' && id !== '' ? id : undefined;
  });
}

/** The first of several choices, though one was requested. */
function firstOf(choices: readonly Fields[]): Fields {
  return choices.find(({ index }) => index === 0) ?? choices[0]!;
}

/** Calls in either form of the API. */
function callsOf({ tool_calls: listed, function_call: older }: Fields): readonly unknown[] {
  const calls = listed ?? (older == null ? [] : [{ function: older }]);
  return Array.isArray(calls) ? (calls as unknown[]) : [calls];
}

/** Throws for a call without a name. */
function callsIn(message: Fields, where: string): ToolCall[] {
  return callsOf(message).map((call) => {
    const { name, arguments: named, input } = fieldsOf(fieldsOf(call)['function'] ?? call);
    if (typeof name !== 'string' || name === '')
      throw unread('tool_calls', call, 'a call with the name of a function', where);
    return { name, arguments: argumentsOf(named ?? input) };
  });
}

/** Arguments that came as an object are a text by now (`answerJson`). A call without arguments gets an empty object. */
function argumentsOf(given: unknown): string {
  if (typeof given === 'string' && given.trim() !== '') return given;
  return given == null || typeof given === 'string' ? '{}' : JSON.stringify(given);
}

/** Token counts; null unless the server reports both as counts. */
function usageIn(usage: unknown): ChatSample['usage'] {
  const fields = fieldsOf(usage);
  const total = countOf(fields['total_tokens']);
  const prompt = countOf(fields['prompt_tokens'] ?? fields['input_tokens']);
  const completion = countOf(fields['completion_tokens'] ?? fields['output_tokens']);
  const promptTokens = prompt ?? difference(total, completion);
  const completionTokens = completion ?? difference(total, prompt);
  return promptTokens === null || completionTokens === null ? null : { promptTokens, completionTokens };
}

function countOf(value: unknown): number | null {
  if (typeof value !== 'number' && (typeof value !== 'string' || value.trim() === '')) return null;
  const count = Math.round(Number(value));
  return Number.isSafeInteger(count) && count >= 0 ? count : null;
}

function difference(total: number | null, part: number | null): number | null {
  return total === null || part === null || part > total ? null : total - part;
}

type Tokens = Pick<ChatSample, 'promptTokenIds' | 'tokenIds' | 'logprobs'>;

/** Ids that a server gives without a request. */
function idsIn({ prompt_token_ids: prompt }: Fields, { token_ids: sampled }: Fields): Tokens {
  return { promptTokenIds: areIds(prompt) ? prompt : null, tokenIds: areIds(sampled) ? sampled : null, logprobs: null };
}

function tokensIn(answer: Fields, choice: Fields, where: string): Tokens {
  const { promptTokenIds, tokenIds } = idsIn(answer, choice);
  const { content } = fieldsOf(choice['logprobs']);
  const logprobs = Array.isArray(content) ? content.map((one) => fieldsOf(one)['logprob']) : null;
  const isWhole = tokenIds !== null && logprobs?.length === tokenIds.length && logprobs.every(isLogprob);
  if (promptTokenIds !== null && isWhole) return { promptTokenIds, tokenIds, logprobs };
  const missing =
    promptTokenIds === null || tokenIds === null
      ? 'without token ids'
      : 'whose logprobs are not one up to 0 for each token';
  throw new RatchetError(
    'InferenceRejected',
    `${where} answered ${missing}, which will do for evaluations and not for training: what is trained on are the ids that were sampled, never a guess from the text. vLLM gives them (return_token_ids), as does Ratchet's policy server.`,
  );
}

function unread(field: string, value: unknown, expected: string, where: string): RatchetError {
  const came = (JSON.stringify(value) ?? 'nothing').slice(0, 200);
  return new RatchetError('InferenceRejected', `${where}: expected ${expected} in message.${field}, got ${came}.`);
}

function fieldsOf(value: unknown): Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Fields) : {};
}
