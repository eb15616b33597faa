import { spawn, type ChildProcess } from 'node:child_process';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import type { Guard, GuardRank } from './guard.ts';
import { openRoleLog, type RoleLog } from './role-log.ts';

/** Sign that a process is ready: a printed line, an answer, or a message. Without one: as soon as it runs. */
export type ReadyWhen =
  | { readonly line: string }
  | { readonly url: string }
  | { readonly check: () => boolean | Promise<boolean> };

/** Check that a running process still works. */
export interface AliveWhile {
  readonly check: () => Promise<boolean>;
  readonly everyMs: number;
  /** Failures in a row after which it is ended and restarted. */
  readonly failuresMax: number;
}

interface ProcessSpec {
  /** Name in messages: `rollout worker`. */
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
  /** The whole environment of the process. */
  readonly env: Readonly<Record<string, string>>;
  /** Written to its stdin as a line of JSON first, so that they are not in its environment (`secrets-pipe.ts`). */
  readonly secrets?: Readonly<Record<string, string>> | undefined;
  readonly folder: string;
  readonly rank: GuardRank;
  /** Lines with this prefix are passed on. */
  readonly aloud?: string | undefined;
  readonly ready?: ReadyWhen | undefined;
  readonly readyTimeoutMs?: number | undefined;
  /** Consecutive early ends after which starting is given up. */
  readonly startAttemptsMax?: number | undefined;
  readonly steadyMs?: number | undefined;
  readonly alive?: AliveWhile | undefined;
  /** Called when a process that was ready has ended by itself, before the next one starts. */
  readonly onDeath?: ((pid: number, how: string) => void) | undefined;
}

export interface Surroundings {
  readonly guard: Guard;
  readonly logFolder: string;
  readonly log: (line: string) => void;
}

/** Default time until ready: loading a model on a busy laptop takes long. */
const readyTimeoutMsDefault = 120_000;
const startAttemptsMaxDefault = 3;

const backoffMs = { first: 200, most: 5_000 };
/** A process that was ready for so long restarts at once when it ends. A slow start that fails does not count. */
const steadyMsDefault = 10_000;

/** Interval between readiness checks. */
const readyPollMs = 50;

/** A process in its own group that is restarted whenever it ends by itself. */
export class SupervisedProcess {
  readonly spec: ProcessSpec;
  readonly log: RoleLog;
  readonly #surroundings: Surroundings;
  readonly #stopping = new AbortController();
  #child: ChildProcess | null = null;
  #restarts = 0;
  #lastLines: string[] = [];
  #life: Promise<void> = Promise.resolve();

  constructor(spec: ProcessSpec, surroundings: Surroundings) {
    this.spec = spec;
    this.#surroundings = surroundings;
    this.log = openRoleLog(join(surroundings.logFolder, `${spec.name.toLowerCase().replaceAll(' ', '-')}.log`));
  }

  /** Number of restarts. */
  get restarts(): number {
    return this.#restarts;
  }

  get pid(): number | null {
    return this.#child?.pid ?? null;
  }

  /** The last lines it printed, for messages. */
  get lastLines(): readonly string[] {
    return this.#lastLines;
  }

  /** Starts it; resolves when it is ready for the first time, rejects when it never gets there. */
  start(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#life = this.#live(resolve, reject).catch(reject);
    });
  }

  /** SIGTERM to its group, SIGKILL after `graceMs`. Idempotent. */
  async stop(graceMs: number): Promise<void> {
    this.#stopping.abort();
    const child = this.#child;
    if (child?.pid !== undefined) {
      const group = child.pid;
      signalGroup(group, 'SIGTERM');
      signalGroup(group, 'SIGCONT');
      await Promise.race([this.#life, sleep(graceMs)]);
      signalGroup(group, 'SIGKILL');
    }
    await this.#life;
    this.log.close();
  }

  async #live(onFirstReady: () => void, onNever: (error: Error) => void): Promise<void> {
    let everReady = false;
    let endsInARow = 0;
    while (!this.#stopping.signal.aborted) {
      let readyAtMs = Infinity;
      const how = await this.#once(() => {
        readyAtMs = Date.now();
        if (everReady) this.#surroundings.log(`${this.spec.name} is back`);
        everReady = true;
        onFirstReady();
      });
      if (this.#stopping.signal.aborted) break;
      endsInARow = Date.now() - readyAtMs > (this.spec.steadyMs ?? steadyMsDefault) ? 1 : endsInARow + 1;
      if (!everReady && (how === 'did not get ready' || endsInARow >= this.#attemptsMax)) {
        return onNever(this.#neverReady(how));
      }
      this.#restarts += 1;
      this.#surroundings.log(`${this.spec.name} ${how}; restarting`);
      const waitMs = Math.min(backoffMs.most, backoffMs.first * 2 ** (endsInARow - 1));
      await sleep(waitMs, undefined, { signal: this.#stopping.signal }).catch(() => {});
    }
    onNever(new RatchetError('ServerUnavailable', `${this.spec.name} was stopped before it was ready`));
  }

  get #attemptsMax(): number {
    return this.spec.startAttemptsMax ?? startAttemptsMaxDefault;
  }

  #neverReady(how: string): RatchetError {
    const said = this.#lastLines.length === 0 ? '' : `\n  ${this.#lastLines.slice(-8).join('\n  ')}`;
    return new RatchetError('ServerUnavailable', `${this.spec.name} ${how}; its log is ${this.log.path}${said}`);
  }

  /** One life from start to end; returns how it ended. */
  async #once(onReady: () => void): Promise<string> {
    const { command, args, env, folder, rank } = this.spec;
    const { guard } = this.#surroundings;
    this.#lastLines = [];
    // The shell waits for a line before it becomes the process: by then the guard knows it, whenever we are killed.
    const child = spawn('/bin/sh', ['-c', 'read -r go && exec "$0" "$@"', command, ...args], {
      cwd: folder,
      env: { ...env },
      detached: true,
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    this.#child = child;
    const ended = new Promise<string>((resolve) => {
      child.on('error', (error) => resolve(`could not be started (${error.message})`));
      child.on('exit', (code, signal) => resolve(describeEnd(code, signal)));
    });
    child.stdin.on('error', () => {});
    let saidReady = false;
    const ready = this.spec.ready;
    const hear = (chunk: Buffer) => {
      const text = chunk.toString('utf8');
      this.log.append(chunk);
      if (ready && 'line' in ready) saidReady ||= `${this.#lastLines.at(-1) ?? ''}${text}`.includes(ready.line);
      this.#remember(text);
    };
    child.stdout.on('data', hear);
    child.stderr.on('data', hear);

    const group = child.pid;
    if (group !== undefined) {
      this.log.append(`--- ${new Date().toISOString()} ${this.spec.name} starts as process ${group}\n`);
      await guard.add(group, rank);
      if (this.#stopping.signal.aborted) signalGroup(group, 'SIGKILL');
      const { secrets } = this.spec;
      child.stdin.write(secrets === undefined ? 'go\n' : `go\n${JSON.stringify(secrets)}\n`);
    }

    const watching = new AbortController();
    const isReady = this.#waitUntilReady(() => saidReady, watching.signal);
    const first = await Promise.race([ended, isReady]);
    if (first === 'ready') {
      onReady();
      void this.#watchLife(group, watching.signal);
    }
    const neverReady = first === 'late';
    if (neverReady && group !== undefined) signalGroup(group, 'SIGKILL');
    const how = await ended;
    watching.abort();
    if (group !== undefined) {
      // The children must not run beside those of the successor.
      signalGroup(group, 'SIGKILL');
      guard.remove(group);
    }
    this.#child = null;
    this.log.append(`--- ${new Date().toISOString()} ${this.spec.name} ${how}\n`);
    if (first === 'ready' && group !== undefined && !this.#stopping.signal.aborted) this.spec.onDeath?.(group, how);
    return neverReady ? 'did not get ready' : how;
  }

  async #watchLife(group: number | undefined, signal: AbortSignal): Promise<void> {
    const { alive, name } = this.spec;
    if (!alive) return;
    let failures = 0;
    while (!signal.aborted) {
      await sleep(alive.everyMs, undefined, { signal, ref: false }).catch(() => {});
      if (signal.aborted) return;
      failures = (await alive.check()) ? 0 : failures + 1;
      if (failures < alive.failuresMax || signal.aborted) continue;
      this.#surroundings.log(`${name} is there and does not work`);
      if (group !== undefined) signalGroup(group, 'SIGKILL');
      return;
    }
  }

  async #waitUntilReady(saidReady: () => boolean, signal: AbortSignal): Promise<'ready' | 'late' | 'ended'> {
    const { ready, readyTimeoutMs = readyTimeoutMsDefault } = this.spec;
    if (!ready) return 'ready';
    const deadline = Date.now() + readyTimeoutMs;
    while (!signal.aborted) {
      if ('line' in ready ? saidReady() : 'url' in ready ? await answers(ready.url) : await ready.check()) {
        return signal.aborted ? 'ended' : 'ready';
      }
      if (Date.now() > deadline) return 'late';
      await sleep(readyPollMs);
    }
    return 'ended';
  }

  #remember(text: string): void {
    const { aloud } = this.spec;
    const lines = `${this.#lastLines.pop() ?? ''}${text}`.split('\n');
    for (const line of lines.slice(0, -1)) {
      if (aloud !== undefined && line.startsWith(aloud)) this.#surroundings.log(line);
    }
    this.#lastLines = [...this.#lastLines, ...lines].slice(-40);
  }
}

async function answers(url: string): Promise<boolean> {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(2_000) });
    await response.body?.cancel();
    return response.ok;
  } catch {
    return false;
  }
}

function describeEnd(code: number | null, signal: NodeJS.Signals | null): string {
  return signal === null ? `ended (exit code ${code})` : `was killed (${signal})`;
}

function signalGroup(group: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-group, signal);
  } catch {
    // Gone already, as intended.
  }
}
