import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import { problemsIn } from '../../../core/problems-in.ts';
import { received } from '../../../core/shape.ts';
import { shortened } from '../../../core/steering.ts';
import { objectOf, parseWritten } from '../../../core/written-json.ts';
import { compileTemplate, renderBounded, type Template } from './bounded-template.ts';
import { type Dict, entriesAsWritten, valueAsWritten } from './jinja/values.ts';

/** A message in OpenAI's format. Further fields reach the template untouched. */
export interface TemplateMessage {
  readonly role: string;
  readonly content?: string | null | readonly unknown[] | undefined;
  readonly reasoning_content?: string | undefined;
  readonly tool_calls?: readonly TemplateToolCall[] | null | undefined;
}

interface TemplateToolCall {
  readonly function: {
    readonly name: string;
    /** A JSON text becomes an object, which templates expect; vLLM does the same. */
    readonly arguments: string | Readonly<Record<string, unknown>>;
  };
}

export interface ChatOptions {
  /** OpenAI's function schemas, `{ type: 'function', function: { name, description, parameters } }`. */
  readonly tools?: readonly object[] | null | undefined;
  /** chat_template_kwargs: further variables of the template, such as enable_thinking. */
  readonly templateArguments?: Readonly<Record<string, unknown>> | undefined;
}

const TokenText = z.union([z.string(), z.object({ content: z.string() }).transform(({ content }) => content)]);
const NamedTemplate = z.object({ name: z.string(), template: z.string() });
const TokenizerConfig = z.looseObject({
  chat_template: z.union([z.string(), z.array(NamedTemplate)]).nullish(),
  additional_special_tokens: z.array(TokenText).nullish(),
});

/** Special tokens that a template may name. */
const namedTokens = [
  'bos_token',
  'eos_token',
  'unk_token',
  'sep_token',
  'pad_token',
  'cls_token',
  'mask_token',
] as const;

/** A model's chat templates: one, or one by default and one for conversations with tools. */
export class ChatTemplates {
  readonly #default: Template | null;
  readonly #withTools: Template | null;
  readonly #tokens: Readonly<Record<string, string>>;
  readonly #time: string | null;
  readonly #texts: { readonly default: string | undefined; readonly withTools: string | undefined };

  /**
   * `rawConfig` is the object of tokenizer_config.json; separate template files win over it. `time` is the result of
   * strftime_now, in the form of `minuteOf`; null = the clock's.
   */
  constructor(
    rawConfig: Record<string, unknown>,
    files: { chatTemplate?: string; toolTemplate?: string },
    time: string | null = null,
  ) {
    this.#time = time;
    const { chat_template: stated } = tokenizerConfigOf(rawConfig);
    const named = files.chatTemplate === undefined ? namedTemplates(stated) : new Map<string, string>();
    this.#texts = {
      default: files.chatTemplate ?? named.get('default'),
      withTools: files.toolTemplate ?? named.get('tool_use'),
    };
    this.#default = compiled(this.#texts.default);
    this.#withTools = compiled(this.#texts.withTools);
    this.#tokens = specialTokens(rawConfig);
  }

  /** The template's text. Its markers show the format of the model's calls. */
  textFor(hasTools: boolean): string {
    return (hasTools ? this.#texts.withTools : undefined) ?? this.#texts.default ?? '';
  }

  get isThere(): boolean {
    return this.#default !== null || this.#withTools !== null;
  }

  /** The variables are those that transformers' apply_chat_template gives. */
  render(
    messages: readonly TemplateMessage[],
    { tools = null, templateArguments = {}, addGenerationPrompt }: ChatOptions & { addGenerationPrompt: boolean },
  ): string {
    const template = (tools === null ? null : this.#withTools) ?? this.#default;
    if (!template) throw noTemplate(this.isThere);
    const variables = {
      ...this.#tokens,
      messages: messages.map(withParsedArguments),
      tools,
      documents: null,
      add_generation_prompt: addGenerationPrompt,
      ...Object.fromEntries(entriesAsWritten(templateArguments)),
    };
    try {
      return renderBounded(template, variables, { time: this.#time });
    } catch (cause) {
      // A template says by raise_exception which conversations it does not take.
      const reason = cause instanceof Error ? cause.message : String(cause);
      throw new RatchetError('InferenceRejected', `The chat template does not take these messages: ${reason}`, {
        cause,
      });
    }
  }
}

/** Tokens that are special without being marked so in tokenizer.json. */
export function additionalSpecialTokens(rawConfig: Record<string, unknown>): string[] {
  return tokenizerConfigOf(rawConfig).additional_special_tokens ?? [];
}

function tokenizerConfigOf(rawConfig: Record<string, unknown>): z.infer<typeof TokenizerConfig> {
  return readConfig(TokenizerConfig, rawConfig, '');
}

/** Throws `ModelUnsupported` for a field of tokenizer_config.json with another type. */
function readConfig<T>(shape: z.ZodType<T>, value: unknown, field: string): T {
  const read = shape.safeParse(value);
  if (read.success) return read.data;
  throw new RatchetError('ModelUnsupported', `tokenizer_config.json: ${field}${problemsIn(read.error)}`);
}

function namedTemplates(stated: z.infer<typeof TokenizerConfig>['chat_template']): Map<string, string> {
  if (typeof stated === 'string') return new Map([['default', stated]]);
  return new Map(stated?.map(({ name, template }) => [name, template]));
}

function compiled(template: string | undefined): Template | null {
  return template === undefined ? null : compileTemplate(template);
}

function specialTokens(rawConfig: Record<string, unknown>): Record<string, string> {
  const tokens = namedTokens.flatMap((name): [string, string][] => {
    const token = readConfig(TokenText.nullish(), rawConfig[name], `${name}: `);
    return token == null ? [] : [[name, token]];
  });
  return Object.fromEntries(tokens);
}

function withParsedArguments(message: TemplateMessage): object {
  if (typeof message !== 'object' || message === null)
    throw new RatchetError('InferenceRejected', `Expected messages with role and content, got ${received(message)}.`);
  if (!message.tool_calls) return message;
  if (!Array.isArray(message.tool_calls) || !message.tool_calls.every(isCall))
    throw new RatchetError(
      'InferenceRejected',
      `Expected tool_calls as a list of calls, each with function.name and function.arguments, got ${received(message.tool_calls)}.`,
    );
  const calls = message.tool_calls.map((call) => ({
    ...call,
    function: { ...call.function, arguments: parsedArguments(call) },
  }));
  return { ...message, tool_calls: calls };
}

function isCall(call: unknown): boolean {
  const { function: named } = (call ?? {}) as { readonly function?: unknown };
  return typeof named === 'object' && named !== null;
}

/** A JSON text parsed like in Python; an object stays as it is. */
function parsedArguments({ function: { name, arguments: given } }: TemplateToolCall): object {
  if (typeof given !== 'string') return given;
  const written = given === '' ? objectOf([]) : parseWritten(given);
  if (written?.kind === 'object') return valueAsWritten(written) as Dict;
  const of = typeof name === 'string' ? ` "${shortened(name)}"` : '';
  throw new RatchetError('InferenceRejected', `The arguments of the tool call${of} must be the JSON of an object.`);
}

function noTemplate(hasOther: boolean): RatchetError {
  const what = hasOther
    ? 'The model folder has a chat template for conversations with tools alone'
    : 'The model folder has no chat template';
  return new RatchetError(
    'ModelUnsupported',
    `${what}, so these messages cannot be rendered. Send a prompt of token ids or text instead.`,
  );
}
