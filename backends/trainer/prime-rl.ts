import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import { RatchetError } from '../../core/errors.ts';
import { rowsOf } from '../../core/rl/learning/batch.ts';
import type { OptimizerState } from '../../core/rl/run-state.ts';
import { describeAdapter } from '../../engine/index.ts';
import { inTemporaryFolder } from '../../host/temporary-folder.ts';
import { filesOf, readState, saveState } from '../prime-rl/saved-state.ts';
import { metricsOf, refusalOf, requireRate } from '../prime-rl/step-figures.ts';
import { faultOf, objectiveOf, policyBatch, requireKnown, supervisedRows } from '../prime-rl/step-rows.ts';
import { type Origin, type PrimeRlOptions, TrainerStarts, type WantedStep } from '../prime-rl/trainer-starts.ts';
import { digestOf, holdFiles, takeVersion, modelFacts, writeVersion } from '../prime-rl/versions.ts';
import type { AnyTrainer, SftOutcome, TrainedPart, Trainer, TrainOutcome } from './types.ts';

/** In folders of this trainer. */
interface Opened {
  readonly folder: string;
  readonly part: TrainedPart;
  /** Folder with the model that prime-rl loads: of an adapter its base. */
  readonly model: string;
  readonly isAdapter: boolean;
  readonly vocabulary: number;
  readonly cost: Origin['cost'];
}

interface Version {
  readonly folder: string;
  readonly digest: string;
  readonly isAdapter: boolean;
}

/**
 * prime-rl’s own trainer, in processes of its own, which reads batches from files and leaves weights as files. A step that it did not finish is
 * not known here: its processes are ended, and whoever holds the run begins again from a checkpoint. It computes in bfloat16, and says neither
 * log probabilities nor that equal inputs give equal bits: on GPUs nobody has measured that.
 */
export class PrimeRlTrainer implements AnyTrainer {
  readonly #options: PrimeRlOptions;
  readonly #starts: TrainerStarts;
  #opened: Opened | null = null;
  #version: Version | null = null;

  constructor(options: PrimeRlOptions, { say = () => undefined }: { say?: (line: string) => void } = {}) {
    this.#options = options;
    this.#starts = new TrainerStarts(options, say, (broadcast) => {
      const { lora } = this.#model().part;
      if (lora === null) return digestOf(broadcast);
      return inTemporaryFolder('version', async (folder) => {
        await takeVersion(broadcast, folder, lora);
        return digestOf(folder);
      });
    });
  }

  async open(folder: string, part: TrainedPart): Promise<{ digest: string }> {
    const adapter = await describeAdapter(folder);
    const isAdapter = adapter !== null;
    const before = this.#opened;
    const model = await this.#hold(adapter?.baseFolder ?? folder);
    const own = isAdapter ? await this.#hold(folder) : model;
    const digest = await digestOf(own);
    this.#opened = { folder: own, part, model, isAdapter, ...(await modelFacts(model)) };
    this.#version = { folder: own, digest, isAdapter };
    const { cost } = this.#opened;
    await this.#starts.beginAt({ model, lora: part.lora, seed: part.seed, isAdapter, cost });
    for (const last of before ? [before.folder, before.model] : []) await rm(last, { recursive: true, force: true });
    return { digest };
  }

  async #hold(folder: string): Promise<string> {
    const held = await this.#starts.newFolder('opened');
    await holdFiles(folder, held);
    return held;
  }

  async trainStep({ plan, batch }: Parameters<Trainer['trainStep']>[0]): Promise<TrainOutcome> {
    requireKnown(plan);
    const columns = await policyBatch(plan, batch);
    const { optimizer, learningRate, loss, step: runStep } = plan;
    const objective = loss.type === 'cross_entropy' ? null : objectiveOf(loss);
    const outcome = await this.#step({ columns, objective, optimizer, learningRate, runStep });
    return { ...outcome, digest: this.#current().digest };
  }

  async sftStep({
    samples,
    normalizer,
    learningRate,
    optimizer,
  }: Parameters<Trainer['sftStep']>[0]): Promise<SftOutcome> {
    const columns = await supervisedRows(rowsOf(samples), normalizer);
    return this.#step({ columns, objective: null, optimizer, learningRate, runStep: null });
  }

  async digest(): Promise<string> {
    return Promise.resolve(this.#current().digest);
  }

  async exportTo(folder: string, { base }: { readonly base: string }): Promise<void> {
    const { folder: from, isAdapter } = this.#current();
    const opened = this.#model();
    const isTrained = from !== opened.folder;
    const texts = opened.isAdapter ? opened.folder : opened.model;
    await writeVersion(from, folder, { texts, base, isAdapter, dtype: isTrained && !isAdapter ? 'bfloat16' : null });
  }

  async saveOptimizer(folder: string): Promise<OptimizerState> {
    const about = { step: this.#starts.at, digest: this.#current().digest, ranks: this.#starts.world };
    await saveState(await this.#starts.checkpoint(), folder, about);
    return { folder };
  }

  async restoreOptimizer(state: OptimizerState | null): Promise<void> {
    if (state === null) return this.#beginAnew();
    if (state instanceof Uint8Array)
      throw new RatchetError(
        'CheckpointDamaged',
        'The optimizer state is not one of prime-rl’s trainer. Restore it from the same checkpoint.',
      );
    const saved = await readState(state.folder);
    const { digest } = this.#current();
    if (saved.digest !== digest)
      throw new RatchetError(
        'CheckpointDamaged',
        `The optimizer’s state is of the version ${saved.digest.slice(0, 12)}…, the weights are ${digest.slice(0, 12)}….`,
      );
    await this.#beginAnew();
    if (saved.step > 0) await this.#starts.restore(state.folder, filesOf(saved), saved.step);
  }

  waitsFor(): string | null {
    return this.#starts.waitsFor;
  }

  close(): Promise<void> {
    return this.#starts.close();
  }

  /** A batch is checked first: prime-rl would train on what is no number, and end at a token that the model does not know. */
  async #step(wanted: WantedStep): Promise<SftOutcome> {
    const { seqLen } = this.#options;
    const fault = faultOf(wanted.columns, { seqLen, vocabulary: this.#model().vocabulary });
    if (fault !== null) return { applied: false, reason: fault, metrics: {} };
    const done = await this.#starts.step(wanted);
    try {
      return await this.#taken(done, wanted);
    } catch (error) {
      await this.#starts.drop(); // its processes have ended before another trainer starts its own
      throw error;
    }
  }

  async #taken(done: Awaited<ReturnType<TrainerStarts['step']>>, wanted: WantedStep): Promise<SftOutcome> {
    requireRate(done, wanted.learningRate);
    const metrics = metricsOf(done, done.parts, wanted.columns);
    const reason = refusalOf(metrics);
    if (reason !== null) {
      await this.#starts.drop();
      const finite = Object.entries(metrics).filter(([, value]) => Number.isFinite(value));
      return { applied: false, reason, metrics: Object.fromEntries(finite) };
    }
    await this.#take(done.folder);
    return { applied: true, metrics };
  }

  async #take(broadcast: string): Promise<void> {
    const { folder: opened, part } = this.#model();
    const { folder: before } = this.#current();
    const folder = await this.#starts.newFolder('version');
    await takeVersion(broadcast, folder, part.lora);
    this.#version = { folder, digest: await digestOf(folder), isAdapter: part.lora !== null };
    await this.#starts.keep(this.#version.digest);
    if (before !== opened) await rm(before, { recursive: true, force: true });
  }

  /** The version that is held goes on without moments, as a model that prime-rl can load. */
  async #beginAnew(): Promise<void> {
    if (this.#starts.at === 0) return;
    const { model, part, cost, folder: opened } = this.#model();
    const { folder, isAdapter } = this.#current();
    const origin = { model, lora: part.lora, seed: part.seed, isAdapter, cost };
    if (isAdapter || folder === opened) return this.#starts.beginAt(origin);
    const whole = await this.#starts.newFolder('model');
    await writeVersion(folder, whole, { texts: model, base: '', isAdapter, dtype: 'bfloat16' });
    await this.#starts.beginAt({ ...origin, model: whole });
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
