import { createInterface } from 'node:readline/promises';
import { Command } from 'commander';
import { RatchetError } from '../../core/errors.ts';
import type { ChatMessage } from '../../core/rl/rollout.ts';
import { storedSpec } from '../../runs/stored-spec.ts';
import { openVersion } from '../open-version.ts';
import { headStep } from '../run-records.ts';
import { begunAtOf } from '../../runs/run-access.ts';
import { storedTemplate } from '../../runs/stored-template.ts';
import { Detokenizer, type ModelFolder, Sampler, withChatTemplate } from '../../engine/index.ts';
import { findRunFolder, readStep } from '../run-place.ts';
import { withoutControls } from '../plain-text.ts';
import { storeOption } from '../store-option.ts';
import { print, writeText } from '../print.ts';

export const chatCommand = new Command('chat')
  .description('talk to a version of the policy on this machine; /exit or Ctrl-D ends, a prompt may come on stdin')
  .argument('<run>')
  .option('--step <n>', 'a step whose weights are there; default: the last committed one')
  .option('--system <text>', 'a system message before the conversation')
  .option('--temperature <t>', "0 = the likeliest token; default: the run's")
  .option('--top-p <p>', "default: the run's")
  .option('--top-k <k>', "default: the run's")
  .option('--min-p <p>', "default: the run's")
  .option('--max-tokens <n>', "per answer; default: the run's")
  .option('--seed <n>', 'the same seed gives the same answers', '0')
  .option('--threads <n>', 'of the processor', '1')
  .option(...storeOption)
  .action(async (run: string, options: ChatOptions) => {
    const place = await findRunFolder(run, options.store);
    const step = options.step === undefined ? await headStep(place) : readStep(options.step);
    const { spec } = await storedSpec(place);
    const { begunAt: templateTime } = await begunAtOf(place);
    const opened = await openVersion(place, step, { templateTime });
    const template = await storedTemplate(place, spec);
    const model = template === null ? opened : withChatTemplate(opened, template, { templateTime });
    const sampler = await Sampler.open(model.config, { threads: whole('--threads', options.threads, 1) });
    try {
      const conversation = new Conversation(model, sampler, {
        system: options.system ?? null,
        temperature: number('--temperature', options.temperature, spec.sampling.temperature),
        topP: number('--top-p', options.topP, spec.sampling.topP),
        topK: whole('--top-k', options.topK, spec.sampling.topK ?? 0),
        minP: number('--min-p', options.minP, spec.sampling.minP),
        maxTokens: whole('--max-tokens', options.maxTokens, spec.sampling.maxTokens),
        stop: spec.sampling.stop,
        templateArguments: spec.sampling.templateArguments,
        seed: whole('--seed', options.seed, 0),
      });
      if (process.stdin.isTTY) await talk(conversation, `${run} v${step}`);
      else await answerOnce(conversation);
    } finally {
      await sampler.release();
    }
  });

interface ChatOptions {
  readonly step?: string;
  readonly system?: string;
  readonly temperature?: string;
  readonly topP?: string;
  readonly topK?: string;
  readonly minP?: string;
  readonly maxTokens?: string;
  readonly seed: string;
  readonly threads: string;
  readonly store?: string;
}

interface Sampling {
  readonly system: string | null;
  readonly temperature: number;
  readonly topP: number;
  readonly topK: number;
  readonly minP: number;
  readonly maxTokens: number;
  readonly stop: readonly string[];
  readonly templateArguments: Readonly<Record<string, unknown>>;
  readonly seed: number;
}

/** Messages so far, and the model that goes on with them. */
class Conversation {
  readonly #model: ModelFolder;
  readonly #sampler: Sampler;
  readonly #sampling: Sampling;
  #messages: ChatMessage[] = [];
  #turn = 0;

  constructor(model: ModelFolder, sampler: Sampler, sampling: Sampling) {
    this.#model = model;
    this.#sampler = sampler;
    this.#sampling = sampling;
    this.forget();
  }

  forget(): void {
    const { system } = this.#sampling;
    this.#messages = system === null ? [] : [{ role: 'system', content: system }];
  }

  /** Streams the answer to `print`. One that is aborted is kept as far as it came; one that is refused is not asked again. */
  async say(text: string, print: (piece: string) => void, signal: AbortSignal): Promise<'stop' | 'length' | 'aborted'> {
    const { tokenizer, parameters, config } = this.#model;
    const { stop, system: _, templateArguments: __, ...sampling } = this.#sampling;
    const asked: ChatMessage[] = [...this.#messages, { role: 'user', content: text }];
    const promptTokenIds = this.#prompt(asked);
    const detokenizer = new Detokenizer(tokenizer);
    let [said, told] = ['', 0];
    const tell = (isLast: boolean): void => {
      const end = endOf(said, stop, isLast);
      if (end > told) print(said.slice(told, end));
      told = Math.max(told, end);
    };
    const room = Math.max(1, Math.min(sampling.maxTokens, config.positionsMax - promptTokenIds.length));
    const request = {
      ...sampling,
      maxTokens: room,
      promptTokenIds,
      seed: sampling.seed + this.#turn++,
      stopTokenIds: config.endTokenIds,
    };
    const isFinished = (): boolean => stop.some((ending) => said.includes(ending));
    const onToken = (_index: number, tokenId: number): void => {
      if (config.endTokenIds.includes(tokenId)) return;
      said += detokenizer.push(tokenId);
      tell(false);
    };
    const reason = await this.#sampler
      .generate(parameters, [{ ...request, isFinished }], { signal, onToken })
      .then(([result]) => result!.finishReason)
      .catch((error: unknown) => {
        if (signal.aborted) return 'aborted' as const;
        throw error;
      });
    said += detokenizer.finish();
    tell(true);
    this.#messages = [...asked, { role: 'assistant', content: said.slice(0, endOf(said, stop, true)) }];
    return reason;
  }

  /** What the model's own template makes of it; without one, the plain text. */
  #prompt(messages: readonly ChatMessage[]): readonly number[] {
    const { tokenizer, config } = this.#model;
    const ids = tokenizer.canRenderChat
      ? tokenizer.renderChat(messages, { templateArguments: this.#sampling.templateArguments })
      : tokenizer.encode(messages.map(({ content }) => content).join('\n'));
    if (ids.length < config.positionsMax) return ids;
    throw new RatchetError(
      'PromptTooLong',
      `The conversation has ${ids.length} tokens; the model has ${config.positionsMax} positions. /new begins another one.`,
    );
  }
}

/** Up to where a text can be shown: before a stop text, and before what may become one. */
function endOf(text: string, stop: readonly string[], isLast: boolean): number {
  const found = stop.map((ending) => text.indexOf(ending)).filter((at) => at >= 0);
  if (found.length > 0) return Math.min(...found);
  if (isLast) return text.length;
  const held = Math.max(
    0,
    ...stop.flatMap((ending) =>
      Array.from({ length: ending.length - 1 }, (_, i) => i + 1).filter((n) => text.endsWith(ending.slice(0, n))),
    ),
  );
  return text.length - held;
}

/** All of stdin is one prompt; its answer is all that goes to stdout. */
async function answerOnce(conversation: Conversation): Promise<void> {
  const pieces: Buffer[] = [];
  for await (const piece of process.stdin) pieces.push(piece as Buffer);
  const prompt = Buffer.concat(pieces)
    .toString('utf8')
    .replace(/\r?\n$/, '');
  if (prompt.trim() === '')
    throw new RatchetError('ConfigInvalid', 'There is no prompt on stdin. Example: echo hello | ratchet chat RUN');
  await conversation.say(prompt, writeText, new AbortController().signal);
  print('');
}

/** Line by line until /exit or Ctrl-D; Ctrl-C ends an answer, and the conversation where none is under way. */
async function talk(conversation: Conversation, who: string): Promise<void> {
  print(`${who}. /new begins a new conversation, /exit or Ctrl-D ends.`);
  const lines = createInterface({ input: process.stdin, output: process.stdout, prompt: '> ' });
  let answering: AbortController | null = null;
  lines.on('SIGINT', () => (answering ? answering.abort() : lines.close()));
  lines.prompt();
  for await (const line of lines) {
    if (line.trim() === '/exit') break;
    if (line.trim() === '/new') conversation.forget();
    else if (line.trim() !== '') {
      answering = new AbortController();
      const end = await conversation.say(line, writeText, answering.signal).catch(tellRefusal);
      print(end === 'length' ? ' … (max tokens)' : '');
      answering = null;
    }
    lines.prompt();
  }
  lines.close();
}

function tellRefusal(error: unknown): null {
  if (!(error instanceof RatchetError)) throw error;
  writeText(withoutControls(error.message));
  return null;
}

function number(option: string, text: string | undefined, usual: number): number {
  if (text === undefined) return usual;
  const value = text.trim() === '' ? Number.NaN : Number(text);
  if (Number.isFinite(value) && value >= 0) return value;
  throw new RatchetError('ConfigInvalid', `${option}: expected a number from 0, got ${JSON.stringify(text)}.`);
}

function whole(option: string, text: string | undefined, usual: number): number {
  const value = number(option, text, usual);
  if (Number.isSafeInteger(value)) return value;
  throw new RatchetError('ConfigInvalid', `${option}: expected a whole number, got ${JSON.stringify(text)}.`);
}
