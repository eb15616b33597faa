import { mkdir, rm } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../../core/errors.ts';
import { environmentLoadMsMax } from '../../../core/limits.ts';
import type { JsonValue } from '../../../config/run-spec.ts';
import { present } from '../../../core/present.ts';
import { type CallOptions, ChildRefused, PythonChild, unavailable } from './child.ts';
import { childEnvironment } from './child-environment.ts';
import {
  Checked,
  WireInputs,
  LoadedEnvironment,
  type LoadRequest,
  WirePlayedRow,
  type Ready,
  type RolloutRequest,
  type Score,
  type WireScoreRequest,
  Scores,
  type SampledTurn,
  type TurnRequest,
  type WireNote,
  type WireNoted,
} from './protocol.ts';
import { keepSpilled } from './spill.ts';

/** Wait before a dead child is restarted, doubled each time in a row. */
const restartMsMin = 250;
const restartMsMax = 30_000;
/** After this lifetime a death counts as a new failure. */
const healthyMs = 60_000;
const scoreDeadlineS = 600;

export interface BridgeOptions {
  /** The interpreter of a virtual environment with verifiers and the environments. */
  readonly python: string;
  /** Processes side by side, each with one event loop. */
  readonly children?: number;
  /** Logs, and files with results that are too large for a line. */
  readonly folder: string;
  /** Folders searched for modules before installed packages. */
  readonly modulePaths?: readonly string[];
  /** Variables that environments may see beyond the default ones: keys of judges and of tools. */
  readonly variables?: readonly string[];
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
  /** Seconds of silence after which a child is taken to hang. */
  readonly silentS?: number;
  readonly log?: (line: string) => void;
}

export interface RolloutOptions {
  /** Supplies the turns that the environment requests; the environment receives a rejection. */
  readonly onSample: (wanted: TurnRequest) => Promise<SampledTurn>;
  /** Writes calls with an effect and states down; missing = nothing is. */
  readonly onNote?: ((told: WireNote) => Promise<WireNoted>) | undefined;
  readonly signal?: AbortSignal | undefined;
}

/**
 * Environments in Python, run by children of this process. A call rejects with `EnvironmentUnavailable` when its child
 * has ended; the next call starts another, with the same environments loaded.
 */
export interface Bridge {
  /**
   * Starts the children and loads the environment into each. Throws `EnvironmentUnknown` and `EnvironmentBroken` with
   * advice.
   */
  load(request: LoadRequest, signal?: AbortSignal): Promise<LoadedEnvironment>;
  inputs(request: { readonly env: string; readonly split: 'train' | 'eval' }): Promise<WireInputs>;
  rollout(request: RolloutRequest, options: RolloutOptions): Promise<WirePlayedRow>;
  /** Scores rollouts of one example together. */
  score(request: WireScoreRequest, options?: { readonly signal?: AbortSignal | undefined }): Promise<readonly Score[]>;
  /** Releases states that were kept alive. */
  release(request: { readonly env: string; readonly live: readonly (string | number)[] }): Promise<void>;
  /** The declaration of a loaded environment, and where its code does not fit the installed verifiers (v0). */
  check(request: { readonly env: string }): Promise<Checked>;
  unload(request: { readonly env: string }): Promise<void>;
  /** Versions of the first child. */
  about(): Promise<Ready>;
  /** Process ids of the living children. */
  readonly pids: readonly number[];
  /** A child is working, or keeps a state for scoring. */
  readonly isBusy: boolean;
  /** Ends the living children; the next call starts others. */
  rest(): Promise<void>;
  close(): Promise<void>;
}

export async function openBridge(options: BridgeOptions): Promise<Bridge> {
  const environment = childEnvironment(options);
  await mkdir(options.folder, { recursive: true, mode: 0o700 });
  return new ChildrenBridge(options, environment);
}

/** One place of the bridge: a child, and later its successors. */
class Slot {
  readonly #start: () => PythonChild;
  readonly #prepare: (child: PythonChild) => Promise<void>;
  #current: Promise<PythonChild> | null = null;
  #failures = 0;
  #startedAt = 0;
  child: PythonChild | null = null;

  constructor(start: () => PythonChild, prepare: (child: PythonChild) => Promise<void>) {
    this.#start = start;
    this.#prepare = prepare;
  }

  get busy(): number {
    return this.child?.busy ?? 0;
  }

  /** A child that is ready for work. */
  open(): Promise<PythonChild> {
    this.#current ??= this.#open();
    return this.#current;
  }

  async #open(): Promise<PythonChild> {
    if (this.#failures > 0) await delay(Math.min(restartMsMax, restartMsMin * 2 ** (this.#failures - 1)));
    this.#startedAt = Date.now();
    const child = this.#start();
    this.child = child;
    void child.ended.then(() => this.#onEnd(child));
    try {
      await child.ready();
      await this.#prepare(child);
      return child;
    } catch (error) {
      this.#current = null;
      if (!(error instanceof ChildRefused)) await child.kill('it could not be made ready');
      else await child.close();
      throw error;
    }
  }

  #onEnd(child: PythonChild): void {
    this.#failures = Date.now() - this.#startedAt > healthyMs ? 1 : this.#failures + 1;
    if (this.child !== child) return;
    this.child = null;
    this.#current = null;
  }
}

class ChildrenBridge implements Bridge {
  readonly #options: BridgeOptions;
  readonly #slots: readonly Slot[];
  /** A child started on demand, for rollouts that may kill one. */
  readonly #apart: Slot;
  /** Load requests for every new child, by handle, with the first digest of the code. */
  readonly #loads = new Map<string, { readonly request: LoadRequest; readonly code: string | null }>();
  /** The child that runs a group's rollouts. */
  readonly #groups = new Map<string, Slot>();
  /** The child that keeps a state, and its name there. */
  readonly #live = new Map<string, { readonly child: PythonChild; readonly name: string }>();
  readonly #cleanups = new Set<Promise<void>>();
  #starts = 0;
  #isClosed = false;

  constructor(options: BridgeOptions, environment: Record<string, string>) {
    this.#options = options;
    const { python, folder, children = 1, silentS, log = () => {} } = options;
    const slots = Array.from({ length: children + 1 }, (_, i) => {
      const logFile = path.join(folder, `environments-${i}.log`);
      const start = (): PythonChild => {
        if (this.#isClosed) throw unavailable('The bridge to verifiers environments is closed.');
        const spillFolder = path.join(folder, `spill-${process.pid}-${(this.#starts += 1)}`);
        const child = new PythonChild({
          python,
          environment,
          folder: process.cwd(),
          spillFolder,
          logFile,
          ...present({ silentTicks: silentS }),
        });
        const cleaned = child.ended.then(async (why) => {
          if (!this.#isClosed) log(why.message);
          this.#forget(child);
          await rm(spillFolder, { recursive: true, force: true });
          this.#cleanups.delete(cleaned);
        });
        this.#cleanups.add(cleaned);
        return child;
      };
      return new Slot(start, (child) => this.#loadAll(child));
    });
    this.#slots = slots.slice(0, children);
    this.#apart = slots[children]!;
  }

  get #allSlots(): readonly Slot[] {
    return [...this.#slots, this.#apart];
  }

  get pids(): readonly number[] {
    return this.#allSlots.flatMap(({ child }) => (child?.pid === undefined ? [] : [child.pid]));
  }

  get isBusy(): boolean {
    return this.#live.size > 0 || this.#allSlots.some(({ busy }) => busy > 0);
  }

  async rest(): Promise<void> {
    await Promise.all(this.#allSlots.flatMap(({ child }) => (child ? [child.close()] : [])));
  }

  async about(): Promise<Ready> {
    return (await this.#slots[0]!.open()).ready();
  }

  async load(request: LoadRequest, signal?: AbortSignal): Promise<LoadedEnvironment> {
    const [first, ...others] = this.#slots;
    const known = this.#loads.has(request.env);
    try {
      const child = await first!.open();
      const loaded = LoadedEnvironment.parse(await child.call('load', request, this.#loadOptions(signal)));
      if (known) return loaded;
      this.#loads.set(request.env, { request, code: loaded.code ?? null });
      await Promise.all(
        [...others, ...(this.#apart.child ? [this.#apart] : [])].map(async (slot) => {
          const isOpen = slot.child !== null;
          const other = await slot.open(); // a new one loads it with the others
          if (isOpen) await other.call('load', request, this.#loadOptions(signal));
        }),
      );
      return loaded;
    } catch (error) {
      if (!known) this.#loads.delete(request.env);
      throw asLoadError(error, request);
    }
  }

  async inputs({ env, split }: { readonly env: string; readonly split: 'train' | 'eval' }): Promise<WireInputs> {
    // The first child's alone: randomly drawn datasets differ between processes.
    const result = await this.#ask(this.#slots[0]!, 'inputs', { env, split }, this.#loadOptions());
    const inputs = WireInputs.parse(result);
    return { ...inputs, file: await keepSpilled(inputs.file, this.#options.folder) };
  }

  async rollout(request: RolloutRequest, { onSample, onNote, signal }: RolloutOptions): Promise<WirePlayedRow> {
    const { group, deadline_s: deadlineS, isSuspect = false, ...args } = request;
    const slot = isSuspect ? this.#apart : this.#slotFor(group);
    const child = await this.#open(slot, signal);
    const result = await this.#call(child, 'rollout', args, { onSample, onNote, signal, deadlineS });
    const played = WirePlayedRow.parse(result);
    if (played.live === null) return played;
    const live = `${child.pid}/${played.live}`;
    this.#live.set(live, { child, name: played.live });
    return { ...played, live };
  }

  async score(
    request: WireScoreRequest,
    options: { readonly signal?: AbortSignal | undefined } = {},
  ): Promise<readonly Score[]> {
    const { deadline_s: deadlineS = scoreDeadlineS, ...args } = request;
    const { rollouts } = args;
    const holders = new Set<PythonChild>();
    const named = rollouts.map((rollout) => {
      if ('row' in rollout) return rollout;
      const { child, name } = this.#holderOf(rollout.live);
      holders.add(child);
      return { live: name };
    });
    if (holders.size > 1)
      throw new Error('Rollouts that are scored together must be played by one child: give them one group.');
    const [holder] = holders;
    const child = holder ?? (await this.#open(this.#slotFor(undefined), options.signal));
    const result = await this.#call(child, 'score', { ...args, rollouts: named }, { ...options, deadlineS });
    return Scores.parse(result).scores;
  }

  async release({ env, live }: { readonly env: string; readonly live: readonly (string | number)[] }): Promise<void> {
    const byChild = new Map<PythonChild, string[]>();
    for (const handle of live) {
      const held = this.#live.get(String(handle));
      if (!held) continue; // released, or gone with its child
      this.#live.delete(String(handle));
      byChild.set(held.child, [...(byChild.get(held.child) ?? []), held.name]);
    }
    await Promise.all([...byChild].map(([child, names]) => this.#call(child, 'release', { env, live: names })));
  }

  async check(request: { readonly env: string }): Promise<Checked> {
    return Checked.parse(await this.#ask(this.#slotFor(undefined), 'check', request));
  }

  async unload({ env }: { readonly env: string }): Promise<void> {
    this.#loads.delete(env);
    const children = this.#allSlots.flatMap(({ child }) => (child ? [child] : []));
    await Promise.all(children.map((child) => this.#call(child, 'unload', { env })));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all(this.#allSlots.flatMap(({ child }) => (child ? [child.close()] : [])));
    await Promise.all(this.#cleanups);
  }

  #loadOptions(signal?: AbortSignal): CallOptions {
    return { signal, deadlineS: environmentLoadMsMax / 1000 };
  }

  async #loadAll(child: PythonChild): Promise<void> {
    for (const { request, code } of this.#loads.values()) {
      const loaded = LoadedEnvironment.parse(await child.call('load', request, this.#loadOptions()));
      if ((loaded.code ?? null) !== code) throw codeChanged(request, code, loaded.code ?? null);
    }
  }

  #slotFor(group: string | undefined): Slot {
    const known = group === undefined ? undefined : this.#groups.get(group);
    if (known) return known;
    const slot = this.#slots.reduce((least, other) => (other.busy < least.busy ? other : least));
    if (group !== undefined) {
      this.#groups.set(group, slot);
      if (this.#groups.size > groupsKept) this.#groups.delete(this.#groups.keys().next().value!);
    }
    return slot;
  }

  #holderOf(live: string | number): { readonly child: PythonChild; readonly name: string } {
    const held = this.#live.get(String(live));
    if (held?.child.isAlive) return held;
    throw unavailable('A rollout cannot be scored: the Python process that kept its state has ended.');
  }

  async #open(slot: Slot, signal?: AbortSignal): Promise<PythonChild> {
    signal?.throwIfAborted();
    try {
      return await slot.open();
    } catch (error) {
      throw error instanceof ChildRefused
        ? unavailable(`A new Python process could not be made ready. ${error.message}`)
        : error;
    }
  }

  async #ask(slot: Slot, op: string, args: object, options: CallOptions = {}): Promise<JsonValue> {
    return this.#call(await this.#open(slot, options.signal), op, args, options);
  }

  async #call(child: PythonChild, op: string, args: object, options: CallOptions = {}): Promise<JsonValue> {
    try {
      return await child.call(op, args, options);
    } catch (error) {
      throw error instanceof ChildRefused ? asRatchetError(error) : error;
    }
  }

  #forget(child: PythonChild): void {
    for (const [live, held] of this.#live) if (held.child === child) this.#live.delete(live);
  }
}

/** Groups whose child is remembered: more than can be in progress. */
const groupsKept = 16_384;

/**
 * A restarted process imports the code that is there now: rollouts of two different environments would form one group.
 */
function codeChanged({ env_id: id }: LoadRequest, before: string | null, now: string | null): RatchetError {
  const short = (digest: string | null): string => (digest === null ? 'no files' : `${digest.slice(0, 12)}…`);
  return unavailable(
    `The code of ${id} was changed while it was being played: its new Python process has sha256 ${short(now)}, those before it had ${short(before)}. Put its files back; or end the run and train its file again, which continues with the environment as it is then.`,
  );
}

function asLoadError(error: unknown, { env_id: id }: LoadRequest): unknown {
  if (!(error instanceof ChildRefused)) return error;
  const { type, message, fix, traceback, retryable } = error.error;
  const code = type === 'EnvironmentUnknown' ? type : retryable ? 'EnvironmentUnavailable' : 'EnvironmentBroken';
  const isKnown = fix !== undefined;
  const text = isKnown ? `${message}. To mend it: ${fix}.` : `${id} could not be loaded: ${type}: ${message}`;
  return new RatchetError(code, isKnown || traceback === '' ? text : `${text}\n${traceback.trim()}`, { cause: error });
}

function asRatchetError(refused: ChildRefused): RatchetError {
  const { type, retryable, traceback } = refused.error;
  const passes = retryable || type === 'Deadline' || type === 'Cancelled' || type === 'NotLive' || type === 'NotLoaded';
  const text = traceback === '' ? refused.message : `${refused.message}\n${traceback.trim()}`;
  return new RatchetError(passes ? 'EnvironmentUnavailable' : 'EnvironmentBroken', text, { cause: refused });
}
