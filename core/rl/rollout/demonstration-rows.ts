import type { TrainSample } from '../learning/batch.ts';
import type { ChatMessage } from './rollout.ts';

/** How an example is done: what the assistant says, or the conversation after the prompt. */
export type Demonstration = string | readonly ChatMessage[];

/** The part of a model's tokenizer that is used here. */
interface Tokenizer {
  encode(text: string): number[];
  renderChat(messages: readonly ChatMessage[], options: TemplateOptions): readonly number[];
  renderChatText(messages: readonly ChatMessage[], options: TemplateOptions & { addGenerationPrompt: boolean }): string;
  isSpecial(id: number): boolean;
}

interface TemplateOptions {
  readonly tools?: readonly object[] | null | undefined;
  readonly templateArguments?: Readonly<Record<string, unknown>> | undefined;
}

/**
 * A demonstration as rows for supervised training; the assistant's text counts in the loss. Turns that only append to
 * the conversation share a row, as in `packSamples`; if a template rewrites the past, a turn has a row of its own.
 */
export function demonstrationRows(
  tokenizer: Tokenizer,
  prompt: readonly ChatMessage[],
  demonstration: Demonstration,
  /** Rendered like the policy's own prompts. */
  options: TemplateOptions = {},
): TrainSample[] {
  const said = typeof demonstration === 'string' ? [assistant(demonstration)] : demonstration;
  const conversation = [...prompt, ...said];
  const rows: { tokenIds: number[]; lossMask: number[] }[] = [];
  for (const [position, { role }] of conversation.entries()) {
    if (role !== 'assistant' || position < prompt.length) continue;
    const before = tokenizer.renderChat(conversation.slice(0, position), options);
    const upTo = conversation.slice(0, position + 1);
    const through = tokenizer.encode(tokenizer.renderChatText(upTo, { ...options, addGenerationPrompt: false }));
    const open = rows.at(-1);
    const known = open && startsWith(through, open.tokenIds) ? open.lossMask : [];
    const end = before.length + spokenOf(tokenizer, through.slice(before.length));
    const lossMask = through.map((_, i) => known[i] ?? (i >= before.length && i < end ? 1 : 0));
    if (known === open?.lossMask) rows.pop();
    rows.push({ tokenIds: through, lossMask });
  }
  return rows.map(({ tokenIds, lossMask }) => {
    const zeros = tokenIds.map(() => 0);
    return { tokenIds, lossMask, behaviorLogprobs: zeros, advantages: zeros };
  });
}

/** How many tokens of an answer are the assistant's: up to the one that ends the turn. A line break after it is the template's. */
export function spokenOf(tokenizer: Pick<Tokenizer, 'isSpecial'>, ids: readonly number[]): number {
  const end = ids.findLastIndex((id) => tokenizer.isSpecial(id));
  return end < 0 ? ids.length : end + 1;
}

function assistant(content: string): ChatMessage {
  return { role: 'assistant', content };
}

function startsWith(tokens: readonly number[], prefix: readonly number[]): boolean {
  return prefix.length <= tokens.length && prefix.every((token, i) => token === tokens[i]);
}
