import { existsSync } from 'node:fs';
import { mkdir, readdir, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import type { LoraSpec } from '../../config/run-spec.ts';
import { failpoint } from '../../store/failpoints.ts';
import { sha256OfFile } from '../../store/file-store.ts';
import type { HeldNodes, NodeEnd } from '../nodes/nodes.ts';
import { codeNamed } from '../torch/protocol.ts';
import type { TrainerForm } from './forms.ts';
import { type GivenBatch, placeBatch } from './given-batches.ts';
import { linkFolder } from './link-files.ts';
import { requireShared } from './node-group.ts';
import type { Profile } from './profiles.ts';
import { type Launch, settingsFileOf, tailOf, Torchrun } from './torchrun.ts';

const lookMs = 25;
/** Loading and writing models of real size take longer than a step, and say nothing meanwhile. */
const longerBy = 6;
/** A second beyond the time in which ranks give each other up: their own words say more. */
const beyondMs = 10_000;
/** After ranks here that lost others: what happened on the others’ node may be on its way. */
const echoMs = 2_000;

export interface StartOptions {
  /** A new folder, which nothing else has used. */
  readonly folder: string;
  readonly python: string;
  readonly profile: Profile;
  /** Ranks of this machine, and of each other node. */
  readonly ranks: number;
  /** Waits for the other nodes, and holds them; null = there is one. */
  readonly nodes: { hold(onEnd: (cause: NodeEnd) => void): Promise<HeldNodes>; readonly address: string; readonly port: number } | null; // prettier-ignore
  readonly gpuIds: readonly number[] | undefined;
  readonly rankTimeoutS: number;
  /** Of new adapters. */
  readonly seed: number;
  /** Text of its settings file. */
  readonly settings: string;
  /** The step that it continues from, and the checkpoint of it; 0 = it begins with the model. */
  readonly from: number;
  readonly checkpoint: string | null;
  readonly lora: LoraSpec | null;
  /** Steps between its checkpoints. */
  readonly interval: number;
  /** It ends by itself after this step. */
  readonly last: number | null;
}

/** What a step gave. */
export interface DoneStep {
  /** Its weights, in prime-rl’s form. */
  readonly folder: string;
  readonly figures: Readonly<Record<string, number>>;
}

/**
 * One start of prime-rl’s trainer, in a folder of its own: whatever is found there is this start’s, so a marker of an earlier one cannot be taken
 * for its own, and no checkpoint is there but the one that it continues from.
 */
export class TrainerStart {
  readonly folder: string;
  readonly #options: StartOptions;
  readonly #figures: ReturnType<TrainerForm['figures']>;
  #torchrun: Torchrun | null = null;
  #held: HeldNodes | null = null;
  /** Why it has ended. */
  #ended: string | RatchetError | null = null;
  #ending: Promise<void> | null = null;
  /** The last step that was done. */
  #at: number;

  private constructor(options: StartOptions) {
    const { folder, from } = options;
    this.folder = folder;
    this.#options = options;
    this.#at = from;
    this.#figures = this.#form.figures({ folder, log: this.#log });
  }

  /** Starts it, and waits until it has loaded its weights. */
  static async begin(options: StartOptions): Promise<TrainerStart> {
    const { folder, settings, from, checkpoint } = options;
    await mkdir(folder, { recursive: true });
    await options.profile.form.prepare(options);
    if (checkpoint !== null) await linkFolder(checkpoint, path.join(folder, 'checkpoints', `step_${from}`, 'trainer'));
    await writeFile(settingsFileOf(folder), settings, { mode: 0o600 });
    const start = new TrainerStart(options);
    try {
      await start.#launch();
      const about = { folder, from, marker: options.profile.marker, log: start.#log };
      await start.#until(() => start.#form.isReady(about), 'start', longerBy);
    } catch (error) {
      await start.end();
      throw error;
    }
    return start;
  }

  async #launch(): Promise<void> {
    const { folder, python, ranks, gpuIds, from, seed, nodes } = this.#options;
    const launch: Launch = {
      folder,
      ranks,
      ...present({ gpuIds }),
      seed,
      rollouts: path.dirname(path.join(folder, this.#form.batchFolder(from + 1))),
      firstStep: this.#form.numberOf(from + 1),
    };
    const held = (await nodes?.hold((cause) => this.#hear(cause))) ?? null;
    this.#held = held;
    const placeOf = (index: number): Pick<Launch, 'nodes'> =>
      nodes && held ? { nodes: { count: held.names.length + 1, index, address: nodes.address, port: nodes.port } } : {};
    if (held !== null) {
      const settings = await sha256OfFile(settingsFileOf(folder));
      held.start((index) => ({ ...launch, ...placeOf(index), settings }));
      await requireShared(folder, held, () => this.#ended !== null);
    }
    if (this.#ended !== null) return;
    this.#torchrun = new Torchrun(
      python,
      { ...launch, ...placeOf(0) },
      {
        cwd: folder,
        log: this.#log,
        networkInterface: held?.interface,
        onEnd: (how, isDone) => {
          setTimeout(() => (this.#ended ??= how), held === null || isDone ? 0 : echoMs).unref();
        },
      },
    );
  }

  #hear({ code, message }: NodeEnd): void {
    this.#ended ??= new RatchetError(codeNamed(code), message);
    // The other ranks would wait for those that are gone. What fails here is tried again before the next start.
    if (this.#torchrun !== null) this.end().catch(() => undefined);
  }

  get at(): number {
    return this.#at;
  }

  get isAlive(): boolean {
    return this.#ended === null;
  }

  /** Gives it the batch of its next step, and waits until the step is done: its weights are whole, and its figures are there. */
  async step(batch: GivenBatch): Promise<DoneStep> {
    const { step } = batch;
    if (step !== this.#at + 1)
      throw new RatchetError('Bug', `prime-rl’s trainer is at ${this.#at}, not before ${step}.`);
    await placeBatch(batch, path.join(this.folder, this.#form.batchFolder(step)));
    await failpoint('prime-rl.given');
    let figures: Readonly<Record<string, number>> = {};
    const isDone = async (): Promise<boolean> => {
      figures = await this.#figures.of(step);
      return 'optim/lr' in figures && 'time/step' in figures && existsSync(this.#marker(step));
    };
    const { interval, last } = this.#options;
    const savesInStep = step % interval === 0 && !this.#form.checkpointsLast;
    await this.#until(isDone, `step ${step}`, savesInStep ? longerBy : 1);
    if (this.#form.checkpointsLast && step !== last && step % interval === 0)
      await this.#until(() => existsSync(path.join(this.#checkpoint(step), '.metadata')), 'a checkpoint', longerBy);
    if (step === last) await this.#until(() => this.#ended !== null, 'the last checkpoint', longerBy);
    this.#at = step;
    await failpoint('prime-rl.done');
    return { folder: this.broadcast(step), figures };
  }

  broadcast(step: number): string {
    return path.join(this.folder, this.#form.broadcastFolder(step));
  }

  /** Folder of a whole checkpoint of a step; null if there is none. Its metadata come last. */
  checkpoint(step: number): string | null {
    const folder = this.#checkpoint(step);
    const isWhole = existsSync(path.join(folder, '.metadata')) && (step <= this.#at || this.#ended !== null);
    return isWhole ? folder : null;
  }

  /** Steps with a whole checkpoint, ascending. */
  async checkpoints(): Promise<number[]> {
    const names = await readdir(path.join(this.folder, 'checkpoints')).catch(() => []);
    const steps = names.map((name) => Number(/^step_(\d+)$/.exec(name)?.[1]));
    return steps.filter((step) => this.checkpoint(step) !== null).sort((a, b) => a - b);
  }

  /** Removes what no step needs any more: it never removes checkpoints, nor broadcasts at their steps. */
  async removeBefore({ broadcast, checkpoint }: { broadcast: number; checkpoint: number }): Promise<void> {
    const parentOf = (folder: string): string => path.dirname(path.join(this.folder, folder));
    for (const [at, first] of [
      [parentOf(this.#form.broadcastFolder(1)), broadcast],
      [path.join(this.folder, 'checkpoints'), checkpoint],
      [parentOf(this.#form.batchFolder(1)), this.#form.numberOf(broadcast)],
      [path.join(this.folder, 'rollouts'), this.#form.numberOf(broadcast)],
    ] as const) {
      for (const entry of await readdir(at).catch(() => [])) {
        if (Number(/^step_(\d+)$/.exec(entry)?.[1]) < first)
          await rm(path.join(at, entry), { recursive: true, force: true });
      }
    }
  }

  /** Ends all of its processes on all nodes, and proves that they are gone. */
  end(): Promise<void> {
    this.#ended ??= 'was ended';
    this.#ending ??= Promise.all([this.#torchrun?.end(), this.#held?.release()]).then(
      () => undefined,
      (error: unknown) => {
        this.#ending = null; // the next call tries again
        throw error;
      },
    );
    return this.#ending;
  }

  /** Its last words, for messages. */
  tail(): Promise<string> {
    return tailOf(this.#log);
  }

  get #form(): TrainerForm {
    return this.#options.profile.form;
  }

  #checkpoint(step: number): string {
    return path.join(this.folder, 'checkpoints', `step_${step}`, 'trainer');
  }

  get #log(): string {
    return path.join(this.folder, 'trainer.log');
  }

  #marker(step: number): string {
    return path.join(this.broadcast(step), this.#options.profile.marker);
  }

  /** Throws when its launcher has ended before, or it has given no sign for too long: it may wait for what never comes. */
  async #until(isSo: () => boolean | Promise<boolean>, what: string, patience: number): Promise<void> {
    const limitMs = this.#options.rankTimeoutS * 1000 * patience + beyondMs;
    let sign = '';
    let heardAt = performance.now();
    for (;;) {
      const ended = this.#ended; // looked at first: what it did before its end counts
      if (await isSo()) return;
      if (ended instanceof RatchetError) throw ended;
      if (ended !== null)
        throw new RatchetError('EngineDied', `prime-rl’s trainer ${ended} (${what}).${await this.tail()}`);
      const now = await this.#sign();
      if (now !== sign) [sign, heardAt] = [now, performance.now()];
      if (performance.now() - heardAt > limitMs)
        throw new RatchetError(
          'EngineDied',
          `prime-rl’s trainer gave no sign for ${Math.round(limitMs / 1000)} s (${what}). It was ended.${await this.tail()}`,
        );
      await delay(lookMs);
    }
  }

  /** Changes while it logs, or writes a file of weights. */
  async #sign(): Promise<string> {
    const files = [this.#log, path.join(this.folder, 'metrics.jsonl')];
    for (const step of [this.#at, this.#at + 1]) files.push(this.broadcast(step), this.#checkpoint(step));
    const found = await Promise.all(files.map((file) => stat(file).catch(() => null)));
    return found.map((about) => (about === null ? '-' : `${about.size} ${about.mtimeMs}`)).join(' ');
  }
}
