import { createInterface } from 'node:readline/promises';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { ensureEngineLibrary } from '../../../workers/install/engine-library.ts';
import { Sampler } from '../../../engine/index.ts';
import { openChatTarget } from '../../chat/chat-target.ts';
import { Conversation, type ConversationSampling } from '../../chat/conversation.ts';
import { withoutControls } from '../../output/plain-text.ts';
import { readCount } from '../../typed/read-count.ts';
import { storeOption } from '../../typed/store-option.ts';
import { print, printAside, writeText } from '../../output/print.ts';

export const chatCommand = new Command('chat')
  .description('talk to a model on this machine; /exit or Ctrl-D ends, a prompt may come on stdin')
  .argument('<run>', 'a run, RUN@STEP, or the folder of a model or an adapter')
  .option('--step <n>', 'a step whose weights are there; default: the last committed one')
  .option('--compare', 'the model before its training answers, too')
  .option('--system <text>', 'a system message before the conversation')
  .option('--temperature <t>', "0 = the likeliest token; default: the run's, 0.5 of a folder")
  .option('--top-p <p>', "default: the run's, 0.9 of a folder")
  .option('--top-k <k>', "default: the run's")
  .option('--min-p <p>', "default: the run's")
  .option('--max-tokens <n>', "per answer; default: the run's, 256 of a folder")
  .option('--seed <n>', 'the same seed gives the same answers', '0')
  .option('--threads <n>', 'of the processor', '1')
  .option(...storeOption)
  .action(async (named, options) => {
    const target = await openChatTarget(named, options);
    const { sampling: defaults } = target;
    const sampling: ConversationSampling = {
      system: options.system ?? null,
      temperature: number('--temperature', options.temperature, defaults.temperature),
      topP: number('--top-p', options.topP, defaults.topP),
      topK: whole('--top-k', options.topK, defaults.topK ?? 0),
      minP: number('--min-p', options.minP, defaults.minP),
      maxTokens: options.maxTokens === undefined ? defaults.maxTokens : readCount('--max-tokens', options.maxTokens),
      stop: defaults.stop,
      templateArguments: defaults.templateArguments,
      seed: whole('--seed', options.seed, 0),
    };
    const base = options.compare ? await target.openBase() : null;
    await ensureEngineLibrary(printAside);
    const sampler = await Sampler.open(target.model.config, { threads: readCount('--threads', options.threads) });
    try {
      const speakers = [
        ...(base ? [{ name: 'before', conversation: new Conversation(base, sampler, sampling) }] : []),
        { name: base ? 'after ' : null, conversation: new Conversation(target.model, sampler, sampling) },
      ];
      if (process.stdin.isTTY) await talk(speakers, target.name);
      else await answerOnce(speakers);
    } finally {
      await sampler.release();
    }
  });

/** One of the models that answer; its name is printed when there are two. */
interface Speaker {
  readonly name: string | null;
  readonly conversation: Conversation;
}

/** stdin is one prompt; only the answer goes to stdout. */
async function answerOnce(speakers: readonly Speaker[]): Promise<void> {
  const pieces: Buffer[] = [];
  for await (const piece of process.stdin) pieces.push(piece as Buffer);
  const prompt = Buffer.concat(pieces)
    .toString('utf8')
    .replace(/\r?\n$/, '');
  if (prompt.trim() === '')
    throw new RatchetError('ConfigInvalid', 'There is no prompt on stdin. Example: echo hello | ratchet chat RUN');
  for (const { name, conversation } of speakers) {
    if (name !== null) writeText(`${name}  `);
    await conversation.say(prompt, writeText, new AbortController().signal);
    print('');
  }
}

/** Reads lines until /exit or Ctrl-D; Ctrl-C ends the answer under way, or else the conversation. */
async function talk(speakers: readonly Speaker[], who: string): Promise<void> {
  print(`${who}. /new begins a new conversation, /exit or Ctrl-D ends.`);
  const lines = createInterface({ input: process.stdin, output: process.stdout, prompt: '> ' });
  let answering: AbortController | null = null;
  lines.on('SIGINT', () => (answering ? answering.abort() : lines.close()));
  lines.prompt();
  for await (const line of lines) {
    if (line.trim() === '/exit') break;
    if (line.trim() === '/new') speakers.forEach(({ conversation }) => conversation.forget());
    else if (line.trim() !== '') {
      answering = new AbortController();
      for (const { name, conversation } of speakers) {
        if (name !== null) writeText(`${name}  `);
        const end = await conversation.say(line, writeText, answering.signal).catch(tellRefusal);
        print(end === 'length' ? ' … (max tokens)' : '');
      }
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

function number(option: string, text: string | undefined, fallback: number): number {
  if (text === undefined) return fallback;
  const value = text.trim() === '' ? Number.NaN : Number(text);
  if (Number.isFinite(value) && value >= 0) return value;
  throw new RatchetError('ConfigInvalid', `${option}: expected a number from 0, got ${JSON.stringify(text)}.`);
}

function whole(option: string, text: string | undefined, fallback: number): number {
  const value = number(option, text, fallback);
  if (Number.isSafeInteger(value)) return value;
  throw new RatchetError('ConfigInvalid', `${option}: expected a whole number, got ${JSON.stringify(text)}.`);
}
