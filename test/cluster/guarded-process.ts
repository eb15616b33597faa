/** A process of a test cluster, which does not outlive the test. */
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import type { Guard } from '../../workers/stack/guard.ts';
import { until } from '../eventually.ts';

export interface ProcessSpec {
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
  readonly folder: string;
  /** File that its output is added to. */
  readonly log: string;
  readonly user?: { readonly uid?: number; readonly gid?: number };
  /** Whether it serves. */
  readonly isReady: () => Promise<boolean>;
}

/** Characters of a log's end, for messages. */
const saidMax = 4_000;

export class GuardedProcess {
  readonly spec: ProcessSpec;
  readonly #guard: Guard;
  #child: ChildProcess | null = null;

  constructor(spec: ProcessSpec, guard: Guard) {
    this.spec = spec;
    this.#guard = guard;
  }

  get pid(): number | null {
    return this.#child?.pid ?? null;
  }

  /** Resolves when it serves; starts it again if it ends before. */
  async start(): Promise<void> {
    const { name, isReady } = this.spec;
    await until(`${name} serves`, async () => {
      if (this.#child === null) await this.#spawn();
      return isReady();
    }).catch((error: unknown) => {
      throw new Error(`${name} did not start: ${this.said}`, { cause: error });
    });
  }

  /** SIGKILL; resolves when it has ended. */
  async kill(): Promise<void> {
    const child = this.#child;
    if (child?.pid === undefined) throw new Error(`${this.spec.name} does not run`);
    const ended = new Promise((resolve) => child.once('exit', resolve));
    process.kill(-child.pid, 'SIGKILL');
    await ended;
  }

  /** The end of its log. */
  get said(): string {
    return readFileSync(this.spec.log, 'utf8').slice(-saidMax);
  }

  async #spawn(): Promise<void> {
    const { command, args, folder, log, user = {} } = this.spec;
    const output = openSync(log, 'a', 0o644);
    // The shell waits for a line before it becomes the process: by then the guard knows it, whenever we are killed.
    const child = spawn('/bin/sh', ['-c', 'read -r go && exec "$0" "$@"', command, ...args], {
      cwd: folder,
      env: selectEnvironment(environmentForAll, process.env),
      detached: true,
      stdio: ['pipe', output, output],
      ...user,
    });
    closeSync(output);
    this.#child = child;
    const group = child.pid;
    child.once('exit', () => {
      if (group !== undefined) this.#guard.remove(group);
      this.#child = null;
    });
    child.stdin!.on('error', () => undefined); // it has ended already, which is seen above
    if (group !== undefined) await this.#guard.add(group, 'server');
    child.stdin!.write('go\n');
  }
}
