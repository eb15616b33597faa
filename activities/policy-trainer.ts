import { mkdtemp, readdir, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { RatchetError } from '../core/errors.ts';
import { layout } from '../core/layout.ts';
import type { TrainSample } from '../core/rl/batch.ts';
import type { ObjectRef, PolicyVersion, RunHandle, StepPlan } from '../core/rl/run-state.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import type { SftOutcome, Trainer, TrainOutcome } from '../backends/trainer/types.ts';
import { encodeJson } from '../backends/store/objects.ts';
import { weightsFolder } from '../backends/store/weights-folder.ts';
import { readJson, readRows, requireCommit, specOf, storeOf } from './run-access.ts';
import { manifestOf, sealedSteps, type CheckpointManifest } from './save-checkpoint.ts';

/** How a trainer came to be at a version: nothing to do, or a checkpoint and stored batches. */
export interface Recovery {
  readonly restoredFrom: number;
  /** Batches trained again. No rollout is generated for this. */
  readonly replayedSteps: number;
  /** Checkpoints that were passed over, with what is wrong with them. */
  readonly damaged: readonly string[];
}

/**
 * The trainer of this process and the version it holds. It is brought to a version as a desired state: if it is there,
 * nothing happens; otherwise the newest checkpoint that verifies is loaded and the stored batches after it are trained
 * again, exactly as they were.
 */
export class PolicyTrainer {
  readonly #open: (run: RunHandle) => Promise<Trainer>;
  #trainer: Trainer | null = null;
  #owner: string | null = null;
  #digest: string | null = null;
  /** What the trainer was opened with; another run may want another. */
  #settings: RunSpec['trainer'] | null = null;
  /** The reference policy whose file has been looked at. */
  #reference: string | null = null;

  constructor(open: (run: RunHandle) => Promise<Trainer>) {
    this.#open = open;
  }

  async bringTo(run: RunHandle, version: PolicyVersion): Promise<Recovery | null> {
    const owner = `${run.store}${run.name}/${run.lineage}`;
    if (this.#trainer && this.#owner === owner && this.#digest === version.digest) return null;
    const damaged: string[] = [];
    for (const step of (await sealedSteps(storeOf(run), run.lineage)).reverse()) {
      if (step > version.step) continue;
      try {
        const manifest = await this.#restore(run, step);
        this.#owner = owner;
        const replayedSteps = await this.#replay(run, manifest.step, version);
        return { restoredFrom: step, replayedSteps, damaged };
      } catch (error) {
        if (!(error instanceof RatchetError) || error.code !== 'CheckpointDamaged') throw error;
        damaged.push(`step ${step}: ${error.message}`);
      }
    }
    throw new RatchetError(
      'CheckpointDamaged',
      `No checkpoint at or before step ${version.step} can be read in ${storeOf(run).uri}checkpoints/.\n${damaged.join('\n')}\nRestore one of these files from a copy, or start over with --fresh.`,
    );
  }

  async train(run: RunHandle, plan: StepPlan): Promise<TrainOutcome> {
    const store = storeOf(run);
    const samples = await readRows<TrainSample>(run, plan.batch);
    const reference = `${run.store}${run.name}/${plan.reference.file.key}#${plan.reference.file.sha256}`;
    if (this.#reference !== reference) await store.verify(plan.reference.file); // throws when a byte of it changed
    this.#reference = reference;
    const referenceFolder = await weightsFolder(store, plan.reference.weights);
    const outcome = await this.#use((trainer) => trainer.trainStep({ plan, batch: { samples }, referenceFolder }));
    if (outcome.applied) this.#digest = outcome.digest;
    return outcome;
  }

  /** Starts from a folder of weights with the given state of the optimizer. A warm-up trains all of them, adapters or not. */
  async startFrom(
    run: RunHandle,
    folder: string,
    { optimizer, isWarmUp }: { readonly optimizer: Uint8Array | null; readonly isWarmUp: boolean },
  ): Promise<{ digest: string }> {
    const { trainer: settings, lora, seed } = await specOf(run);
    if (!isDeepStrictEqual(settings, this.#settings)) await this.close();
    this.#trainer ??= await this.#open(run);
    this.#settings = settings;
    const opened = await this.#use(async (trainer) => {
      const { digest } = await trainer.open(folder, { lora: isWarmUp ? null : lora, seed });
      await trainer.restoreOptimizer(optimizer);
      return digest;
    });
    this.#owner = `${run.store}${run.name}/${run.lineage}`;
    this.#digest = opened;
    return { digest: opened };
  }

  /** The version is unknown until `digest()` says it. */
  async sftStep(input: Parameters<Trainer['sftStep']>[0]): Promise<SftOutcome> {
    this.#digest = null;
    return this.#use((trainer) => trainer.sftStep(input));
  }

  async digest(): Promise<string> {
    this.#digest = await this.#use((trainer) => trainer.digest());
    return this.#digest;
  }

  /** Stores the policy as Hugging Face files below `prefix`; the reference is to the weights file. */
  async exportTo(run: RunHandle, prefix: string): Promise<ObjectRef> {
    const temporary = await mkdtemp(path.join(os.tmpdir(), 'ratchet-export-'));
    try {
      const base = path.posix.relative(prefix, layout.weights(run.lineage, 0));
      await this.#use((trainer) => trainer.exportTo(temporary, { base }));
      return await storeFolder(run, temporary, prefix);
    } finally {
      await rm(temporary, { recursive: true, force: true });
    }
  }

  /** Forgets the moments, as a policy's first version does. */
  resetOptimizer(): Promise<void> {
    return this.#use((trainer) => trainer.restoreOptimizer(null));
  }

  saveOptimizer(): Promise<Uint8Array> {
    return this.#use((trainer) => trainer.saveOptimizer());
  }

  async close(): Promise<void> {
    const trainer = this.#trainer;
    this.#forget();
    await trainer?.close();
  }

  async #restore(run: RunHandle, step: number): Promise<CheckpointManifest> {
    const store = storeOf(run);
    const key = `${layout.checkpoint(run.lineage, step)}manifest.json`;
    const bytes = await store.read(key);
    if (!bytes) throw new RatchetError('CheckpointDamaged', `${key} is gone.`);
    const manifest = manifestOf(await requireCommit(run, step));
    if (Buffer.compare(bytes, encodeJson(manifest)) !== 0) {
      throw new RatchetError(
        'CheckpointDamaged',
        `${key} in ${store.uri} does not agree with ${layout.commit(run.lineage, step)}: one of the two was changed.`,
      );
    }
    await store.verify(manifest.policy.file); // throws when a byte of it changed
    const optimizer = manifest.optimizer && (await store.get(manifest.optimizer));
    const { digest } = await this.startFrom(run, await weightsFolder(store, manifest.policy.weights), {
      optimizer,
      isWarmUp: false,
    });
    if (digest !== manifest.policy.digest) {
      throw new RatchetError('CheckpointDamaged', `${manifest.policy.weights} holds other weights than ${key} names.`);
    }
    return manifest;
  }

  async #replay(run: RunHandle, from: number, version: PolicyVersion): Promise<number> {
    for (let step = from + 1; step <= version.step; step++) {
      const { commit } = await requireCommit(run, step);
      const plan = await readJson<StepPlan>(run, commit.plan!);
      const outcome = await this.train(run, plan);
      if (outcome.digest !== commit.policy.digest) {
        this.#forget();
        throw new Error(
          `Training step ${step} again gave ${outcome.digest.slice(0, 12)}…, the commit says ${commit.policy.digest.slice(0, 12)}….`,
        );
      }
    }
    return version.step - from;
  }

  /** A trainer that failed is in a state nobody knows: it is forgotten, and the next step restores. */
  async #use<T>(work: (trainer: Trainer) => Promise<T>): Promise<T> {
    if (!this.#trainer) throw new RatchetError('TrainerDetached', 'The trainer holds no policy yet.');
    try {
      return await work(this.#trainer);
    } catch (error) {
      this.#forget();
      throw error;
    }
  }

  #forget(): void {
    const trainer = this.#trainer;
    this.#trainer = null;
    this.#digest = null;
    this.#owner = null;
    void trainer?.close().catch(() => undefined); // it may be dead already
  }
}

/** Puts a folder's files into the store, the weights last: a folder that has them is whole. */
export async function storeFolder(run: RunHandle, folder: string, prefix: string): Promise<ObjectRef> {
  const names = (await readdir(folder)).sort();
  const weights = names.filter((name) => name.endsWith('.safetensors'));
  let last: ObjectRef | undefined;
  for (const name of [...names.filter((name) => !weights.includes(name)), ...weights]) {
    last = await storeOf(run).putFile(prefix + name, path.join(folder, name));
  }
  if (!last || weights.length !== 1) throw new Error(`${folder} holds ${weights.length} weights files, expected one.`);
  return last;
}
