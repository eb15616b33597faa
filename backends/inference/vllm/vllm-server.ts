import { stat } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../../core/errors.ts';
import { needsFullWeights, type VllmSpec } from '../../../config/models/vllm-spec.ts';
import { failpoint } from '../../../store/failpoints.ts';
import { ModelServer, type ServerAddress, type ServerOptions } from '../model-server.ts';
import type { ServedPolicy } from '../../../core/rl/run-state.ts';
import {
  adapterOf,
  isLaterOf,
  labelOf,
  labelRead,
  noVersionLabel,
  runOf,
  type ServedAdapter,
  type WeightsLabel,
} from './vllm-names.ts';
import { readFloatType, VllmRoutes } from './vllm-routes.ts';

/** A run's use of vLLM servers; `locate` maps a local folder to one of the server's. */
interface VllmUse extends Pick<VllmSpec, 'loraRank' | 'servesBase' | 'weights'> {
  readonly locate?: (policy: ServedPolicy) => Promise<string>;
}

/** After this time without an answer the server may be another process, so its weights are checked. */
const certainMs = 2_000;
/** Adapters of a run beside those that are kept: of the versions in training, and of those in flight. */
const adaptersKept = 4;
/**
 * Adapters of all runs of a server. Beyond it the oldest of other runs go, most likely those of a run that was killed: one that is asked
 * for once more is loaded again.
 */
const adaptersOfServer = 32;
/**
 * Timeout of the generation that proves the engine alive: a process's first one compiles, which took 80 s on a busy
 * CPU.
 */
const probeMs = 180_000;

/**
 * One vLLM server. Versions of LoRA runs are adapters, each under a name with its digest, so that none can be mistaken
 * for another; several are held, of several runs on one base. Versions of other runs are its weights, of which it has one at a time: they are
 * exchanged between two tokens, and a label at the server (`/weight_info`) names them for all processes. A restarted
 * server has neither, and loads the requested version again.
 */
export class VllmServer extends ModelServer {
  readonly #use: VllmUse;
  readonly #routes: VllmRoutes;
  /** Its last known own weights; null = the initial ones. */
  #base: WeightsLabel | null = null;
  #certainUntil = 0;
  #processStart: number | null = null;
  #floatType: { readonly said: string | null } | null = null;
  readonly #holders = new Map<string, Map<string, number>>();
  #turn: Promise<unknown> = Promise.resolve();

  constructor(address: ServerAddress, options: ServerOptions, use: VllmUse) {
    super(address, options);
    this.#use = use;
    this.#routes = new VllmRoutes(this, use.weights);
  }

  override async modelFor(policy: ServedPolicy): Promise<string> {
    const adapter = await adapterOf(policy);
    if (adapter && !needsFullWeights(this.#use)) return adapter.name;
    const isCertain = performance.now() <= this.#certainUntil;
    if (!isCertain && (await (adapter ? this.#baseIsOther(adapter) : this.#wholeIsOther(policy)))) {
      throw this.#notHeld(adapter?.base.label.name ?? policy.name);
    }
    return adapter?.name ?? this.#routes.baseModel();
  }

  #notHeld(wanted: string): RatchetError {
    const held = this.#base?.name ?? 'the weights it was started with';
    return new RatchetError('VersionNotHeld', `${this.root} holds ${held}, not ${wanted}.`);
  }

  /** The step of the weights that a turn for `policy` is really sampled from: a later one, once they were exchanged. */
  stepFor(policy: ServedPolicy): number {
    const base = this.#base;
    return base && isLaterOf(base, policy) ? base.step : policy.version.step;
  }

  /** The float type that it reports; null if it does not, or not now. */
  async floatType(): Promise<string | null> {
    try {
      this.#floatType ??= { said: await readFloatType(this) };
      return this.#floatType.said;
    } catch (error) {
      if (error instanceof RatchetError) return null;
      throw error;
    }
  }

  /**
   * Checks its weights after a turn: another process may have exchanged them meanwhile. If that cannot be read, the
   * earlier knowledge stays, which is an older version or the same. Throws `VersionNotHeld` for a turn of an adapter
   * whose base is not there any more: it is of no version.
   */
  async lookAfterTurn(policy: ServedPolicy): Promise<void> {
    if (!this.#routes.hasLabel) return;
    const adapter = await adapterOf(policy);
    if (adapter && !needsFullWeights(this.#use)) return;
    let label: string | null;
    try {
      label = await this.#routes.readLabel();
    } catch (error) {
      if (error instanceof RatchetError) return; // the turn is whole, whatever happened to its server since
      throw error;
    }
    if (label === null) return;
    const read = labelRead(label);
    if (adapter || (read && read.text !== noVersionLabel)) this.#base = read;
    if (adapter && !this.#isThis(adapter.base.label)) throw this.#notHeld(adapter.base.label.name);
  }

  override async leave(run: string): Promise<void> {
    const { adapters } = await this.#routes.models();
    for (const { id } of adapters) if (runOf(id) === run) await this.#routes.unload(id);
  }

  override async post(...asked: Parameters<ModelServer['post']>): Promise<unknown> {
    const answer = await super.post(...asked);
    this.#certain();
    return answer;
  }

  /** It has just answered: for a moment it must be the same process. */
  #certain(): void {
    this.#certainUntil = performance.now() + certainMs;
  }

  override async load(policy: ServedPolicy): Promise<void> {
    const turn = this.#turn.then(() => this.#bring(policy));
    this.#turn = turn.catch(() => undefined);
    await turn;
  }

  /** Loads its part of a version again, from the files. */
  override async reload(policy: ServedPolicy): Promise<void> {
    const adapter = await adapterOf(policy);
    if (adapter) await this.#routes.unload(adapter.name);
    else await this.#routes.label(noVersionLabel);
    this.#base = null;
    await this.load(policy);
  }

  override async hold(name: string, holder: string, seconds: number): Promise<'held' | 'gone' | 'full' | 'single'> {
    if (this.#use.loraRank === null) return 'single';
    const holders = this.#holders.get(name) ?? new Map<string, number>();
    this.#holders.set(name, holders.set(holder, performance.now() + seconds * 1000));
    const { adapters } = await this.#routes.models();
    return adapters.some(({ id }) => id.startsWith(`${name}@`)) ? 'held' : 'gone';
  }

  override release(name: string, holder: string): Promise<void> {
    this.#holders.get(name)?.delete(holder);
    return Promise.resolve();
  }

  override async probe(): Promise<boolean> {
    return (await this.lookAtEngine()) === 'alive';
  }

  /** Generates a token as proof: /health may succeed while the engine is dead. */
  async lookAtEngine(): Promise<'alive' | 'dead' | 'silent'> {
    try {
      const body = { model: await this.#routes.baseModel(), prompt: [1], max_tokens: 1, temperature: 1 };
      const { status } = await this.send('POST', '/v1/completions', body, { timeoutMs: probeMs });
      return status < 300 ? 'alive' : status >= 500 && status !== 503 ? 'dead' : 'silent';
    } catch (error) {
      if (error instanceof RatchetError) return 'silent';
      throw error;
    }
  }

  async #bring(policy: ServedPolicy): Promise<void> {
    const adapter = await adapterOf(policy);
    if (!adapter) {
      await this.#bringWhole(labelOf(policy), policy);
    } else {
      const { base } = adapter;
      const below = path.relative(policy.folder, base.folder);
      const isNew = needsFullWeights(this.#use) && (await this.#bringWhole(base.label, policy, below));
      const { adapters } = await this.#routes.models();
      const isThere = !isNew && adapters.some(({ id }) => id === adapter.name);
      if (!isThere) {
        await this.#routes.loadAdapter(adapter.name, await this.#folderOf(policy));
        await failpoint('vllm.adapter');
      }
      await this.#unloadOld(adapter.name, isNew ? adapters.map(({ id }) => id) : null);
    }
    this.#certain();
  }

  /** Whether its weights were exchanged for these. */
  async #bringWhole(wanted: WeightsLabel, policy: ServedPolicy, below = ''): Promise<boolean> {
    await this.#look();
    if (this.#isThis(wanted)) {
      // It may have the label of an exchange whose process died before its end.
      await this.#routes.resumeIfPaused();
      return false;
    }
    await this.#refuseToShare(policy);
    await this.#routes.exchangeWeights(path.join(await this.#folderOf(policy), below), wanted.text);
    this.#base = wanted;
    return true;
  }

  /** Adapters of other runs would go on over other weights than they were trained on, and nobody would hear of it. */
  async #refuseToShare({ name }: ServedPolicy): Promise<void> {
    const { adapters } = await this.#routes.models();
    const others = [...new Set(adapters.map(({ id }) => runOf(id)))].filter((run) => run !== runOf(name));
    if (others.length === 0) return;
    throw new RatchetError(
      'VersionNotHeld',
      `${this.root} has adapters of ${others.join(', ')} over ${this.#base?.name ?? 'the weights it was started with'}, and ${runOf(name)} needs other weights there. Runs share a server only where their adapters have one base: the same model without [sft], or the same v0. Wait until ${others.length === 1 ? 'that run has' : 'those runs have'} ended, or give this run a server of its own ([inference] url); adapters of a run that was killed are gone when the server is started again.`,
    );
  }

  async #baseIsOther({ base }: ServedAdapter): Promise<boolean> {
    const isKnown = await this.#look();
    this.#certain();
    return isKnown && !this.#isThis(base.label);
  }

  /** Whether its weights are neither these nor later ones of the same lineage, as far as known. */
  async #wholeIsOther(policy: ServedPolicy): Promise<boolean> {
    const isKnown = await this.#look();
    this.#certain();
    if (!isKnown) return false;
    return !this.#isThis(labelOf(policy)) && !(this.#base && isLaterOf(this.#base, policy));
  }

  #isThis(wanted: WeightsLabel): boolean {
    if (this.#base) return this.#base.digest === wanted.digest;
    return this.#use.servesBase && wanted.step === 0;
  }

  /**
   * Reads which weights it has. A label decides; a server without one is assumed unchanged until its process restarts.
   * False if unknown: another process may have loaded the requested version.
   */
  async #look(): Promise<boolean> {
    const label = await this.#routes.readLabel();
    if (label !== null) {
      this.#base = labelRead(label);
      return true;
    }
    const before = this.#processStart;
    const now = await this.#routes.processStart();
    this.#processStart = now;
    if (before !== null && now !== null && before !== now) {
      this.#base = null;
      return true;
    }
    return this.#base !== null;
  }

  async #folderOf(policy: ServedPolicy): Promise<string> {
    if (this.#use.locate) return this.#use.locate(policy);
    const folder = path.resolve(policy.folder);
    await stat(folder); // vLLM takes a missing folder for a model's name on the Hub, and its engine does not survive that
    return folder;
  }

  /** Unloads unused adapters of the same run, and those of others that are too many. `gone`: those of other weights. */
  async #unloadOld(kept: string, gone: readonly string[] | null): Promise<void> {
    const all = (await this.#routes.models()).adapters.map(({ id }) => id);
    const unused = all.filter((id) => id !== kept && !this.#isHeld(id));
    const own = unused.filter((id) => runOf(id) === runOf(kept));
    const old = gone ? own.filter((id) => gone.includes(id)) : beyond(own, adaptersKept - 1);
    const tooMany = Math.max(0, all.length - old.length - adaptersOfServer);
    const ofOthers = unused.filter((id) => runOf(id) !== runOf(kept)).slice(0, tooMany);
    for (const name of [...old, ...ofOthers]) await this.#routes.unload(name);
  }

  #isHeld(adapter: string): boolean {
    const now = performance.now();
    const holders = this.#holders.get(adapter.slice(0, adapter.lastIndexOf('@')));
    return [...(holders?.values() ?? [])].some((until) => until > now);
  }
}

/** All but the newest `count`. */
function beyond(names: readonly string[], count: number): readonly string[] {
  return names.slice(0, Math.max(0, names.length - count));
}
