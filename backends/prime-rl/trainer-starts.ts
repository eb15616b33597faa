import { rm } from 'node:fs/promises';
import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import type { LoraSpec, OptimizerSpec } from '../../config/run-spec.ts';
import type { NodesPlace } from '../nodes/node-link.ts';
import { nodesAt, type TrainerNodes } from '../nodes/nodes.ts';
import type { BatchColumns } from './batch-columns.ts';
import { type GivenBatch, GivenBatches, settingsOf } from './given-batches.ts';
import { linkFolder } from './link-files.ts';
import type { PackingOptions } from './packing.ts';
import { openPlace, trainersFolder } from './place.ts';
import { installationOf, type Profile, profileOf } from './profiles.ts';
import type { Table, TrainerSettings } from './settings-file.ts';
import { type DoneStep, type StartOptions, TrainerStart } from './trainer-start.ts';

export interface PrimeRlOptions extends TrainerSettings {
  readonly python: string;
  /** Ranks of each node. */
  readonly ranks: number;
  /** Nodes with ranks, this one included, and where the others join it. */
  readonly nodes?: { readonly count: number; readonly place: NodesPlace } | undefined;
  readonly gpuIds?: readonly number[] | undefined;
  /** Steps between the run’s checkpoints, and its last step. */
  readonly checkpointInterval: number;
  readonly maxSteps: number;
}

/** The version at step 0. */
export interface Origin {
  /** Folder of the model that prime-rl loads. */
  readonly model: string;
  readonly lora: LoraSpec | null;
  readonly seed: number;
  /** What a row costs a rank. */
  readonly cost: NonNullable<PackingOptions['cost']>;
  /** Its weights are an adapter’s, which prime-rl cannot load. */
  readonly isAdapter: boolean;
}

/** A step to be made. */
export interface WantedStep {
  readonly columns: BatchColumns;
  /** Settings of python/ratchet_prime_rl/objective.py; null where no row has a policy loss. */
  readonly objective: Table | null;
  readonly optimizer: OptimizerSpec;
  readonly learningRate: number;
  /** The run’s number of it; null = it is one of the warm-up. */
  readonly runStep: number | null;
}

/** What a start of the trainer is made with: another one needs another start. */
interface StartKey {
  readonly objective: Table | null;
  readonly maxGradNorm: number;
  readonly type: OptimizerSpec['type'];
}

const portMax = 65_535;
/** Ranks of a node that is lost may still write into a folder that is being removed. */
const removing = { recursive: true, force: true, maxRetries: 5, retryDelay: 200 };

const noObjective: Table = { by: 'prime-rl', type: 'dppo', maskLow: 0.2, maskHigh: 0.2, klTau: 1e-3 };

/**
 * The starts of the trainer for one version and what follows it. prime-rl counts steps from 1 wherever that begins. Where another start is needed
 * it continues from the newest checkpoint that is here, and the batches since are given again: they must give the versions that they gave.
 */
export class TrainerStarts {
  readonly #options: PrimeRlOptions;
  readonly #say: (line: string) => void;
  /** Digest of the version in a broadcast. */
  readonly #digestOf: (broadcast: string) => Promise<string>;
  #place: Promise<string> | null = null;
  #profile: Promise<Profile> | null = null;
  #origin: Origin | null = null;
  /** Checkpoint that was restored. */
  #state: { readonly folder: string; readonly step: number } | null = null;
  #at = 0;
  #start: TrainerStart | null = null;
  #key: StartKey | null = null;
  #given: GivenBatches | null = null;
  /** Digests of the steps since the oldest checkpoint here. */
  readonly #digests = new Map<number, string>();
  /** The run’s number of a step, less prime-rl’s. */
  #offset = 0;
  #isOfRun = false;
  #folders = 0;
  #waits: string | null = null;
  /** The other nodes, while a start waits for some of them. */
  #waitedFor: TrainerNodes | null = null;
  #closing = new AbortController();

  constructor(options: PrimeRlOptions, say: (line: string) => void, digestOf: (broadcast: string) => Promise<string>) {
    this.#options = options;
    this.#say = say;
    this.#digestOf = digestOf;
  }

  /** prime-rl’s number of the last step. */
  get at(): number {
    return this.#at;
  }

  get waitsFor(): string | null {
    return this.#waitedFor?.missing(this.#others) ?? this.#waits;
  }

  /** Ranks of all nodes. */
  get world(): number {
    return this.#options.ranks * (this.#others.count + 1);
  }

  get #others() {
    return { kind: 'prime-rl', count: (this.#options.nodes?.count ?? 1) - 1 } as const;
  }

  /** Begins with a version, without moments, and forgets everything else. */
  async beginAt(origin: Origin): Promise<void> {
    await this.#end();
    await this.#given?.forget(() => true);
    this.#digests.clear();
    this.#origin = origin;
    this.#state = null;
    this.#at = 0;
    this.#offset = 0;
  }

  /** Continues from a checkpoint of a step: these files of a folder. */
  async restore(folder: string, names: readonly string[], step: number): Promise<void> {
    const own = await this.newFolder('state');
    await linkFolder(folder, own, names);
    this.#state = { folder: own, step };
    this.#at = step;
  }

  /** Makes the next step; {@link keep} or {@link drop} follows. */
  async step(wanted: WantedStep): Promise<DoneStep & { readonly parts: number; readonly rateTolerance: number }> {
    const { columns, objective, optimizer, learningRate, runStep } = wanted;
    const step = this.#at + 1;
    this.#isOfRun = runStep !== null;
    if (runStep !== null && this.#at === (this.#state?.step ?? 0)) this.#offset = runStep - step;
    const { seqLen, cp = 1 } = this.#options;
    const { fields, form } = await this.#found();
    const made = form.batch(columns, { fields, seqLen, ranks: this.world, cp, step, cost: this.#origin!.cost });
    // Kept before anything starts: the same bytes are given after a death.
    const settings = { ...settingsOf(optimizer, learningRate), ...made.settings };
    const batch = await (await this.#batches()).write(step, made.files, settings);
    const key = { objective, maxGradNorm: optimizer.maxGradNorm, type: optimizer.type };
    const start = await this.#ready(key, { optimizer, learningRate });
    return { ...(await this.#give(start, batch, 'make')), parts: made.parts, rateTolerance: form.rateTolerance };
  }

  async keep(digest: string): Promise<void> {
    this.#at += 1;
    this.#digests.set(this.#at, digest);
    await this.#cleanUp();
  }

  /** The step was not one: the weights in the trainer have moved, so the next step begins from the checkpoint before. */
  async drop(): Promise<void> {
    await this.#end();
    await this.#given?.forget((step) => step > this.#at);
  }

  /** The checkpoint of the last step; null where none was made. Where it is missing, the steps since the one before are done again up to this one. */
  async checkpoint(): Promise<string | null> {
    if (this.#at === (this.#state?.step ?? 0)) return this.#state?.folder ?? null;
    const found = this.#start?.checkpoint(this.#at);
    if (found) return found;
    const { maxGradNorm, type, ...key } = this.#key!; // a step was made
    this.#say(
      `prime-rl has no checkpoint of step ${this.#at + this.#offset}: the steps since its last one are repeated for it`,
    );
    // Each step has settings of its own; these are of the file alone.
    const optimizer = { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weightDecay: 0, maxGradNorm, ...present({ type }) };
    const start = await this.#restart({ ...key, maxGradNorm, type }, { optimizer, learningRate: 0 }, this.#at);
    const made = start.checkpoint(this.#at);
    if (made !== null) return made;
    throw new RatchetError(
      'EngineDied',
      `prime-rl’s trainer ended without a checkpoint of step ${this.#at}.${await start.tail()}`,
    );
  }

  /** A name for a folder of this trainer’s that nothing has used. */
  async newFolder(name: string): Promise<string> {
    this.#place ??= openPlace(trainersFolder());
    this.#folders += 1;
    return path.join(await this.#place, `${name}-${this.#folders}`);
  }

  async close(): Promise<void> {
    this.#closing.abort(new RatchetError('EngineDied', 'prime-rl’s trainer was closed.'));
    this.#closing = new AbortController();
    await this.#end();
    const place = this.#place;
    [this.#place, this.#given, this.#origin, this.#state] = [null, null, null, null];
    const folder = await place?.catch(() => null);
    if (folder) await rm(folder, removing);
  }

  #nodes(): StartOptions['nodes'] {
    const { nodes } = this.#options;
    if (nodes === undefined || nodes.count === 1) return null;
    const { address, port } = nodes.place;
    return {
      address,
      port: port < portMax ? port + 1 : port - 1, // its own is where nodes join
      hold: async (onEnd) => {
        const { signal } = this.#closing;
        const others = await nodesAt(nodes.place);
        this.#waitedFor = others;
        try {
          return await others.hold({ ...this.#others, signal, onEnd });
        } finally {
          this.#waitedFor = null;
        }
      },
    };
  }

  /** A start that stands before the next step, with these settings. */
  async #ready(key: StartKey, first: Pick<WantedStep, 'optimizer' | 'learningRate'>): Promise<TrainerStart> {
    const start = this.#start;
    if (start?.isAlive && start.at === this.#at && this.#serves(key)) return start;
    const last = this.#options.maxSteps - this.#offset;
    const whole = { ...key, objective: key.objective ?? this.#key?.objective ?? null };
    return this.#restart(whole, first, this.#isOfRun && last > this.#at ? last : null);
  }

  #serves({ objective, maxGradNorm, type }: StartKey): boolean {
    const own = this.#key;
    if (own?.maxGradNorm !== maxGradNorm || own.type !== type) return false;
    return objective === null || isDeepStrictEqual(own.objective, objective);
  }

  async #restart(
    key: StartKey,
    { optimizer, learningRate }: Pick<WantedStep, 'optimizer' | 'learningRate'>,
    last: number | null,
  ): Promise<TrainerStart> {
    const origin = this.#origin!; // a version was opened
    const before = this.#start;
    await before?.end();
    const from = await this.#newestCheckpoint(before);
    if (from.folder === null && origin.isAdapter)
      throw new RatchetError(
        'Unsupported',
        'prime-rl’s trainer begins with new adapters, or continues from a checkpoint of its own: it cannot begin with an adapter that was trained before.',
      );
    const folder = await this.newFolder('start');
    const { python, ranks, gpuIds, rankTimeoutS } = this.#options;
    const profile = await this.#found();
    const interval = divisorOf(this.#options.checkpointInterval, this.#offset);
    const settings = profile.form.settings(this.#options, {
      folder,
      modelFolder: origin.model,
      lora: origin.lora,
      optimizer,
      learningRate,
      objective: key.objective ?? noObjective,
      interval,
      from: from.step,
      last,
    });
    const start = await this.#during('prime-rl’s trainer to load the model', () =>
      TrainerStart.begin({
        folder,
        python,
        profile,
        ranks,
        nodes: this.#nodes(),
        gpuIds,
        rankTimeoutS,
        seed: origin.seed,
        lora: origin.lora,
        interval,
        settings,
        from: from.step,
        checkpoint: from.folder,
        last,
      }),
    );
    [this.#start, this.#key] = [start, key];
    for (const batch of (await this.#batches()).between(from.step, this.#at)) {
      const { folder: again } = await this.#give(start, batch, 'repeat');
      await this.#requireSame(batch.step, again);
    }
    if (before) await rm(before.folder, removing);
    return start;
  }

  #give(start: TrainerStart, batch: GivenBatch, what: string): Promise<DoneStep> {
    return this.#during(`prime-rl’s trainer to ${what} step ${batch.step + this.#offset}`, () => start.step(batch));
  }

  async #requireSame(step: number, broadcast: string): Promise<void> {
    const [expected, digest] = [this.#digests.get(step), await this.#digestOf(broadcast)];
    if (digest === expected) return;
    await this.#end();
    throw new RatchetError(
      'EngineDied',
      `prime-rl’s trainer gave another version when step ${step} was repeated: expected the digest ${expected}, got ${digest}.`,
    );
  }

  async #newestCheckpoint(
    start: TrainerStart | null,
  ): Promise<{ readonly step: number; readonly folder: string | null }> {
    const steps = ((await start?.checkpoints()) ?? []).filter((step) => step <= this.#at);
    const newest = steps.at(-1) ?? 0;
    if (newest > (this.#state?.step ?? 0)) return { step: newest, folder: start!.checkpoint(newest) };
    return this.#state ?? { step: 0, folder: null };
  }

  /** Keeps the newest two checkpoints and the batches since: a start may have to begin there. */
  async #cleanUp(): Promise<void> {
    const steps = ((await this.#start?.checkpoints()) ?? []).filter((step) => step <= this.#at);
    const oldest = steps.at(-2) ?? this.#state?.step ?? 0;
    await this.#start?.removeBefore({ broadcast: this.#at - 1, checkpoint: oldest });
    await this.#given?.forget((step) => step <= oldest);
    for (const step of this.#digests.keys()) if (step <= oldest) this.#digests.delete(step);
  }

  async #end(): Promise<void> {
    await this.#start?.end();
  }

  async #during<T>(what: string, work: () => Promise<T>): Promise<T> {
    this.#waits = what;
    try {
      return await work();
    } catch (error) {
      await this.#end();
      throw error;
    } finally {
      this.#waits = null;
    }
  }

  async #batches(): Promise<GivenBatches> {
    return (this.#given ??= new GivenBatches(await this.newFolder('given')));
  }

  #found(): Promise<Profile> {
    const { python } = this.#options;
    return (this.#profile ??= installationOf(python).then((installation) => profileOf(installation, python)));
  }
}

/** The largest interval whose multiples are the run’s, though prime-rl counts from another step. */
function divisorOf(interval: number, offset: number): number {
  let [a, b] = [interval, Math.abs(offset)];
  while (b !== 0) [a, b] = [b, a % b];
  return a;
}
