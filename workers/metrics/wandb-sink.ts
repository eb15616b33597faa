import { spawn, type ChildProcess } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { cacheFolder } from '../../host/cache-folder.ts';
import { plainUrl } from '../../host/plain-url.ts';
import type { MetricsSink, NumberedRow } from '../../core/rl/metric-rows.ts';
import { wandbServer } from '../../backends/metrics/sinks.ts';
import { environmentForAll, selectEnvironment, wandbVariables } from '../../core/child-environment.ts';
import { RatchetError } from '../../core/errors.ts';
import { lineageNumber } from '../../core/names.ts';
import type { RunSpec, WandbSpec } from '../../config/run-spec.ts';
import { requireServer } from '../../host/grants.ts';
import { ensurePython } from '../install/python-environment.ts';

const script = fileURLToPath(new URL('../../python/ratchet_wandb.py', import.meta.url));
const wandbRequirements = fileURLToPath(new URL('../../python/wandb-requirements.txt', import.meta.url));

/** W&B's own first connection may take 90 s until it gives up. */
const readyTimeoutMs = 150_000;
const sendTimeoutMs = 60_000;
const closeTimeoutMs = 30_000;

interface WandbOptions {
  readonly spec: RunSpec;
  readonly wandb: WandbSpec;
  /** Unique to this run, and the same each time it continues. */
  readonly id: string;
  /** Folder of its files on this machine. */
  readonly folder: string;
  readonly log: (line: string) => void;
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
}

interface Ready {
  readonly next: number;
  readonly mode: 'online' | 'offline';
  readonly place: string | null;
  readonly note: string | null;
}
type Said = { readonly ready: Ready } | { readonly sent: number } | { readonly failed: string };

/** The id of the W&B run: of this run's name, its place, and when it was first made. */
export function wandbRunId(run: string, store: string, firstClaim: string): string {
  return createHash('sha256')
    .update([run, store.replace(/[?].*/, ''), firstClaim].join('\n'))
    .digest('hex')
    .slice(0, 16);
}

/** Beside the run's files when those are on this machine, else in the cache. */
export function wandbFolder(store: string, run: string, id: string): string {
  if (store.startsWith('file:')) return path.join(fileURLToPath(store), run, 'wandb');
  return path.join(cacheFolder(), 'wandb', `${run}-${id}`);
}

/** One W&B run, fed through the official client in a separate Python process (`python/ratchet_wandb.py`). */
export class WandbSink implements MetricsSink {
  readonly name = 'wandb';
  readonly #options: WandbOptions;
  #child: ChildProcess | null = null;
  #heard: ((said: Said | null) => void) | null = null;
  readonly #unheard: (Said | null)[] = [];
  #ready: Ready | null = null;

  constructor(options: WandbOptions) {
    this.#options = options;
  }

  /** Process id of the Python child while it runs. */
  get pid(): number | null {
    return this.#child?.pid ?? null;
  }

  async open(cursor: number): Promise<number> {
    await this.#end('SIGKILL');
    const { wandb, environment = process.env, log } = this.#options;
    if (wandb.mode !== 'offline') requireWandb(environment);
    const python = await ensurePython({ name: 'W&B client', requirements: wandbRequirements, log, environment });
    this.#start(python, {
      ...foldersOfClient(this.#options.folder),
      ...selectEnvironment([...environmentForAll, ...wandbVariables], environment),
    });
    this.#write({ init: this.#init(cursor) });
    const said = await this.#hear(readyTimeoutMs);
    if (!('ready' in said)) throw unexpected(said);
    this.#ready = said.ready;
    if (said.ready.note) log(`W&B: offline, since ${said.ready.note}; files are in ${said.ready.place}`);
    return said.ready.next;
  }

  async send(rows: readonly NumberedRow[]): Promise<void> {
    if (rows.length === 0) return;
    this.#write({ rows: rows.map(({ number, row }) => [number, figuresOf(row)]) });
    const said = await this.#hear(sendTimeoutMs);
    if (!('sent' in said)) throw unexpected(said);
  }

  place(): string | null {
    return this.#ready && `${this.#ready.place} (${this.#ready.mode})`;
  }

  /** Waits until W&B has finished what it was given. */
  async close(): Promise<void> {
    await this.#end('SIGTERM');
  }

  #init(cursor: number): object {
    const { spec, wandb, id, folder } = this.#options;
    const { project, entity, name, group, tags, mode } = wandb;
    return {
      id,
      project: project ?? 'ratchet',
      entity,
      name: name ?? spec.name,
      group,
      tags,
      mode,
      folder,
      config: spec,
      cursor,
    };
  }

  #start(python: string, env: Record<string, string>): void {
    // The child joins the worker's process group, so that ending the group ends both.
    const child = spawn(python, ['-u', script], { env, stdio: ['pipe', 'pipe', 'inherit'] });
    this.#child = child;
    this.#unheard.length = 0;
    child.stdin.on('error', () => {}); // the child has ended, which is handled below
    const tell = (said: Said | null): void => {
      if (this.#child !== child) return;
      const heard = this.#heard;
      this.#heard = null;
      if (heard) heard(said);
      else this.#unheard.push(said);
    };
    createInterface({ input: child.stdout }).on('line', (line) => tell(JSON.parse(line) as Said));
    child.on('error', () => tell(null));
    child.on('close', () => tell(null));
  }

  #write(message: object): void {
    this.#child?.stdin?.write(`${JSON.stringify(message)}\n`);
  }

  async #hear(timeoutMs: number): Promise<Said> {
    const waiting = this.#unheard.shift();
    const said =
      waiting !== undefined
        ? waiting
        : await new Promise<Said | null>((resolve) => {
            const timer = setTimeout(() => {
              this.#heard = null;
              resolve({ failed: `it said nothing for ${timeoutMs / 1000} s` });
            }, timeoutMs);
            this.#heard = (heard) => {
              clearTimeout(timer);
              resolve(heard);
            };
          });
    if (said === null) throw new RatchetError('ServerUnavailable', 'the W&B process ended; its log has the reason');
    if ('failed' in said) throw new RatchetError('ServerUnavailable', said.failed);
    return said;
  }

  async #end(how: 'SIGTERM' | 'SIGKILL'): Promise<void> {
    const child = this.#child;
    this.#child = null;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const closed = once(child, 'close');
    if (how === 'SIGTERM') child.stdin?.end();
    else child.kill('SIGKILL');
    const timer = setTimeout(() => child.kill('SIGKILL'), closeTimeoutMs);
    await closed;
    clearTimeout(timer);
  }
}

/**
 * Folders for the client's logs and staged files: beside the run's files, not in the user's home, unless the user names
 * others.
 */
function foldersOfClient(folder: string): Record<string, string> {
  return { WANDB_CACHE_DIR: path.join(folder, 'cache'), WANDB_DATA_DIR: path.join(folder, 'data') };
}

function requireWandb(environment: Readonly<NodeJS.ProcessEnv>): void {
  const server = wandbServer(environment);
  if (plainUrl(server.url) === null)
    throw new RatchetError(
      'ConfigInvalid',
      'WANDB_BASE_URL: expected a URL, http:// or https:// without a password in it.',
    );
  requireServer({ ...server, variables: ['WANDB_BASE_URL'] }, 'W&B ([wandb])', environment);
}

/** Numbers of a row. W&B gets the lineage as a number, and with the first row of a later lineage its origin. */
function figuresOf(row: NumberedRow['row']): Record<string, number> {
  const numbers = Object.entries(row).filter((entry): entry is [string, number] => typeof entry[1] === 'number');
  return { ...Object.fromEntries(numbers), lineage: lineageNumber(row.lineage) };
}

function unexpected(said: Said): RatchetError {
  return new RatchetError('ServerUnavailable', `the W&B process answered ${JSON.stringify(said).slice(0, 200)}`);
}
