import { realpathSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import { readLock, takeLock, type LockHolder } from './held-lock.ts';

/** Facts about a project folder's stack, published to other commands. */
export interface RunningStack {
  readonly pid: number;
  readonly state: 'starting' | 'ready' | 'not answering';
  readonly projectFolder: string;
  readonly temporalAddress: string | null;
  readonly uiUrl: string | null;
  readonly policyUrl: string | null;
  /** Whether it has neither a trainer nor a policy server, as for an evaluation or a prompt search. */
  readonly playsOnly: boolean;
  /** ISO 8601. */
  readonly startedAt: string | null;
}

/** Refusal of a second stack in one folder. `running` is the one to attach to. */
export class StackAlreadyRunning extends RatchetError {
  readonly running: RunningStack;

  constructor(running: RunningStack) {
    const since = running.startedAt === null ? '' : `, since ${running.startedAt}`;
    super(
      'Unsupported',
      `Ratchet already runs in ${running.projectFolder} (process ${running.pid}, ${running.state}${since}); ` +
        `use that one, or stop it with: kill ${running.pid}`,
    );
    this.running = running;
  }
}

interface ProjectHold {
  readonly projectFolder: string;
  tell(facts: Partial<Pick<RunningStack, 'state' | 'temporalAddress' | 'uiUrl' | 'policyUrl' | 'playsOnly'>>): void;
  release(): void;
}

/**
 * One stack per folder: two servers over one database file both report that they serve, and then lose each other's
 * writes.
 */
export async function holdProject(folder: string): Promise<ProjectHold> {
  const projectFolder = realpathSync(folder);
  let facts: RunningStack = { ...unknownStack(projectFolder, process.pid), state: 'starting' };
  facts = { ...facts, startedAt: new Date().toISOString() };
  const result = await takeLock(lockKey(projectFolder), facts);
  if ('holder' in result) throw new StackAlreadyRunning(describe(projectFolder, result.holder));
  return {
    projectFolder,
    tell(more) {
      facts = { ...facts, ...more };
      result.lock.tell(facts);
    },
    release: () => result.lock.release(),
  };
}

/** The stack of a project folder, running or starting, or null. */
export async function readRunningStack(folder: string): Promise<RunningStack | null> {
  const projectFolder = realpathSync(folder);
  const holder = await readLock(lockKey(projectFolder));
  return holder === null ? null : describe(projectFolder, holder);
}

/**
 * The stack of a project folder once it is ready; null when there is none, it ended, did not get ready in time, or
 * `signal` was raised.
 */
export async function waitForRunningStack(
  folder: string,
  timeoutMs: number,
  signal?: AbortSignal,
): Promise<RunningStack | null> {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    const running = await readRunningStack(folder);
    if (running === null || running.state === 'ready') return running;
    if (Date.now() > deadline || signal?.aborted === true) return null;
    await sleep(100);
  }
}

const lockKey = (projectFolder: string) => `project ${projectFolder}`;

function describe(projectFolder: string, holder: LockHolder): RunningStack {
  const unknown = unknownStack(projectFolder, holder.pid);
  return holder.facts === null ? unknown : { ...unknown, ...(holder.facts as RunningStack), pid: holder.pid };
}

function unknownStack(projectFolder: string, pid: number): RunningStack {
  return {
    pid,
    state: 'not answering',
    projectFolder,
    temporalAddress: null,
    uiUrl: null,
    policyUrl: null,
    playsOnly: false,
    startedAt: null,
  };
}
