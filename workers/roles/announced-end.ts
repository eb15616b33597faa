import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';

/** How a machine announces that it will end, beside SIGTERM. */
export interface EndSigns {
  /** The machine ends when this file is there. */
  readonly file?: string | undefined;
  /** The machine ends when this command of a shell exits with 0. */
  readonly hook?: string | undefined;
}

interface Watching {
  readonly say: (line: string) => void;
  readonly lookMs?: number;
  readonly askMs?: number;
}

/** Clouds give at least 30 seconds, and ask to be asked every 5. */
const usual = { lookMs: 1_000, askMs: 5_000 };
/** A hook that takes longer is ended and asked again. */
const hookMsMax = 4_000;

/**
 * Calls `end` once, with the reason, when the machine announces its end. Returns a function that stops watching. A hook
 * that fails in another way than by its exit code is reported once.
 */
export function watchForEnd(signs: EndSigns, end: (why: string) => void, watching: Watching): () => void {
  const { file, hook } = signs;
  const { lookMs, askMs, say } = { ...usual, ...watching };
  const over = new AbortController();
  const { signal } = over;
  const tell = (why: string): void => {
    if (signal.aborted) return;
    over.abort();
    end(why);
  };
  const every = async (ms: number, look: () => Promise<string | null> | string | null): Promise<void> => {
    while (!signal.aborted) {
      const why = await look();
      if (why !== null) return tell(why);
      await delay(ms, undefined, { signal, ref: false }).catch(() => undefined); // stopped
    }
  };
  if (file !== undefined) void every(lookMs, () => (existsSync(file) ? `${file} is there` : null));
  let said = '';
  if (hook !== undefined)
    void every(askMs, async () => {
      const answer = await askHook(hook, signal);
      if (answer.trouble !== null && answer.trouble !== said) say(`--drain-hook: ${answer.trouble}`);
      said = answer.trouble ?? '';
      return answer.ends ? `--drain-hook: ${answer.text || 'the machine will end'}` : null;
    });
  return () => over.abort();
}

/** Waits while the file is there: a worker that is started again meanwhile would only end again. */
export async function untilNoFile(file: string | undefined, { say, lookMs = usual.lookMs }: Watching): Promise<void> {
  if (file === undefined || !existsSync(file)) return;
  say(`no worker begins while ${file} is there`);
  while (existsSync(file)) await delay(lookMs);
}

interface HookAnswer {
  readonly ends: boolean;
  /** First line of its output. */
  readonly text: string;
  /** null where it answered by its exit code. */
  readonly trouble: string | null;
}

/** The command sees no secrets: only paths and what is needed to reach a network. */
function askHook(hook: string, signal: AbortSignal): Promise<HookAnswer> {
  return new Promise((resolve) => {
    const env = selectEnvironment(environmentForAll, process.env);
    execFile('/bin/sh', ['-c', hook], { env, timeout: hookMsMax, signal, maxBuffer: 64 * 1024 }, (error, out, err) => {
      const [text = ''] = out.split('\n', 1);
      const code = error === null ? 0 : error.code;
      resolve({ ends: code === 0, text, trouble: troubleOf(code, err) });
    });
  });
}

/** A shell exits with 126 and 127 where there is nothing that it can run. A number is missing where the command was ended. */
function troubleOf(code: unknown, said: string): string | null {
  if (code === 126 || code === 127) return `it cannot be run: ${said.trim().slice(0, 300)}`;
  return typeof code === 'number' ? null : `expected an exit code within ${hookMsMax / 1000} s, got none`;
}
