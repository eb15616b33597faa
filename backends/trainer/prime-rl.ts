import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import { rowsOf } from '../../core/rl/learning/batch.ts';
import type { OptimizerState } from '../../core/rl/run-state.ts';
import type { OptimizerSpec } from '../../config/run-spec.ts';
import { describeAdapter } from '../../engine/index.ts';
import type { BatchColumns } from '../prime-rl/batch-columns.ts';
import { GivenBatches, type StepSettings } from '../prime-rl/given-batches.ts';
import { linkFolder } from '../prime-rl/link-files.ts';
import { packRows } from '../prime-rl/packing.ts';
import { openPlace, trainersFolder } from '../prime-rl/place.ts';
import { installationOf, type Profile, profileOf } from '../prime-rl/profiles.ts';
import { filesOf, readState, saveState } from '../prime-rl/saved-state.ts';
import { mainSettings, type Table, type TrainerSettings } from '../prime-rl/settings-file.ts';
import { faultOf, objectiveOf, policyBatch, requireKnown, supervisedRows } from '../prime-rl/step-rows.ts';
import { type DoneStep, TrainerStart } from '../prime-rl/trainer-start.ts';
import { digestOf, takeVersion, vocabularyOf, writeVersion } from '../prime-rl/versions.ts';
import type { AnyTrainer, SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

export interface PrimeRlOptions extends TrainerSettings {
  readonly python: string;
  readonly ranks: number;
  readonly gpuIds: readonly number[] | null;
  /** Steps between the run’s checkpoints, and its last step. */
  readonly checkpointInterval: number;
  readonly maxSteps: number;
}

/** What a start of the trainer is made with: another one needs another start. */
interface StartKey {
  readonly objective: Table | null;
  readonly maxGradNorm: number;
  readonly type: OptimizerSpec['type'];
}

interface Opened {
  readonly folder: string;
  readonly part: TrainedPart;
  /** Whether its weights are an adapter’s. */
  readonly isAdapter: boolean;
  /** Folder with the model that prime-rl loads. */
  readonly model: string;
  readonly vocabulary: number;
}

interface Version {
  readonly folder: string;
  readonly digest: string;
  readonly isAdapter: boolean;
}

/** A step is done again only if it gives what it gave. */
const rateTolerance = 1e-6;
const noObjective: Table = { by: 'prime-rl', type: 'dppo', maskLow: 0.2, maskHigh: 0.2, klTau: 1e-3 };

/**
 * prime-rl’s own trainer, in processes of its own, which reads batches from files and leaves weights as files. It counts steps from 1 wherever a
 * version was opened. A step that it did not finish is not known here: the start is ended, and whoever holds the run begins again from a checkpoint.
 */
export class PrimeRlTrainer implements AnyTrainer {
  readonly #options: PrimeRlOptions;
  readonly #say: (line: string) => void;
  #place: Promise<string> | null = null;
  #profile: Promise<Profile> | null = null;
  #opened: Opened | null = null;
  /** The version at step 0, or at the state’s step. */
  #origin: Version | null = null;
  #version: Version | null = null;
  /** Checkpoint that was restored, by prime-rl’s number of its step. */
  #state: { readonly folder: string; readonly step: number } | null = null;
  #at = 0;
  #start: TrainerStart | null = null;
  #key: StartKey | null = null;
  #given: GivenBatches | null = null;
  /** Digests of the steps since the oldest checkpoint here. */
  readonly #digests = new Map<number, string>();
  /** The run’s number of a step, less prime-rl’s. */
  #offset = 0;
  /** Whether the last step was one of the run, not of its warm-up. */
  #isOfRun = false;
  #folders = 0;
  #waits: string | null = null;

  constructor(options: PrimeRlOptions, { say = () => undefined }: { say?: (line: string) => void } = {}) {
    this.#options = options;
    this.#say = say;
  }

  async open(folder: string, part: TrainedPart): Promise<{ digest: string }> {
    await this.#forget();
    const adapter = await describeAdapter(folder);
    const model = adapter?.baseFolder ?? folder;
    const version = { folder, digest: await digestOf(folder), isAdapter: adapter !== null };
    this.#opened = { folder, part, isAdapter: adapter !== null, model, vocabulary: await vocabularyOf(model) };
    this.#origin = version;
    this.#version = version;
    return { digest: version.digest };
  }

  async trainStep({ plan, batch }: Parameters<Trainer['trainStep']>[0]): Promise<TrainOutcome> {
    requireKnown(plan);
    const columns = await policyBatch(plan, batch);
    if (this.#at === (this.#state?.step ?? 0)) this.#offset = plan.step - this.#at - 1;
    const { optimizer, learningRate, loss } = plan;
    const objective = loss.type === 'cross_entropy' ? null : objectiveOf(loss);
    this.#isOfRun = true;
    const outcome = await this.#step(columns, { objective, optimizer, learningRate });
    return { ...outcome, digest: this.#current().digest };
  }

  async sftStep({ samples, normalizer, learningRate, optimizer }: Parameters<Trainer['sftStep']>[0]): Promise<SftOutcome> {
    const columns = await supervisedRows(rowsOf(samples), normalizer);
    this.#isOfRun = false;
    return this.#step(columns, { objective: null, optimizer, learningRate });
  }

  digest(): Promise<string> {
    return Promise.resolve(this.#current().digest);
  }

  async exportTo(folder: string, { base }: { readonly base: string }): Promise<void> {
    const { folder: from, isAdapter } = this.#current();
    const { model, folder: texts } = this.#model();
    const isTrained = from !== this.#model().folder;
    await writeVersion(from, folder, {
      texts: isAdapter && this.#model().isAdapter ? texts : model,
      base,
      isAdapter,
      dtype: isTrained && !isAdapter ? 'bfloat16' : null,
    });
  }

  async saveOptimizer(folder: string): Promise<OptimizerState> {
    const about = { step: this.#at, digest: this.#current().digest, ranks: this.#options.ranks };
    await saveState(await this.#checkpoint(), folder, about);
    return { folder };
  }

  async restoreOptimizer(state: OptimizerState | null): Promise<void> {
    if (state === null) return this.#beginAnew();
    if (state instanceof Uint8Array)
      throw new RatchetError('CheckpointDamaged', 'The optimizer state is not one of prime-rl’s trainer. Restore it from the same checkpoint.');
    const saved = await readState(state.folder);
    const { digest } = this.#current();
    if (saved.digest !== digest)
      throw new RatchetError('CheckpointDamaged', `The optimizer’s state is of the version ${saved.digest.slice(0, 12)}…, the weights are ${digest.slice(0, 12)}….`);
    await this.#beginAnew();
    if (saved.step === 0) return;
    const folder = await this.#newFolder('state');
    await linkFolder(state.folder, folder, filesOf(saved));
    this.#state = { folder, step: saved.step };
    this.#at = saved.step;
  }

  waitsFor(): string | null {
    return this.#waits;
  }

  async close(): Promise<void> {
    await this.#forget();
    const place = this.#place;
    this.#place = null;
    if (place) await rm(await place.catch(() => '/nonexistent'), { recursive: true, force: true });
  }

  /** One step over a batch, which is checked first: prime-rl would train on what is no number, and wait for ever for ranks that have less. */
  async #step(
    columns: BatchColumns,
    { objective, optimizer, learningRate }: { objective: Table | null; optimizer: OptimizerSpec; learningRate: number },
  ): Promise<SftOutcome> {
    const { seqLen, ranks, cp = 1 } = this.#options;
    const fault = faultOf(columns, { seqLen, vocabulary: this.#model().vocabulary });
    if (fault !== null) return { applied: false, reason: fault, metrics: {} };
    if (!Number.isFinite(learningRate)) return { applied: false, reason: `the learning rate is ${learningRate}`, metrics: {} };
    const key = { objective, maxGradNorm: optimizer.maxGradNorm, type: optimizer.type };
    const profile = await this.#found();
    const step = this.#at + 1;
    const grid = packRows(columns.lengths, { seqLen, ranks: ranks / cp, padToMultipleOf: cp });
    // Kept before anything starts: the same bytes are given after a death.
    const batch = await (await this.#batches()).write(step, columns, { grid, order: profile.fields, settings: settingsOf(optimizer, learningRate) });
    const start = await this.#ready(key, { optimizer, learningRate });
    const done = await this.#during(`step ${step} of prime-rl’s trainer`, () => start.step(batch));
    requireRate(done, learningRate);
    const metrics = metricsOf(done, batch.microBatches, columns);
    const refused = refusalOf(metrics);
    if (refused !== null) {
      // Its weights have moved: the next step begins from the checkpoint before, with the batches since.
      await this.#end();
      await (await this.#batches()).forget((each) => each === step);
      return { applied: false, reason: refused, metrics: finite(metrics) };
    }
    await this.#arrive(step, done);
    return { applied: true, metrics };
  }

  async #arrive(step: number, { folder }: Pick<DoneStep, 'folder'>): Promise<void> {
    const { lora } = this.#model().part;
    const before = this.#current().folder;
    const taken = await this.#newFolder('version');
    await takeVersion(folder, taken, lora);
    this.#version = { folder: taken, digest: await digestOf(taken), isAdapter: lora !== null };
    this.#digests.set(step, this.#version.digest);
    this.#at = step;
    if (before !== this.#origin?.folder) await rm(before, { recursive: true, force: true });
    await this.#cleanUp();
  }

  /** Keeps the newest two checkpoints and the batches since: a replay may have to begin there. */
  async #cleanUp(): Promise<void> {
    const steps = (await this.#start?.checkpoints()) ?? [];
    const oldest = steps.at(-2) ?? this.#state?.step ?? 0;
    await this.#start?.removeBefore({ broadcast: this.#at - 1, checkpoint: oldest });
    await this.#given?.forget((step) => step <= oldest);
    for (const step of this.#digests.keys()) if (step <= oldest) this.#digests.delete(step);
  }

  /** A start that stands before the next step, with these settings. */
  async #ready(key: StartKey, given: { readonly optimizer: OptimizerSpec; readonly learningRate: number }): Promise<TrainerStart> {
    const start = this.#start;
    if (start?.isAlive && start.at === this.#at && this.#serves(key)) return start;
    const last = this.#options.maxSteps - this.#offset;
    return this.#restart({ ...key, objective: key.objective ?? this.#key?.objective ?? null }, given, this.#isOfRun && last > this.#at ? last : null);
  }

  #serves(key: StartKey): boolean {
    const own = this.#key;
    return own !== null && own.maxGradNorm === key.maxGradNorm && own.type === key.type && (key.objective === null || isDeepStrictEqual(own.objective, key.objective)); // prettier-ignore
  }

  /** Starts the trainer from the newest checkpoint that is here, and gives it the batches since, which must give the versions that they gave. */
  async #restart(
    key: StartKey,
    { optimizer, learningRate }: { readonly optimizer: OptimizerSpec; readonly learningRate: number },
    last: number | null,
  ): Promise<TrainerStart> {
    const { model, part, isAdapter } = this.#model();
    const before = this.#start;
    await before?.end();
    const from = await this.#newestCheckpoint(before);
    if (from.folder === null && (isAdapter || this.#origin?.isAdapter))
      throw new RatchetError('Unsupported', 'prime-rl’s trainer begins with new adapters, or continues from a checkpoint of its own: it cannot begin with an adapter that was trained before.');
    const folder = await this.#newFolder('start');
    const { python, ranks, gpuIds, rankTimeoutS } = this.#options;
    const settings = mainSettings(this.#options, {
      folder,
      modelFolder: this.#origin!.isAdapter ? model : this.#origin!.folder,
      lora: part.lora,
      optimizer,
      learningRate,
      objective: key.objective ?? noObjective,
      interval: divisorOf(this.#options.checkpointInterval, this.#offset),
      from: from.step,
      last,
    });
    const profile = await this.#found();
    const begun = TrainerStart.begin({ folder, python, profile, ranks, gpuIds, rankTimeoutS, seed: part.seed, settings, from: from.step, checkpoint: from.folder, last });
    const start = await this.#during('prime-rl’s trainer to load the model', () => begun);
    this.#start = start;
    this.#key = key;
    for (const batch of (await this.#batches()).between(from.step, this.#at)) {
      const done = await this.#during(`prime-rl’s trainer to repeat step ${batch.step}`, () => start.step(batch));
      await this.#requireSame(batch.step, done);
    }
    if (before) await rm(before.folder, { recursive: true, force: true });
    return start;
  }

  async #requireSame(step: number, { folder }: DoneStep): Promise<void> {
    const expected = this.#digests.get(step);
    const again = await this.#newFolder('version');
    await takeVersion(folder, again, this.#model().part.lora);
    const digest = await digestOf(again);
    await rm(again, { recursive: true, force: true });
    if (digest === expected) return;
    await this.#end();
    throw new RatchetError('EngineDied', `prime-rl’s trainer gave another version when step ${step} was repeated: expected the digest ${expected}, got ${digest}.`);
  }

  async #newestCheckpoint(start: TrainerStart | null): Promise<{ readonly step: number; readonly folder: string | null }> {
    const steps = ((await start?.checkpoints()) ?? []).filter((step) => step <= this.#at);
    const newest = steps.at(-1);
    if (newest !== undefined && newest > (this.#state?.step ?? 0)) return { step: newest, folder: start!.checkpoint(newest) };
    return this.#state ?? { step: 0, folder: null };
  }

  /** The checkpoint of the version that is held. Where there is none, the steps since the one before are done again, up to this one. */
  async #checkpoint(): Promise<string | null> {
    if (this.#at === (this.#state?.step ?? 0)) return this.#state?.folder ?? null;
    const found = this.#start?.checkpoint(this.#at);
    if (found) return found;
    const key = this.#key;
    assert(key, 'a version was trained');
    this.#say(`prime-rl has no checkpoint of step ${this.#at + this.#offset}: the steps since its last one are repeated for it`);
    // Each step has its own settings; these are of the file alone.
    const optimizer = { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weightDecay: 0, maxGradNorm: key.maxGradNorm, ...present({ type: key.type }) };
    const start = await this.#restart(key, { optimizer, learningRate: 0 }, this.#at);
    const made = start.checkpoint(this.#at);
    if (made !== null) return made;
    throw new RatchetError('EngineDied', `prime-rl’s trainer ended without a checkpoint of step ${this.#at}.${await start.tail()}`);
  }

  /** The version that is held becomes step 0 of a trainer without moments. */
  async #beginAnew(): Promise<void> {
    if (this.#at === 0 && this.#state === null) return;
    const { model } = this.#model();
    await this.#end();
    const { folder, isAdapter, digest } = this.#current();
    if (folder !== this.#origin?.folder && !isAdapter) {
      const whole = await this.#newFolder('model');
      await writeVersion(folder, whole, { texts: model, base: '', isAdapter, dtype: 'bfloat16' });
      this.#origin = { folder: whole, digest, isAdapter };
    } else this.#origin = this.#current();
    this.#version = this.#origin;
    this.#at = 0;
    this.#offset = 0;
    this.#state = null;
    this.#digests.clear();
    await this.#given?.forget(() => true);
  }

  async #forget(): Promise<void> {
    await this.#end();
    await this.#given?.forget(() => true);
    this.#opened = null;
    this.#origin = null;
    this.#version = null;
    this.#state = null;
    this.#digests.clear();
    this.#at = 0;
    this.#offset = 0;
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

  async #newFolder(name: string): Promise<string> {
    this.#place ??= openPlace(trainersFolder());
    this.#folders += 1;
    return path.join(await this.#place, `${name}-${this.#folders}`);
  }

  async #batches(): Promise<GivenBatches> {
    return (this.#given ??= new GivenBatches(await this.#newFolder('given')));
  }

  #found(): Promise<Profile> {
    const { python } = this.#options;
    return (this.#profile ??= installationOf(python).then((installation) => profileOf(installation, python)));
  }

  #model(): Opened {
    assert(this.#opened, 'open() comes first');
    return this.#opened;
  }

  #current(): Version {
    assert(this.#version, 'open() comes first');
    return this.#version;
  }
}

function settingsOf({ type = 'adamw', beta1, beta2, epsilon, momentum, nesterov, weightDecay }: OptimizerSpec, learningRate: number): StepSettings {
  const common = { learning_rate: learningRate, weight_decay: weightDecay };
  if (type === 'adamw') return { ...common, betas: [beta1, beta2], eps: epsilon };
  return type === 'sgd' ? { ...common, ...present({ momentum, nesterov }) } : common;
}

/** The largest interval whose multiples are the run’s, though prime-rl counts from another step. */
function divisorOf(interval: number, offset: number): number {
  let [a, b] = [interval, Math.abs(offset)];
  while (b !== 0) [a, b] = [b, a % b];
  return a;
}

/** What it says that it trained with. A start whose ranks did not take the step’s settings has trained something else. */
function requireRate({ figures }: DoneStep, learningRate: number): void {
  const used = figures['optim/lr'];
  if (used !== undefined && Math.abs(used - learningRate) <= rateTolerance * learningRate) return;
  throw new RatchetError('EngineDied', `prime-rl’s trainer says that it trained with the learning rate ${String(used)}; expected ${learningRate}.`);
}

/** `loss/mean` is the mean over micro-batches of parts of the batch’s loss, so that these times their number are the loss. */
function metricsOf({ figures }: DoneStep, microBatches: number, { mask, streams }: BatchColumns): Record<string, number> {
  const named = { entropy: 'entropy/all/mean', mismatch_kl: 'mismatch_kl/all/mean', clip_fraction: 'is_masked/mean', nll: 'nll/mean', ref_kl: 'ref_kl/mean' };
  const found = Object.entries(named).flatMap(([name, theirs]) => (figures[theirs] === undefined ? [] : [[name, figures[theirs]]]));
  const sampled = mask.reduce((sum, one) => sum + one, 0);
  let learned = 0;
  for (const weight of streams.ce_weights?.values ?? []) learned += Number(weight !== 0);
  return {
    loss: (figures['loss/mean'] ?? Number.NaN) * microBatches,
    grad_norm: figures['optim/grad_norm'] ?? Number.NaN,
    token_count: sampled + learned,
    ...Object.fromEntries(found),
  };
}

function refusalOf({ loss, grad_norm: norm }: Readonly<Record<string, number>>): string | null {
  if (!Number.isFinite(loss)) return 'the loss is not a finite number';
  if (!Number.isFinite(norm)) return 'the gradient norm is not a finite number';
  return norm === 0 ? 'the gradient is 0: nothing in the batch says which way to go' : null;
}

function finite(metrics: Readonly<Record<string, number>>): Record<string, number> {
  return Object.fromEntries(Object.entries(metrics).filter(([, value]) => Number.isFinite(value)));
}
