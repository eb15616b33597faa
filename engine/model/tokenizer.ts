import { Template } from '@huggingface/jinja';
import { Tokenizer } from '@huggingface/tokenizers';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import type { ChatMessage } from '../../core/rl/rollout.ts';

/** The files a tokenizer is made of, as text. */
export interface TokenizerFiles {
  /** tokenizer.json */
  readonly tokenizer: string;
  /** tokenizer_config.json */
  readonly config: string;
  /** chat_template.jinja, where the template lies beside the config; it wins over the config's own. */
  readonly chatTemplate?: string;
}

const SpecialToken = z.union([z.string(), z.object({ content: z.string() }).transform((token) => token.content)]);
const TokenizerConfig = z.looseObject({
  chat_template: z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]).nullish(),
  bos_token: SpecialToken.nullish(),
  eos_token: SpecialToken.nullish(),
  pad_token: SpecialToken.nullish(),
  unk_token: SpecialToken.nullish(),
});
type TokenizerConfig = z.infer<typeof TokenizerConfig>;

/** Prompts kept rendered: those of the groups in flight. */
const renderedMax = 512;

/** Text to token ids and back, and conversations to prompts, as the model's own files say. */
export class ChatTokenizer {
  readonly #tokenizer: Tokenizer;
  readonly #template: Template | null;
  readonly #config: TokenizerConfig;
  /** The rollouts of a group ask for the same prompt; a template takes longer than a map. */
  readonly #rendered = new Map<string, number[]>();

  constructor(files: TokenizerFiles, where: string) {
    const tokenizer = parseObject(files.tokenizer, `${where}/tokenizer.json`);
    const rawConfig = parseObject(files.config, `${where}/tokenizer_config.json`);
    const config = TokenizerConfig.safeParse(rawConfig);
    if (!config.success) throw badTokenizer(`${where}/tokenizer_config.json`, z.prettifyError(config.error));
    this.#config = config.data;
    const template = files.chatTemplate ?? namedTemplate(config.data.chat_template);
    try {
      this.#tokenizer = new Tokenizer(tokenizer, rawConfig);
      this.#template = template === null ? null : new Template(template);
    } catch (cause) {
      throw badTokenizer(where, String(cause), cause);
    }
  }

  /** Special tokens written in the text are recognised; those that begin or end every text are added only if asked for. */
  encode(text: string, options: { addSpecialTokens?: boolean } = {}): number[] {
    return this.#tokenizer.encode(text, { add_special_tokens: options.addSpecialTokens ?? false }).ids;
  }

  /** Special tokens are left out unless asked for. */
  decode(tokenIds: readonly number[], options: { skipSpecialTokens?: boolean } = {}): string {
    if (tokenIds.length === 0) return '';
    return this.#tokenizer.decode([...tokenIds], { skip_special_tokens: options.skipSpecialTokens ?? true });
  }

  /** One token's own text, special tokens included, as a log of token logprobs shows it. */
  tokenText(tokenId: number): string {
    const text = this.#tokenizer.decode([tokenId], { skip_special_tokens: false });
    return text === '' ? (this.#tokenizer.id_to_token(tokenId) ?? '') : text;
  }

  get canRenderChat(): boolean {
    return this.#template !== null;
  }

  /** The prompt after which the assistant's next message is sampled. */
  renderChat(messages: readonly ChatMessage[]): number[] {
    const key = JSON.stringify(messages);
    const known = this.#rendered.get(key);
    if (known) return known;
    const tokenIds = this.encode(this.renderChatText(messages, { addGenerationPrompt: true }));
    this.#rendered.set(key, tokenIds);
    if (this.#rendered.size > renderedMax) this.#rendered.delete(this.#rendered.keys().next().value!);
    return tokenIds;
  }

  renderChatText(messages: readonly ChatMessage[], options: { addGenerationPrompt: boolean }): string {
    if (!this.#template) {
      throw new RatchetError(
        'ModelUnsupported',
        'The model folder has no chat template, so messages cannot be rendered. Send a prompt instead.',
      );
    }
    const { bos_token, eos_token, pad_token, unk_token } = this.#config;
    return this.#template.render({
      messages,
      add_generation_prompt: options.addGenerationPrompt,
      bos_token: bos_token ?? '',
      eos_token: eos_token ?? '',
      pad_token: pad_token ?? '',
      unk_token: unk_token ?? '',
    });
  }
}

function namedTemplate(template: TokenizerConfig['chat_template']): string | null {
  if (template == null || typeof template === 'string') return template ?? null;
  return template.find(({ name }) => name === 'default')?.template ?? null;
}

function parseObject(text: string, where: string): Record<string, unknown> {
  let raw: unknown;
  try {
    raw = JSON.parse(text);
  } catch (cause) {
    throw badTokenizer(where, 'text that is not JSON', cause);
  }
  const parsed = z.record(z.string(), z.unknown()).safeParse(raw);
  if (!parsed.success) throw badTokenizer(where, 'no JSON object');
  return parsed.data;
}

function badTokenizer(where: string, received: string, cause?: unknown): RatchetError {
  const message = `${where}: expected the files of a Hugging Face fast tokenizer, got ${received}.`;
  return new RatchetError('ModelUnsupported', message, { cause });
}
