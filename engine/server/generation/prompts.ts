import { setImmediate } from 'node:timers/promises';
import { promptCharactersPerPosition, tokenizeCharactersMax } from '../../limits.ts';
import type { ChatOptions } from '../../model/template/chat-template.ts';
import type { ChatTokenizer } from '../../model/tokenizer/tokenizer.ts';
import { HttpError } from '../http-error.ts';
import type { HeldVersion } from '../policy-versions.ts';
import type { ChatMessages, ChatTools } from '../request-parts.ts';
import type { CompletionRequest, TokenizeRequest } from '../requests.ts';

/** Between looks at the event loop while many texts are encoded. */
const charactersPerTurn = 1 << 16;

/** The prompts of a completion as token ids. Long lists of texts let others have their turn. */
export async function encodePrompts(
  { model }: HeldVersion,
  prompt: CompletionRequest['prompt'],
  signal: AbortSignal,
): Promise<number[][]> {
  if (typeof prompt === 'string') return [encodeBounded(model, prompt)];
  if (isTokenIds(prompt)) return [prompt];
  const prompts: number[][] = [];
  let characters = 0;
  for (const entry of prompt) {
    prompts.push(typeof entry === 'string' ? encodeBounded(model, entry) : entry);
    characters += entry.length;
    if (characters < charactersPerTurn) continue;
    characters = 0;
    await setImmediate();
    signal.throwIfAborted();
  }
  return prompts;
}

/** The conversation as the prompt after which the assistant's next message is sampled. */
export function renderPrompt({ model }: HeldVersion, conversation: Conversation): number[] {
  const { positionsMax } = model.config;
  const options = templateOptions(conversation);
  const characters = JSON.stringify([conversation.messages, options]).length;
  if (characters <= cachedCharactersMax) return model.tokenizer.renderChat(conversation.messages, options);
  requireShort('The conversation has', characters, positionsMax, templateShare);
  const text = model.tokenizer.renderChatText(conversation.messages, { ...options, addGenerationPrompt: true });
  return encodeBounded(model, text);
}

interface Conversation {
  readonly messages: ChatMessages;
  readonly tools?: ChatTools | null | undefined;
  readonly chat_template_kwargs?: Readonly<Record<string, unknown>> | null | undefined;
}

/** The tokenizer keeps the last prompts it rendered; those of longer conversations would fill the memory. */
const cachedCharactersMax = 1 << 14;

/** Smallest part of a conversation's JSON that is text of the prompt. */
const templateShare = 4;

/** POST /tokenize */
export function tokenize({ model }: HeldVersion, request: TokenizeRequest): Record<string, unknown> {
  const tokens = tokensOf(model.tokenizer, request);
  return {
    count: tokens.length,
    max_model_len: model.config.positionsMax,
    tokens,
    token_strs: request.return_token_strs ? tokens.map((id) => model.tokenizer.tokenText(id)) : null,
  };
}

/** POST /detokenize. Special tokens are part of the text, as in vLLM. */
export function detokenize({ model }: HeldVersion, tokens: readonly number[]): Record<string, unknown> {
  const { vocabularySize, positionsMax } = model.config;
  const foreign = tokens.find((id) => id >= vocabularySize);
  if (foreign !== undefined) {
    const message = `"tokens" has ${foreign}, which is outside the vocabulary of ${vocabularySize}.`;
    throw new HttpError(400, message, { param: 'tokens' });
  }
  const tokensMax = Math.max(positionsMax, tokenizeCharactersMax / promptCharactersPerPosition);
  if (tokens.length > tokensMax) {
    throw new HttpError(400, `"tokens" has ${tokens.length} ids; expected at most ${tokensMax}.`, { param: 'tokens' });
  }
  return { prompt: model.tokenizer.decode(tokens, { skipSpecialTokens: false }) };
}

function tokensOf(tokenizer: ChatTokenizer, request: TokenizeRequest): number[] {
  const { prompt, messages } = request;
  if ((prompt == null) === (messages == null)) {
    throw new HttpError(400, 'Expected either "prompt" or "messages".', {
      param: prompt == null ? 'prompt' : 'messages',
    });
  }
  if (prompt != null) {
    requireTokenizable(prompt, 'prompt');
    return tokenizer.encode(prompt, { addSpecialTokens: request.add_special_tokens ?? true });
  }
  const addGenerationPrompt = request.add_generation_prompt ?? true;
  const conversation = { ...request, messages: messages! };
  requireTokenizable(JSON.stringify(conversation), 'messages');
  const text = tokenizer.renderChatText(messages!, { ...templateOptions(conversation), addGenerationPrompt });
  requireTokenizable(text, 'messages');
  return tokenizer.encode(text, { addSpecialTokens: request.add_special_tokens ?? false });
}

function templateOptions({ tools, chat_template_kwargs: variables }: Conversation): ChatOptions {
  return { ...(tools && tools.length > 0 && { tools }), ...(variables && { templateArguments: variables }) };
}

function encodeBounded(model: HeldVersion['model'], text: string): number[] {
  requireShort('The prompt has', text.length, model.config.positionsMax);
  return model.tokenizer.encode(text);
}

/** Far too long a text is refused before minutes are spent on its tokens. */
function requireShort(what: string, characters: number, positionsMax: number, share = 1): void {
  const charactersMax = share * positionsMax * promptCharactersPerPosition;
  if (characters <= charactersMax) return;
  throw new HttpError(
    400,
    `This model's maximum context length is ${positionsMax} tokens. ${what} ${characters} characters; more than ` +
      `${charactersMax} are never encoded. Shorten the prompt.`,
    { param: 'prompt', code: 'context_length_exceeded' },
  );
}

function requireTokenizable(text: string, param: string): void {
  if (text.length <= tokenizeCharactersMax) return;
  const message = `"${param}" has ${text.length} characters; expected at most ${tokenizeCharactersMax}.`;
  throw new HttpError(400, message, { param });
}

function isTokenIds(prompt: readonly (string | number | number[])[]): prompt is number[] {
  return typeof prompt[0] === 'number';
}
