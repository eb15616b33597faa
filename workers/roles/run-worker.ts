import { setTimeout as delay } from 'node:timers/promises';
import type { Worker } from '@temporalio/worker';
import { type EndSigns, watchForEnd } from './announced-end.ts';
import { closeProcesses } from '../../host/processes-open.ts';

/** A process of one role, which runs until it is shut down. */
export interface OpenedWorker {
  /** Resolves when it has ended, rejects when it failed. */
  run(): Promise<void>;
  /** Stops polling; work under way may end within the grace. */
  shutdown(): void;
  /** Whether it polls for work. */
  isWorking(): boolean;
}

/** Time for the worker's child processes to end. A supervisor waits a little longer before it ends the worker. */
const closeMsMax = 1_000;
/** A worker that has failed reports it within this time. */
const failedLookMs = 2_000;

/**
 * Runs a worker until it is shut down, then exits: with 0, or with 1 if the worker failed or stopped by itself. Exits
 * even if something keeps the process alive: a process that no longer polls has to be restarted by systemd, Kubernetes
 * or a supervisor.
 */
export async function runWorker(
  worker: OpenedWorker,
  say: (line: string) => void,
  signs: EndSigns = {},
): Promise<never> {
  const code = await codeOf(worker, say, { signs });
  // Python would end with us; asked to end, it lets environments close what they have open.
  await Promise.race([closeProcesses().catch((error: unknown) => say(String(error))), delay(closeMsMax)]);
  process.exit(code);
}

/** The exit code of a worker's process, when the worker has come to its end. */
export async function codeOf(
  worker: OpenedWorker,
  say: (line: string) => void,
  {
    told = process,
    signs = {},
  }: { readonly told?: Pick<NodeJS.Process, 'on' | 'off'>; readonly signs?: EndSigns } = {},
): Promise<0 | 1> {
  let isTold = false;
  const tell = (): void => {
    // npm sends the signal a second time.
    if (!isTold) worker.shutdown();
    isTold = true;
  };
  const signals = ['SIGTERM', 'SIGINT', 'SIGQUIT'] as const;
  for (const signal of signals) told.on(signal, tell);
  const announced = (why: string): void => {
    say(`${why}: this worker finishes its work and ends`);
    tell();
  };
  const stopWatching = watchForEnd(signs, announced, { say });
  try {
    await worker.run();
    if (isTold) return 0;
    say('the worker stopped, although it was not told to');
  } catch (error) {
    say(`the worker ${isTold ? 'did not come to its end' : 'failed'}: ${messageOf(error)}`);
  } finally {
    stopWatching();
    for (const signal of signals) told.off(signal, tell);
  }
  return 1;
}

/** One worker of the SDK's, or several that belong together: with the first that fails all have failed. */
export function runTogether(workers: readonly Worker[], { lookMs = failedLookMs } = {}): OpenedWorker {
  const isWorking = (): boolean => workers.every((worker) => worker.getState() === 'RUNNING');
  const hasFailed = (): boolean => workers.some((worker) => worker.getState() === 'FAILED');
  return {
    isWorking,
    run: async () => {
      const watching = new AbortController();
      const running = Promise.all(workers.map(ended));
      try {
        await Promise.race([running, failure(hasFailed, lookMs, watching.signal)]);
      } finally {
        watching.abort();
      }
    },
    shutdown: () => {
      for (const worker of workers) if (worker.getState() === 'RUNNING') worker.shutdown();
    },
  };
}

/**
 * Runs a worker of the SDK's until all its work has ended. The SDK frees its native worker after that, and fails where a call that has ended still
 * holds it for a moment, as on a busy machine ("Worker still in use"): nothing of ours failed then.
 */
async function ended(worker: Worker): Promise<void> {
  try {
    await worker.run();
  } catch (error) {
    if (worker.getState() !== 'STOPPED') throw error;
  }
}

/** Rejects a little after the SDK has given a worker up, whose `run()` may wait for ever for work under way. */
async function failure(hasFailed: () => boolean, lookMs: number, signal: AbortSignal): Promise<never> {
  for (let looks = 0; ; looks = hasFailed() ? looks + 1 : 0) {
    if (looks === 2) throw new Error('it polls for no work any more; the reason is logged above');
    await delay(lookMs, undefined, { signal });
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}
