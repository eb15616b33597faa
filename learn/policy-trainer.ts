import { isDeepStrictEqual } from 'node:util';
import { RatchetError } from '../core/errors.ts';
import { canaryTokens, rowsAtOnceTokensMax } from '../core/limits.ts';
import { type PackedRow, type RowSource, windowsOf } from '../core/rl/learning/batch.ts';
import type { ObjectRef, OptimizerState, PolicyVersion, RunHandle, StepPlan } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { AnyTrainer, SftOutcome, Trainer, TrainOutcome } from '../backends/trainer/types.ts';
import { putMade, type VersionFiles, verifyVersion } from '../store/version-files.ts';
import { weightsFolder } from '../store/weights-folder.ts';
import { openBatch, type StoredBatch } from '../runs/rollouts/batches.ts';
import { correctBatch } from './correct-batch.ts';
import { readCommit, readJson, requireCommit, specOf, storeOf } from '../runs/run-access.ts';
import { trainerFailure } from '../core/rl/engine-failures.ts';
import { specOfCommit } from '../runs/forms/stored-spec.ts';
import { openOptimizer, putOptimizer, readManifest, sealedFor } from '../runs/versions/checkpoints.ts';
import { RestorableSteps } from '../runs/lineages/restorable-steps.ts';
import { putTokenScores } from '../runs/rollouts/token-scores.ts';
import { madeAt, type MadeVersion, pathToBase, type PendingVersion, type PendingVersions } from './pending-versions.ts';
import type { Canary } from '../core/rl/learning/canary.ts';

/** How a trainer reached a version: with nothing to do, or from a checkpoint and stored batches. */
export interface Recovery {
  /** Step of the checkpoint; null when the replay began with an earlier version that it held itself. */
  readonly restoredFrom: number | null;
  /** Batches trained again. No rollout is generated for this. */
  readonly replayedSteps: number;
  readonly seconds: number;
  /** Checkpoints that were skipped, with their damage. */
  readonly damaged: readonly string[];
  /** Set when training again gave other weights than the commits record. */
  readonly differs: Difference | null;
  /** Set when the trainer is another engine than the one that made the version: its bits may differ from here on. */
  readonly engines?: { readonly before: string; readonly now: string };
}

interface Difference {
  /** The first step whose replay differed. */
  readonly step: number;
  /** Digest of the repeated version, which replaces the requested one. */
  readonly digest: string;
  /** Whether the commit was made on the very same engine, which promises equal bits: then a difference is a bug. */
  readonly isSameEngine: boolean;
  /** The checkpoint was made by another kind of trainer: these are its weights, without its optimizer's moments. */
  readonly isOfOtherTrainer?: boolean;
}

type FirstDifference = Omit<Difference, 'digest'>;

/** Asked before each batch that is trained, and before weights are written: throws when this process should stop. */
export type MayGoOn = () => Promise<void>;

/** A version from which a replay can start. */
interface Start {
  readonly step: number;
  /** The lineage that sealed the checkpoint; null = the version in this process. */
  readonly lineage: string | null;
}

/**
 * The trainer of this process and its version. `bringTo` treats the wanted version as a desired state, and does nothing
 * if the trainer holds it. Otherwise training restarts from the version that needs the fewest stored batches, and
 * repeats them exactly. That is a sound checkpoint, or the held version if the store still has every batch after it:
 * another GPU worker may have trained the run since.
 */
export class PolicyTrainer {
  readonly #open: (run: RunHandle) => Promise<AnyTrainer>;
  #trainer: AnyTrainer | null = null;
  #owner: string | null = null;
  #digest: string | null = null;
  /** Step of the held version; null if it holds none, as during a warm-up. */
  #step: number | null = null;
  /** The version that it holds another one in place of, since its replay differed. */
  #standsFor: { readonly version: VersionName; readonly difference: Difference } | null = null;
  /**
   * Identity of the run that the trainer was opened for. Another run gets another trainer: its code and its model may
   * differ.
   */
  #openedFor: OpenedFor | null = null;
  /** The batch that was trained last: its first rows are the canary's. */
  #batch: { readonly of: string; readonly batch: StoredBatch } | null = null;

  constructor(open: (run: RunHandle) => Promise<AnyTrainer>) {
    this.#open = open;
  }

  /** If a replay gives another version than the requested one, it is kept and reported as different. */
  async bringTo(
    run: RunHandle,
    version: PolicyVersion,
    mayGoOn: MayGoOn = () => Promise.resolve(),
  ): Promise<Recovery | null> {
    const startedAt = performance.now();
    const arrived = (rest: Pick<Recovery, 'restoredFrom' | 'replayedSteps' | 'damaged' | 'differs'>): Recovery => ({
      ...rest,
      seconds: (performance.now() - startedAt) / 1000,
    });
    await this.#closeOther(run);
    if (this.#isAt(run, version)) return null;
    if (this.#isOf(run) && this.#standsFor !== null && isSame(this.#standsFor.version, version))
      return arrived({ restoredFrom: null, replayedSteps: 0, damaged: [], differs: this.#standsFor.difference });
    const damaged: string[] = [];
    for (const { step, lineage } of await this.#startsFor(run, version)) {
      try {
        await mayGoOn();
        if (lineage === null && !(await this.#leadsOn(run, step, version))) continue;
        const restored = lineage === null ? null : await this.#restore(run, lineage, step);
        const differs = await this.#replay(run, { from: step, restored }, version, mayGoOn);
        const restoredFrom = lineage === null ? null : step;
        const replayedSteps = version.step - step;
        return {
          ...arrived({ restoredFrom, replayedSteps, damaged, differs }),
          ...(await this.#changed(run, version)),
        };
      } catch (error) {
        if (!(error instanceof RatchetError) || error.code !== 'CheckpointDamaged') throw error;
        // The trainer now holds the last step that was repeated, so the next candidate is a checkpoint.
        damaged.push(`step ${step}${lineage === null ? ', held by this GPU worker' : ''}: ${error.message}`);
      }
    }
    throw new RatchetError(
      'CheckpointDamaged',
      `No checkpoint at or before step ${version.step} can be read in ${storeOf(run).uri}checkpoints/.\n${damaged.join('\n')}\nRestore one of these files from a copy.`,
    );
  }

  /** Stores the trainer's values for each token if the run's settings ask for it and the step is not a replay. */
  async train(run: RunHandle, plan: StepPlan, { isReplay = false } = {}): Promise<TrainOutcome> {
    const store = storeOf(run);
    const tellsTokens = !isReplay && (await specOf(run)).tokenScores;
    const stored = await this.#batchOf(run, plan);
    const { batch, told } = await correctBatch(stored, plan, () => this.#score(stored, plan.temperature));
    await verifyVersion(store, plan.reference); // throws if a byte has changed; files that look unchanged are not read again
    const referenceFolder = await weightsFolder(store, plan.reference.weights);
    const outcome = await this.#use((trainer) => trainer.trainStep({ plan, batch, referenceFolder, tellsTokens }));
    if (outcome.applied) {
      this.#digest = outcome.digest;
      this.#step = plan.step;
      this.#standsFor = null;
      // Not earlier: if the store refuses them, the trainer has the new weights all the same.
      if (outcome.scores) await putTokenScores(run, plan.step, stored, outcome.scores);
    }
    return { ...outcome, metrics: { ...outcome.metrics, ...told() } };
  }

  /**
   * Starts from a folder of weights with the given optimizer state. A warm-up trains all of them, with or without
   * adapters.
   */
  async startFrom(
    run: RunHandle,
    folder: string,
    { optimizer, isWarmUp }: { readonly optimizer: OptimizerState | null; readonly isWarmUp: boolean },
  ): Promise<{ digest: string }> {
    const { lora, seed } = await this.#opened(run);
    const opened = await this.#use(async (trainer) => {
      const { digest } = await trainer.open(folder, { lora: isWarmUp && !this.hasAdaptersOnly ? null : lora, seed });
      await trainer.restoreOptimizer(optimizer);
      return digest;
    });
    this.#owner = ownerOf(run);
    this.#digest = opened;
    this.#step = null;
    this.#standsFor = null;
    return { digest: opened };
  }

  /**
   * Has the trainer make the first version, and stores it below `prefix`; null to use the model's own folder. `files`
   * are the model's texts.
   */
  async makeBase(
    run: RunHandle,
    prefix: string,
    files: () => Promise<Readonly<Record<string, string>>>,
  ): Promise<({ readonly digest: string } & StoredFiles) | null> {
    const { lora, seed } = await this.#opened(run);
    if (this.#trainer?.makeBase === undefined) return null;
    const version = await putMade(storeOf(run), madeAt(run, prefix), async (folder) => {
      const texts = await files();
      return this.#use((trainer) => trainer.makeBase!(folder, { lora, seed, files: texts }));
    });
    return { digest: version.made.digest, ...version.files };
  }

  /** Whether adapters are all that its trainer has, in the warm-up as well. */
  get hasAdaptersOnly(): boolean {
    return this.#trainer?.makeBase !== undefined;
  }

  /** Ensures that a trainer for this run, of the kind it needs, is open. */
  async #opened(run: RunHandle): Promise<RunSpec> {
    const spec = await this.#closeOther(run);
    this.#trainer ??= await this.#open(run);
    this.#openedFor = openedFor(run, spec);
    return spec;
  }

  /** Closes the trainer if the run was deleted and started again under the same name, or if its settings have changed. */
  async #closeOther(run: RunHandle): Promise<RunSpec> {
    const spec = await specOf(run);
    if (!isDeepStrictEqual(openedFor(run, spec), this.#openedFor)) await this.close();
    return spec;
  }

  /** The version is unknown until `digest()` computes it. */
  async sftStep(input: Parameters<Trainer['sftStep']>[0]): Promise<SftOutcome> {
    this.#digest = null;
    this.#step = null;
    return this.#use((trainer) => trainer.sftStep(input));
  }

  /** Log probabilities of every token of these rows under the trainer's weights, at temperature 1. */
  async logprobs(rows: readonly PackedRow[]): Promise<readonly Float32Array[]> {
    const found = await this.#use(async (trainer) => trainer.logprobs?.(rows, 1));
    if (found) return found;
    throw new RatchetError(
      'Unsupported',
      'This trainer cannot say log probabilities, which [sft] loss = "dpo" is made of.',
    );
  }

  async digest(): Promise<string> {
    this.#digest = await this.#use((trainer) => trainer.digest());
    return this.#digest;
  }

  /** Stores the policy as Hugging Face files below `prefix`. */
  async exportTo(run: RunHandle, prefix: string): Promise<StoredFiles> {
    const base = pathToBase(prefix);
    const { files } = await putMade(storeOf(run), madeAt(run, prefix), (folder) =>
      this.#use((trainer) => trainer.exportTo(folder, { base })),
    );
    return files;
  }

  /** Keeps its version as a pending one, with the optimizer for a checkpoint on request. */
  async keepPending(
    pending: PendingVersions,
    run: RunHandle,
    { version, snapshot, canary }: PendingWish,
  ): Promise<PendingVersion> {
    return pending.add(run, {
      version,
      write: (folder, options) => this.#use((trainer) => trainer.exportTo(folder, options)),
      optimizer: snapshot ? (folder) => this.#use((trainer) => trainer.saveOptimizer(folder)) : null,
      canary: async () => canary && this.#canary(run, canary, version.digest),
    });
  }

  async fingerprint(): Promise<string | null> {
    return (await this.#trainer?.fingerprint?.()) ?? null;
  }

  /** Names what its trainer waits for elsewhere at the moment, for heartbeats; null = nothing. */
  waitsFor(): string | null {
    return this.#trainer?.waitsFor?.() ?? null;
  }

  /** No run has this process now. */
  rest(): void {
    this.#trainer?.rest?.();
  }

  /** Discards the optimizer's moments. The result of the warm-up becomes v0. */
  async resetOptimizer(): Promise<void> {
    await this.#use((trainer) => trainer.restoreOptimizer(null));
    this.#step = 0;
  }

  /** Stores the optimizer's state below `prefix`; the bytes of one under `name`. */
  saveOptimizer(run: RunHandle, prefix: string, name: string): Promise<ObjectRef> {
    return putOptimizer(storeOf(run), { ...madeAt(run, prefix), name }, (folder) =>
      this.#use((trainer) => trainer.saveOptimizer(folder)),
    );
  }

  async close(): Promise<void> {
    const trainer = this.#trainer;
    this.#forget();
    await trainer?.close();
  }

  /**
   * `lineage` is the one that sealed the checkpoint: this run's, or one that it continues. Each kind of trainer has digests and moments of its own: what
   * another kind sealed is the same weights as a version of their own.
   */
  async #restore(run: RunHandle, lineage: string, step: number): Promise<FirstDifference | null> {
    const store = storeOf(run);
    const manifest = await readManifest({ ...run, lineage }, step);
    await verifyVersion(store, manifest.policy, { anew: new Map() }); // throws when a byte of it changed
    const isOfOtherTrainer = await this.#isOfOtherTrainer(run, lineage, step);
    const optimizer = isOfOtherTrainer ? null : manifest.optimizer && (await openOptimizer(store, manifest.optimizer));
    const { digest } = await this.startFrom(run, await weightsFolder(store, manifest.policy.weights), {
      optimizer,
      isWarmUp: false,
    });
    if (digest !== manifest.policy.digest && !isOfOtherTrainer) {
      throw new RatchetError(
        'CheckpointDamaged',
        `${manifest.policy.weights} holds other weights than checkpoint ${step} names.`,
      );
    }
    this.#step = step;
    return digest === manifest.policy.digest ? null : { step, isSameEngine: false, isOfOtherTrainer };
  }

  async #isOfOtherTrainer(run: RunHandle, lineage: string, step: number): Promise<boolean> {
    const place = { ...run, lineage };
    const { spec } = await specOfCommit(place, (await requireCommit(place, step)).commit);
    return spec.trainer.kind !== (await specOf(run)).trainer.kind;
  }

  #isOf(run: RunHandle): boolean {
    return this.#trainer !== null && this.#owner === ownerOf(run);
  }

  /** Compares the step too: a step that changes no weights has the same digest as the one before, but other moments. */
  #isAt(run: RunHandle, { step, digest }: VersionName): boolean {
    return this.#isOf(run) && this.#step === step && this.#digest === digest;
  }

  /**
   * Candidates, nearest first. The held version precedes a checkpoint of the same step, which would have to be loaded.
   */
  async #startsFor(run: RunHandle, version: PolicyVersion): Promise<Start[]> {
    const held = this.#isOf(run) && this.#step !== null ? [{ step: this.#step, lineage: null }] : [];
    const starts: Start[] = [...held, ...(await sealedFor(run)).reverse()];
    return starts.filter(({ step }) => step <= version.step).sort((a, b) => b.step - a.step);
  }

  /** Whether the held version is the committed one of that step, and the store has every batch after it. */
  async #leadsOn(run: RunHandle, step: number, version: PolicyVersion): Promise<boolean> {
    if (step === version.step) return false; // the held version of that step differs from the wanted one
    const committed = (await readCommit(run, step))?.commit.policy;
    if (!committed || !this.#isAt(run, committed)) return false;
    const steps = await RestorableSteps.of(run, { bytesMax: 0 });
    return steps.leadOn(step, version.step);
  }

  async #replay(
    run: RunHandle,
    { from, restored }: { readonly from: number; readonly restored: FirstDifference | null },
    version: PolicyVersion,
    mayGoOn: MayGoOn,
  ): Promise<Difference | null> {
    let first = restored;
    for (let step = from + 1; step <= version.step; step++) {
      await mayGoOn();
      const { commit } = await requireCommit(run, step);
      const outcome = await this.train(run, await readJson<StepPlan>(run, commit.plan!), { isReplay: true });
      this.#step = step; // set even if the batch is refused now, although it was not before
      const engine = await this.fingerprint();
      const expected = step === version.step ? version.digest : commit.policy.digest;
      if (outcome.digest !== expected) first ??= { step, isSameEngine: engine !== null && engine === commit.engine };
    }
    if (first === null || this.#digest === version.digest) return null;
    const difference = { ...first, digest: this.#digest! };
    this.#standsFor = { version, difference };
    return difference;
  }

  async #changed(run: RunHandle, version: PolicyVersion): Promise<Pick<Recovery, 'engines'>> {
    const [before, now] = [(await readCommit(run, version.step))?.commit.engine, await this.fingerprint()];
    return before !== undefined && now !== null && before !== now ? { engines: { before, now } } : {};
  }

  /** Scores all rows, in windows of so many tokens; null if the trainer cannot. All results stay in memory. */
  async #score(batch: RowSource<PackedRow>, temperature: number): Promise<Float32Array[] | null> {
    const scored: Float32Array[] = [];
    for (const places of windowsOf(batch.rows, rowsAtOnceTokensMax)) {
      const samples = await batch.read(places);
      const found = await this.#use(async (trainer) => trainer.logprobs?.(samples, temperature));
      if (!found) return null;
      scored.push(...found);
    }
    return scored;
  }

  /** Includes the teacher's values if the plan has them. */
  async #batchOf(run: RunHandle, plan: Pick<StepPlan, 'packed' | 'taught'>): Promise<StoredBatch> {
    const of = `${ownerOf(run)}#${plan.packed.sha256}`;
    if (this.#batch?.of !== of || plan.taught) this.#batch = { of, batch: await openBatch(run, plan) };
    return this.#batch.batch;
  }

  /** The trainer's scores of a few tokens of the first row. Uses two rows: an engine never computes one alone. */
  async #canary(run: RunHandle, packed: ObjectRef, digest: string): Promise<Canary | null> {
    const batch = await this.#batchOf(run, { packed });
    const rows = await batch.read([...batch.rows.keys()].slice(0, 2));
    const logprobs = await this.#use(async (trainer) => trainer.logprobs?.(rows.map(atPlansTemperature), 1));
    if (!logprobs) return null;
    const { tokenIds, lossMask } = rows[0]!;
    const positions = lossMask.flatMap((mask, i) => (mask > 0 && i > 0 ? [i] : [])).slice(0, canaryTokens);
    if (positions.length === 0) return null;
    return {
      digest,
      tokenIds: tokenIds.slice(0, positions.at(-1)! + 1),
      positions,
      logprobs: positions.map((i) => logprobs[0]![i]!),
    };
  }

  /** A failed trainer is in an unknown state: it is dropped, and the next step restores. */
  async #use<T>(work: (trainer: AnyTrainer) => Promise<T>): Promise<T> {
    if (!this.#trainer) throw new RatchetError('TrainerDetached', 'The trainer holds no policy yet.');
    try {
      return await work(this.#trainer);
    } catch (error) {
      this.#forget();
      throw trainerFailure(error);
    }
  }

  #forget(): void {
    const trainer = this.#trainer;
    this.#trainer = null;
    this.#digest = null;
    this.#step = null;
    this.#standsFor = null;
    this.#owner = null;
    void trainer?.close().catch(() => undefined); // it may be dead already
  }
}

function atPlansTemperature(row: PackedRow): PackedRow {
  const { temperature: _, ...others } = row;
  return others;
}

/** A trainer must be reopened if any of these differs, even with the same weights. */
interface OpenedFor extends Pick<RunSpec, 'trainer' | 'lora' | 'seed'> {
  readonly run: string;
  readonly begunAt: string | undefined;
}

function openedFor({ store, name, begunAt }: RunHandle, { trainer, lora, seed }: RunSpec): OpenedFor {
  return { run: `${store}${name}`, begunAt, trainer, lora, seed };
}

type VersionName = Pick<PolicyVersion, 'step' | 'digest'>;

function isSame(one: VersionName, other: VersionName): boolean {
  return one.step === other.step && one.digest === other.digest;
}

interface PendingWish {
  readonly version: MadeVersion;
  /** Whether to include the optimizer's state. */
  readonly snapshot: boolean;
  /** Packed batch whose first row is the canary; null = none. */
  readonly canary: ObjectRef | null;
}

function ownerOf(run: RunHandle): string {
  return `${run.store}${run.name}/${run.lineage}`;
}

/** Files of a version with their digests. */
type StoredFiles = Pick<VersionFiles, 'file' | 'sums'>;
