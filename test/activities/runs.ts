/** Runs in folders of their own, driven step by step through the real activities with a trainer and a server of a few lines. */
import type { HistoryOfChanges } from '../../activities/record-change.ts';
import assert from 'node:assert/strict';
import type { EvaluationResult } from '../../core/eval/evaluation.ts';
import { onlineEvaluation } from '../../runs/evaluations/online-evaluation.ts';
import {
  createLeaseActivities,
  createOrchestratorActivities,
  createRolloutActivities,
  createTrainActivities,
  createUploadActivities,
  type LeaseInput,
  type PlayedChunk,
  type RecordedEvaluation,
} from '../../activities/index.ts';
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { Context } from '@temporalio/activity';
import type { Client } from '@temporalio/client';
import { MockActivityEnvironment } from '@temporalio/testing';
import { planStep, type StepToPlan } from '../../learn/plan-step.ts';
import { PolicyTrainer, type Recovery } from '../../learn/policy-trainer.ts';
import type { Environments } from '../../backends/environments/index.ts';
import type { TrainerDrain } from '../../activities/around/trainer-drain.ts';
import { present } from '../../core/present.ts';
import { ProcessLease } from '../../activities/around/process-lease.ts';
import { PendingVersions } from '../../learn/pending-versions.ts';
import type { Inference, SampleRequest } from '../../backends/inference/index.ts';
import { resolveStoreUri, type Store } from '../../store/index.ts';
import { putJson } from '../../store/objects.ts';
import type { AnyTrainer, Trainer, SftOutcome, TrainOutcome } from '../../backends/trainer/types.ts';
import { readJson, readRows, storeOf } from '../../runs/run-access.ts';
import type { OpenTokenizer } from '../../play/policy/policy-tokenizer.ts';
import { hash32 } from '../../core/random.ts';
import type { TrainSample } from '../../core/rl/learning/batch.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import type { Rollout, ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { PlayedPart } from '../../core/rl/rollout/played-part.ts';
import type { ObjectRef, RunHandle, RunState, SamplingRound, StepPlan } from '../../core/rl/run-state.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { createPreset, loadModelFolder } from '../../engine/index.ts';

const { tokenizer } = createPreset('preset:reverse-text-0.2m', { seed: 0 });
export const openTokenizer = () => Promise.resolve(tokenizer);

export const configText = `
model = "preset:reverse-text-0.2m"
max_steps = 12
seed = 3
batch_size = 8
rollouts_per_example = 4
max_async_level = 0
[sampling]
max_tokens = 10
[[env]]
id = "reverse-text"
[checkpoints]
interval = 2
keep_last = 2
`;

export function specOf(overrides: Readonly<Record<string, string>> = {}): RunSpec {
  const parsed = parseRunConfig(configText, { file: 'words.toml', overrides });
  if (!parsed.ok)
    throw new Error(parsed.problems.map(({ expected, received }) => `${expected}: ${received}`).join('\n'));
  return parsed.spec;
}

export interface TestRun {
  readonly run: RunHandle;
  readonly spec: RunSpec;
  readonly store: Store;
  /** On this machine. */
  readonly folder: string;
}

export async function makeRun(
  t: TestContext,
  overrides: Readonly<Record<string, string>> = {},
  name = 'words',
): Promise<TestRun> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-run-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return runIn(folder, overrides, name);
}

/** A run, or another one, in a folder that is there. */
export async function runIn(
  folder: string,
  overrides: Readonly<Record<string, string>>,
  name: string,
): Promise<TestRun> {
  const uri = resolveStoreUri('.', folder);
  const spec: RunSpec = { ...specOf(overrides), name, store: { uri } };
  const base = { name, store: uri, lineage: 'main', attempt: 1 };
  const store = storeOf(base);
  const run = { ...base, spec: await putJson(store, 'specs/test.json', spec) };
  return { run, spec, store, folder: path.join(folder, name) };
}

const sha = (...parts: readonly string[]) => createHash('sha256').update(parts.join('\n')).digest('hex');

/**
 * A trainer whose weights are a chain of hashes over everything that may decide a trainer's bits: a batch that is
 * skipped, trained twice or trained with other moments gives other weights.
 */
export class ChainTrainer implements Trainer {
  weights = '';
  moments = 'fresh';
  /** Every step that was trained, in order. */
  readonly trained: string[] = [];
  /** Fails this call number of `trainStep` and `sftStep`, counted from 1. */
  failAt = 0;
  refuse = false;
  /** Failure of the next call, if any. */
  failure: () => Error | null = () => null;
  /** Simulates engines whose bits differ: another salt gives other weights for the same batch. */
  salt = '';
  isClosed = false;

  async open(folder: string): Promise<{ digest: string }> {
    const bytes = await readFile(path.join(folder, 'model.safetensors'));
    const isBase = !bytes.toString().startsWith('chain ');
    this.weights = isBase ? (await loadModelFolder(folder)).parameters.digest() : bytes.toString();
    this.moments = 'fresh';
    return { digest: this.#digest() };
  }

  async trainStep(input: Parameters<Trainer['trainStep']>[0]): Promise<TrainOutcome> {
    const { plan, batch, referenceFolder, tellsTokens = false } = input;
    const reference = await readFile(path.join(referenceFolder, 'model.safetensors'));
    const samples: TrainSample[] = [];
    for await (const sample of batch.samples()) samples.push(sample);
    const outcome = this.#apply(`step ${plan.step}`, [
      JSON.stringify([samples, plan.learningRate, plan.loss, plan.klBeta]),
      sha(reference.toString('hex')),
    ]);
    if (!tellsTokens) return outcome;
    const each = (of: (id: number) => number) => samples.map(({ tokenIds }) => Float32Array.from(tokenIds, of));
    // The sampler's −id / 10 (see WordsInference), a quarter more.
    return { ...outcome, scores: { logprobs: each((id) => -id / 8), entropies: each((id) => id / 4) } };
  }

  digest(): Promise<string> {
    return Promise.resolve(this.#digest());
  }

  sftStep(input: Parameters<Trainer['sftStep']>[0]): Promise<SftOutcome> {
    return Promise.resolve(this.#apply('sft', [JSON.stringify(input)]));
  }

  async exportTo(folder: string): Promise<void> {
    await writeFile(path.join(folder, 'config.json'), '{}');
    await writeFile(path.join(folder, 'model.safetensors'), this.weights);
  }

  saveOptimizer(): Promise<Uint8Array> {
    return Promise.resolve(Buffer.from(this.moments));
  }

  restoreOptimizer(state: Uint8Array | null): Promise<void> {
    this.moments = state === null ? 'fresh' : Buffer.from(state).toString();
    return Promise.resolve();
  }

  close(): Promise<void> {
    this.isClosed = true;
    return Promise.resolve();
  }

  #apply(what: string, parts: readonly string[]): TrainOutcome {
    this.trained.push(what);
    if (this.trained.length === this.failAt) throw new Error('the trainer died');
    const failure = this.failure();
    if (failure) throw failure;
    if (this.refuse) return { applied: false, reason: 'loss is NaN', digest: this.#digest(), metrics: {} };
    this.weights = `chain ${sha(this.weights, this.moments, this.salt, ...parts)}`;
    this.moments = sha(this.moments, ...parts);
    return { applied: true, digest: this.#digest(), metrics: { loss: 0.5, kl_divergence: 0.01 } };
  }

  #digest(): string {
    return this.weights.startsWith('chain ') ? sha(this.weights) : this.weights;
  }
}

/** Answers with some of the word's letters, as many right as the seed says. */
export class WordsInference implements Inference {
  readonly asked: SampleRequest[] = [];
  readonly brought: string[] = [];
  /** Fails this call, counted from 1. */
  failAt = 0;
  failure: Error = new Error('reset');
  beforeAnswer: (call: number) => Promise<void> = () => Promise.resolve();

  async sample(request: SampleRequest) {
    this.asked.push(request);
    const call = this.asked.length;
    await this.beforeAnswer(call);
    if (call === this.failAt) throw this.failure;
    const tokenIds = tokenizer.encode('abcdefgh'.slice(0, 2 + (hash32(request.seed) % 5)));
    return { tokenIds, logprobs: tokenIds.map((id) => -id / 10), finishReason: 'stop' as const };
  }

  bringTo({ name }: Parameters<Inference['bringTo']>[0]): Promise<void> {
    this.brought.push(name);
    return Promise.resolve();
  }
}

const nothingInHistories: HistoryOfChanges = {
  update: () => Promise.resolve(null),
  around: () => Promise.resolve([]),
  cancelled: () => Promise.resolve(null),
};

/** All roles of one life of the processes. `trainers` holds every trainer that was opened. */
export function openRoles(
  inference: Inference = new WordsInference(),
  {
    environments,
    salt = '',
    failure,
    stages = false,
    makeTrainer = () => new ChainTrainer(),
    engine,
    projectFolder = tmpdir(),
    tokenizer = openTokenizer,
    slowPlayS = Infinity,
    workers = 1,
    drain,
    history = nothingInHistories,
  }: {
    readonly environments?: Environments;
    readonly salt?: string;
    /** Failure for every trainer that is opened. */
    readonly failure?: ChainTrainer['failure'];
    /** New versions wait in the run's own folder. */
    readonly stages?: boolean;
    readonly makeTrainer?: () => ChainTrainer;
    /** In place of a chain of hashes: a trainer that trains. */
    readonly engine?: () => AnyTrainer;
    readonly projectFolder?: string;
    readonly tokenizer?: OpenTokenizer;
    /** A chunk is one part, however slow the machine is, unless a test is about parts. */
    readonly slowPlayS?: number;
    /** Rollout workers that poll. */
    readonly workers?: number;
    /** How the GPU worker comes to its end. */
    readonly drain?: TrainerDrain;
    readonly history?: HistoryOfChanges;
  } = {},
) {
  const trainers: ChainTrainer[] = [];
  const policyTrainer = new PolicyTrainer(() => {
    if (engine) return Promise.resolve(engine());
    const trainer = makeTrainer();
    trainer.salt = salt;
    if (failure) trainer.failure = failure;
    trainers.push(trainer);
    return Promise.resolve(trainer);
  });
  const pendingFolder = mkdtempSync(path.join(folders, 'process-'));
  const lease = new ProcessLease(`holder-${++holders}`);
  const training = {
    trainer: policyTrainer,
    pending: new PendingVersions(pendingFolder, { isElsewhere: !stages }),
    lease,
    ...present({ drain }),
  };
  const { warmUp, trainBatch, remakeVersion, restoreVersion } = createTrainActivities({
    ...training,
    tokenizer,
  });
  const { publishVersion } = createUploadActivities(training);
  const generating = {
    inference: () => inference,
    tokenizer,
    slowPlayS,
    ...(environments ? { environments } : {}),
  };
  const orchestrator = createOrchestratorActivities({
    ...generating,
    codeVersion: 'test',
    projectFolder,
    whatSearchAttributesLack: () => Promise.resolve('no search attributes'),
    isWorkflowRunning: () => Promise.resolve(false),
    findTrainers: () => Promise.resolve({ trainers: [], lastSeen: null }),
    countRolloutWorkers: () => Promise.resolve(workers),
    shareInPool: () => undefined,
    otherVersions: () => Promise.resolve([]),
    history,
  });
  const activities = {
    ...orchestrator,
    readSpec: alone(orchestrator.readSpec),
    leaseGroups: alone(orchestrator.leaseGroups),
    /** Without workflows that generate rounds of an earlier execution. */
    reopenRounds: (input: Omit<Parameters<typeof orchestrator.reopenRounds>[0], 'flows'>) =>
      new MockActivityEnvironment({}, { client: withoutWorkflows }).run(orchestrator.reopenRounds, {
        ...input,
        flows: [],
      }) as ReturnType<typeof orchestrator.reopenRounds>,
    filterGroups: alone(orchestrator.filterGroups),
    packBatch: alone(orchestrator.packBatch),
    planStep,
    commitStep: alone(orchestrator.commitStep),
    nextTrainerEpoch: alone(orchestrator.nextTrainerEpoch),
    findUnpublished: alone(orchestrator.findUnpublished),
    ...createRolloutActivities(generating),
    ...createLeaseActivities(training, () => Promise.resolve()),
    warmUp: atFirstEpoch(warmUp),
    trainBatch: atFirstEpoch(trainBatch),
    trainStep: trainPlanned(atFirstEpoch(trainBatch)),
    remakeVersion: atFirstEpoch(remakeVersion),
    restoreVersion: atFirstEpoch(restoreVersion),
    publishVersion: atFirstEpoch(publishVersion),
  };
  /** Asserts that there are examples left to draw, as in most runs. */
  const leaseGroups = async (input: LeaseInput) => {
    const leased = await activities.leaseGroups(input);
    assert(leased.round, 'there are examples to lease');
    return { ...leased, round: leased.round };
  };
  return {
    ...activities,
    leaseGroups,
    leaseOrNone: activities.leaseGroups,
    policyTrainer,
    trainers,
    lease,
    pendingFolder,
  };
}

let holders = 0;
const folders = mkdtempSync(path.join(tmpdir(), 'ratchet-folders-'));
process.once('exit', () => rmSync(folders, { recursive: true, force: true }));

/** Most tests hold a run once. */
function atFirstEpoch<Input extends { readonly epoch: number }, Output>(activity: (input: Input) => Promise<Output>) {
  return (input: Omit<Input, 'epoch'> & { readonly epoch?: number }): Promise<Output> =>
    activity({ epoch: 1, ...input } as Input);
}

/** Trains a plan that is stored: asked for again, it stands. */
function trainPlanned<Output>(
  train: (input: StepToPlan & { readonly epoch?: number }) => Promise<Output>,
): (input: { readonly run: RunHandle; readonly plan: ObjectRef; readonly epoch?: number }) => Promise<Output> {
  return async ({ run, plan: ref, ...lease }) => {
    const { step, attempt, from, packed, reference, klBeta } = await readJson<StepPlan>(run, ref);
    return train({ run, step, attempt, from, packed, reference, klBeta, overrides: {}, ...lease });
  };
}
export type Roles = ReturnType<typeof openRoles>;

/** Runs an activity as a worker would. */
export function act<Input, Output>(activity: (input: Input) => Promise<Output>, input: Input): Promise<Output> {
  return new MockActivityEnvironment().run(activity, input);
}

const withoutWorkflows = {
  workflow: { list: () => [] },
  withAbortSignal: <T>(_: AbortSignal, work: () => T): T => work(),
} as unknown as Client;

/** In a context of its own, as a worker would call it, unless a test has given it one. */
function alone<Input, Output>(activity: (input: Input) => Promise<Output>): (input: Input) => Promise<Output> {
  return (input) => (isInActivity() ? activity(input) : act(activity, input));
}

function isInActivity(): boolean {
  try {
    return Context.current() !== undefined;
  } catch {
    return false;
  }
}

export interface Committed {
  readonly state: RunState;
  readonly parent: string;
}

/** Makes and commits v0, as the workflow does. */
export async function commitFirst({ run, spec }: TestRun, roles: Roles): Promise<Committed> {
  let warm = await act(roles.warmUp, { run, from: null });
  while (warm.step < (spec.sft?.steps ?? 0)) warm = await act(roles.warmUp, { run, from: warm });
  const state: RunState = {
    schemaVersion: 1,
    lineage: run.lineage,
    step: 0,
    policy: warm.policy,
    reference: warm.policy,
    klBeta: spec.kl.beta,
    curriculum: initialCurriculum,
    surplus: [],
    overrides: {},
    pendingEvals: [],
  };
  const outcomes = { step: 0, issued: '', ended: {}, pending: '' };
  const commit = { run, parent: null, plan: null, optimizer: null, outcomes, metrics: {}, state };
  const { sha256 } = await roles.commitStep(commit);
  await act(roles.saveCheckpoint, { run, step: 0, pinned: [] });
  return { state, parent: sha256 };
}

/** A committed version on the first environment of `[eval]`, as the workflow does it. */
export async function evaluateVersion(
  roles: Roles,
  { run, spec }: Pick<TestRun, 'run' | 'spec'>,
  step: number,
): Promise<RecordedEvaluation> {
  const environment = spec.eval!.environments[0]!.name;
  const { policy } = await act(roles.findEvaluation, { run, step, environment });
  const [entry] = spec.eval!.environments;
  const evaluate = async (variant: 'sampled' | 'greedy'): Promise<EvaluationResult> => {
    const { input } = onlineEvaluation({ run, spec, policy }, entry!, variant, null);
    const handle = await act(roles.openEvaluation, { input, request: `${variant} ${step}` });
    const chunks = Array.from({ length: handle.chunks }, (_, chunk) => act(roles.evaluateChunk, { handle, chunk }));
    const adopted = (await Promise.all(chunks)).reduce((sum, chunk) => sum + chunk.adopted, 0);
    return act(roles.closeEvaluation, { handle, adopted, seconds: 1 });
  };
  const [sampled, greedy] = await Promise.all([evaluate('sampled'), evaluate('greedy')]);
  return act(roles.recordEvaluation, { run, policy, holder: 'a test', sampled, greedy });
}

export const datasets = [{ name: 'reverse-text', weight: 1, datasetLength: 100 }];

export async function sampleRound(
  { run }: TestRun,
  roles: Roles,
  input: Pick<LeaseInput, 'step' | 'policy' | 'curriculum'> & Partial<Pick<LeaseInput, 'datasets'>>,
): Promise<{
  round: SamplingRound;
  parts: readonly PlayedPart[];
  /** The rollouts of the first part. */
  scored: ObjectRef;
  curriculum: RunState['curriculum'];
}> {
  const { round, curriculum } = await roles.leaseGroups({ run, count: 2, datasets, ...input });
  const { parts } = await act(roles.playGroups, { run, round, chunk: { index: 0, count: 1 } });
  return { round, parts, scored: parts[0]!.scored, curriculum };
}

/** One step up to the plan: every group of one round is trained, whatever the filter would say. */
export async function planNext(
  test: TestRun,
  roles: Roles,
  from: Committed,
  more: Partial<Pick<LeaseInput, 'datasets'>> = {},
) {
  const { run } = test;
  const { state } = from;
  const step = state.step + 1;
  const { round, parts, curriculum } = await sampleRound(test, roles, {
    step,
    policy: state.policy,
    curriculum: state.curriculum,
    ...more,
  });
  const ordinals = `${round.first}-${round.last}`;
  // On a slow machine a chunk reports its groups one by one.
  const trained = parts.map((part) => ({
    scored: part.scored,
    policyStep: round.policyStep,
    ordinals: part.ordinals,
  }));
  const before = state.baselines && { baselines: state.baselines };
  const { packed, baselines } = await roles.packBatch({
    run,
    step,
    trained,
    scored: trained.map(({ scored }) => scored),
    ...before,
  });
  const { reference, klBeta, overrides, policy } = state;
  const planned = await roles.planStep({ run, step, attempt: 1, from: policy, reference, klBeta, overrides, packed });
  return { ...planned, packed, curriculum, step, ordinals, ...(baselines && { baselines }) };
}

/** One whole step, committed, and sealed where the plan says so. */
export async function advance(
  test: TestRun,
  roles: Roles,
  from: Committed,
  { pinned = [], ...more }: { readonly pinned?: readonly number[]; readonly datasets?: LeaseInput['datasets'] } = {},
): Promise<Committed> {
  const { run, spec } = test;
  const { plan, curriculum, step, ordinals, baselines } = await planNext(test, roles, from, more);
  const trained = await act(roles.trainStep, { run, plan });
  if (!trained.policy) throw new Error(`refused: ${trained.reason}`);
  const renews = spec.kl.refSyncSteps !== null && step % spec.kl.refSyncSteps === 0;
  const state: RunState = {
    ...from.state,
    step,
    policy: trained.policy,
    reference: renews ? trained.policy : from.state.reference,
    curriculum,
    ...(baselines && { baselines }),
  };
  const outcomes = { step, issued: ordinals, ended: { trained: ordinals }, pending: '' };
  const { sha256, isPublished } = await roles.commitStep({
    run,
    parent: from.parent,
    plan,
    optimizer: trained.optimizer,
    engine: trained.engine,
    pendingAt: trained.pendingAt,
    outcomes,
    metrics: {},
    state,
  });
  const { policy, optimizer, snapshot } = trained;
  if (!isPublished) await act(roles.publishVersion, { run, policy, optimizer });
  if (snapshot) await act(roles.saveCheckpoint, { run, step, pinned: [state.reference.step, ...pinned] });
  return { state, parent: sha256 };
}

/** How a trainer came to a version, of a recovery that gave the very same weights. */
export function placeOf(recovery: Recovery | null): Pick<Recovery, 'restoredFrom' | 'replayedSteps' | 'damaged'> {
  const { restoredFrom, replayedSteps, damaged, differs } = recovery!;
  assert.equal(differs, null);
  return { restoredFrom, replayedSteps, damaged };
}

/** Flips one bit in the middle of a file. */
export async function damage({ folder }: TestRun, key: string): Promise<void> {
  const file = path.join(folder, key);
  const bytes = await readFile(file);
  bytes[bytes.length >> 1]! ^= 1;
  await writeFile(file, bytes);
}

/** The scored rollouts of a chunk's groups, by group and index. */
export async function scoredRollouts(
  run: RunHandle,
  { parts }: Pick<PlayedChunk, 'parts'>,
): Promise<(ScoredGroup['rollouts'][number] & Rollout)[]> {
  const groups = await Promise.all(parts.map(({ scored }) => readRows<ScoredGroup>(run, scored)));
  const rollouts = groups.flat().flatMap((group) => group.rollouts);
  return rollouts.toSorted((a, b) => a.group - b.group || a.index - b.index);
}
