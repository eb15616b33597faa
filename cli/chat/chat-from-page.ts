import { RatchetError } from '../../core/errors.ts';
import { Sampler } from '../../engine/index.ts';
import type { ChatAsked } from '../../ui/answers.ts';
import type { ChatWithRun } from '../../ui/serve.ts';
import { type ChatTarget, openRunTarget } from './chat-target.ts';
import { Conversation } from './conversation.ts';
import { headStep } from '../../runs/run-records.ts';

const threads = 1;

interface Open {
  readonly of: string;
  readonly target: ChatTarget;
  readonly sampler: Sampler;
}

/**
 * Chats with versions of a folder's runs, as `ratchet chat` does. Holds one version in memory, and generates one answer
 * at a time.
 */
export function chatFromPage(store: string): { readonly chat: ChatWithRun; readonly close: () => Promise<void> } {
  let open: Open | null = null;
  let turn: Promise<unknown> = Promise.resolve();
  const letGo = async (): Promise<void> => {
    const held = open;
    open = null;
    await held?.sampler.release();
  };
  const opened = async (run: string, step: string): Promise<Open> => {
    const at = step === '' ? String(await headStep({ name: run, store })) : step;
    const of = `${run}@${at}`;
    if (open?.of === of) return open;
    await letGo();
    const target = await openRunTarget(run, { step: at, store });
    open = { of, target, sampler: await Sampler.open(target.model.config, { threads }) };
    return open;
  };
  const answer = async (
    run: string,
    { step, messages }: ChatAsked,
    tell: (piece: string) => void,
    signal: AbortSignal,
  ) => {
    const [last, ...before] = messages.toReversed();
    if (last?.role !== 'user')
      throw new RatchetError('ConfigInvalid', 'A conversation: expected a question at its end.');
    signal.throwIfAborted();
    const { target, sampler } = await opened(run, step);
    const sampling = { ...target.sampling, topK: target.sampling.topK ?? 0, system: null, seed: 0 };
    const conversation = new Conversation(target.model, sampler, sampling, before.toReversed());
    const end = await conversation.say(last.content, tell, signal);
    return { name: target.name, end };
  };
  return {
    chat: (run, asked, tell, signal) => {
      const answered = turn.then(() => answer(run, asked, tell, signal));
      turn = answered.catch(() => undefined);
      return answered;
    },
    close: async () => {
      await turn;
      await letGo();
    },
  };
}
