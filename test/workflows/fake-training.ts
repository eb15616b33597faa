/** Default activities of a run in tests. */
import { Context } from '@temporalio/activity';
import { ApplicationFailure } from '@temporalio/common';
import { describeTurn, tellStanding } from '../../activities/ask-pool.ts';
import { cancelOtherFlows } from '../../activities/around/other-flows.ts';
import { RatchetError } from '../../core/errors.ts';
import { chunkName, chunksOfRound, groupsOfChunk, type LeasedChunk } from '../../core/rl/sampling/chunks.ts';
import { effectivenessOf } from '../../core/rl/effectiveness.ts';
import type { FilteredGroups } from '../../core/rl/filters/filter-groups.ts';
import { type PlayedPart, restrictPart } from '../../core/rl/rollout/played-part.ts';
import { countsByKind, decodeRanges, encodeRanges } from '../../core/rl/ledger.ts';
import { trainerQueues } from '../../core/names.ts';
import { auditLineages } from '../../core/rl/lineages.ts';
import type { ObjectRef, SamplingRound, StepCommit } from '../../core/rl/run-state.ts';
import { firstCommit } from '../../runs/lineages/lineages.ts';
import { type FakeRun, type Fakes, type Input, refOf, type DefaultFakes, versionAfter } from './fake-run.ts';

/** Two processes, as their queues are named. */
export const gpuWorkers = ['gpu-1', 'gpu-2', 'gpu-3', 'gpu-4'] as const;

/** Pools that have rollout workers, one for each test. */
export const testPools: readonly string[] = Array.from({ length: 16 }, (_, i) => `pool-${i + 1}`);

/** Pools whose rollout workers play so many activities at once, one for each test. */
export const narrowPools: readonly string[] = Array.from({ length: 4 }, (_, i) => `narrow-${i + 1}`);
export const narrowPoolSlots = 2;

/** Signals a run that a GPU worker holds it. */
export type TellLeased = (
  workflowId: string,
  held: { readonly epoch: number; readonly holder: string },
) => Promise<void>;

type Training = Pick<
  DefaultFakes,
  | 'openRun'
  | 'readSpec'
  | 'checkRewind'
  | 'setBudget'
  | 'recordChange'
  | 'nameChange'
  | 'recordStart'
  | 'recordCancel'
  | 'recordScheduleChange'
  | 'keepPoolChanges'
  | 'checkBehind'
  | 'beginLineage'
  | 'leaseGroups'
  | 'reopenRounds'
  | 'playGroups'
  | 'filterGroups'
  | 'packBatch'
  | 'askTeacher'
  | 'drawRows'
  | 'commitStep'
  | 'auditRun'
  | 'broadcastWeights'
  | 'saveCheckpoint'
  | 'nextTrainerEpoch'
  | 'findUnpublished'
  | 'describeTrainers'
  | 'tellStanding'
  | 'describeTurn'
  | 'leaseTrainer'
  | 'giveBackTrainer'
  | 'warmUp'
  | 'trainBatch'
  | 'remakeVersion'
  | 'restoreVersion'
  | 'publishVersion'
>;

const nobody = { time: '2026-12-01T00:00:00.000Z', identity: '', principal: null, workflow: '', execution: '' };

export function fakeTraining(run: FakeRun, tell: TellLeased): Training {
  return { ...opening(run), ...collecting(run), ...training(run, tell), ...after(run) };
}

function opening(
  run: FakeRun,
): Pick<
  Training,
  | 'openRun'
  | 'readSpec'
  | 'checkRewind'
  | 'setBudget'
  | 'recordChange'
  | 'nameChange'
  | 'recordStart'
  | 'recordCancel'
  | 'recordScheduleChange'
  | 'keepPoolChanges'
  | 'checkBehind'
  | 'beginLineage'
> {
  return {
    openRun: () => {
      run.attempts += 1;
      const head = run.head();
      const { spec, handle } = run;
      return {
        handle,
        spec,
        head,
        hadEnded: head !== null && head.commit.step >= spec.maxSteps,
        weightsAreGone: false,
        datasets: spec.environments.map(({ name, weight }) => ({ name, weight, datasetLength: 100 })),
        warnings: [],
        hasSearchAttributes: false,
      };
    },
    readSpec: () => run.spec,
    setBudget: () => undefined,
    recordChange: () => 'ann@laptop',
    nameChange: ({ update, ...change }) => ({ ...change, ...nobody, id: update }),
    recordStart: () => undefined,
    recordCancel: () => undefined,
    recordScheduleChange: () => undefined,
    keepPoolChanges: () => [],
    checkRewind: ({ step }) => {
      if (run.commitOf(step) === undefined) throw new RatchetError('Unsupported', `no step ${step}`);
      return { step, checkpoint: step, hasWeights: true };
    },
    checkBehind: () => undefined,
    beginLineage: ({ step }) => {
      const from = run.commitOf(step)!;
      const lineage = `l${run.lineages.size + 1}`;
      const origin = { run: run.name, lineage: from.lineage, step, sha256: refOf('commit', from).sha256 };
      run.origins.set(lineage, origin);
      const committedAt = new Date().toISOString();
      return {
        lineage,
        head: run.add(firstCommit(from, { run: run.name, lineage, origin, committedAt })),
        hasWeights: true,
      };
    },
  };
}

function collecting(
  run: FakeRun,
): Pick<
  Training,
  'leaseGroups' | 'reopenRounds' | 'playGroups' | 'filterGroups' | 'packBatch' | 'askTeacher' | 'drawRows'
> {
  const { spec } = run;
  return {
    leaseGroups: ({ run: { lineage }, step, count, groupsPerChunk = count, curriculum, policy }) => {
      const first = curriculum.nextOrdinal;
      const last = first + count - 1;
      const leases = refOf(`rollouts/step_${step}/groups_${first}-${last}/leases.json`, policy.digest);
      const round = { step, first, last, policyStep: policy.step, leases };
      const { environments } = spec;
      const groups = Array.from({ length: count }, (_, i) => {
        return { ordinal: first + i, environment: environments[i % environments.length]!.name };
      });
      const ofEach: Record<string, number> = {};
      for (const { environment } of groups) ofEach[environment] = (ofEach[environment] ?? 0) + 1;
      const parts = chunksOfRound(count, groupsPerChunk, environments.length > 1 ? ofEach : undefined);
      const chunks = parts.map((chunk): LeasedChunk => {
        const own = groupsOfChunk(groups, chunk).map(({ ordinal }) => ordinal);
        return { ...chunk, groups: own.length, ordinals: encodeRanges(own) };
      });
      run.rounds.set(`${lineage}/${first}`, { ...round, chunks });
      return { round, chunks, curriculum: { ...curriculum, nextOrdinal: last + 1 } };
    },
    reopenRounds: async ({ run: { lineage }, open, curriculum, flows }) => {
      if (flows) await cancelOtherFlows(flows);
      const leased = (ordinal: number) => run.rounds.get(`${lineage}/${ordinal}`);
      const rounds: Awaited<ReturnType<Training['reopenRounds']>>['rounds'][number][] = open.map(
        ({ first, groups }) => {
          const round = leased(first)!;
          const left = groups === undefined ? null : decodeRanges(groups);
          const inPlay = round.chunks.filter(({ ordinals }) =>
            decodeRanges(ordinals).some((one) => left?.includes(one) ?? true),
          );
          const stored = run.parts.get(`${lineage}/${first}`) ?? [];
          const parts = stored.flatMap((part) => (left ? (restrictPart(part, new Set(left)) ?? []) : part));
          return { ...round, isIssued: true, chunks: inPlay, ...(groups === undefined ? {} : { groups }), parts };
        },
      );
      let { nextOrdinal } = curriculum;
      for (let next = leased(nextOrdinal); next; next = leased(nextOrdinal)) {
        rounds.push({ ...next, isIssued: false, parts: run.parts.get(`${lineage}/${next.first}`) ?? [] });
        nextOrdinal = next.last + 1;
      }
      return { rounds, curriculum: { ...curriculum, nextOrdinal } };
    },
    playGroups: ({ round, chunk }) => {
      const { groups, ordinals } = chunk as LeasedChunk;
      const finished = refOf(`${round.leases.key}.${chunkName(chunk)}`, round);
      const scored = refOf(`${finished.key}.scored`, finished);
      const filtered = judged(round, scored, ordinals);
      run.stored.set(scored.key, filtered);
      return {
        finished,
        rollouts: groups * spec.rolloutsPerExample,
        adopted: 0,
        seconds: 0.1,
        parts: [partOf(scored, filtered, { ordinals, rollouts: groups * spec.rolloutsPerExample })],
      };
    },
    filterGroups: ({ scored, curriculum }) => ({
      ...(run.stored.get(scored.key) as FilteredGroups),
      ...(curriculum ? { curriculum } : {}),
    }),
    packBatch: ({ step, trained, scored }) => ({
      packed: run.keep(`batches/step_${step}.${trained.map(({ ordinals }) => ordinals).join(',')}`, {
        trained,
        scored,
      }),
      hasSignal: true,
      rows: 8,
      reward: 0.5,
      metrics: {},
    }),
    drawRows: ({ step, from }) => {
      const next = { row: from.row + 5, sample: 0 };
      const metrics = { 'batch/rows': 5, 'batch/trained_tokens': 20, 'progress/rows': next.row };
      return { packed: { ...refOf(`drawn/step_${step}`, from), count: 5 }, rows: 5, next, metrics };
    },
    askTeacher: ({ packed }) => ({
      logprobs: refOf(`${packed.key}.teacher`),
      teacher: 'the teacher',
      kl: 0.25,
      seconds: 0.1,
    }),
  };
}

/** Groups that were scored together, in a tenth of a second. */
export function partOf(
  scored: ObjectRef,
  filtered: FilteredGroups,
  of: Pick<PlayedPart, 'ordinals' | 'rollouts'>,
): PlayedPart {
  return { scored, filtered, ...of, tokens: of.rollouts, generateS: 0.1, scoreS: 0.1, occupancy: null };
}

function judged(round: SamplingRound, scored: ObjectRef, ordinals: string): FilteredGroups {
  return {
    kept: { scored, policyStep: round.policyStep, ordinals },
    ended: {},
    solved: { all: 0, none: 0, some: decodeRanges(ordinals).length },
  };
}

/** Filters groups as a test decides, both after generation and when they are judged again. */
export function filtering(
  judge: (
    input: Pick<Input<'filterGroups'>, 'round' | 'widened'>,
    call: { readonly nth: number; readonly usual: () => Promise<FilteredGroups> },
  ) => Promise<FilteredGroups> | FilteredGroups,
): Fakes {
  return {
    playGroups: async (input, { nth, usual }) => {
      const played = await usual();
      const parts = await Promise.all(
        played.parts.map(async (part) => {
          const filtered = await judge(input, { nth, usual: () => Promise.resolve(part.filtered) });
          return { ...part, filtered };
        }),
      );
      return { ...played, parts };
    },
    filterGroups: async (input, { nth, usual }) => judge(input, { nth, usual: async () => usual() }),
  };
}

function training(
  run: FakeRun,
  tell: TellLeased,
): Pick<
  Training,
  | 'leaseTrainer'
  | 'giveBackTrainer'
  | 'nextTrainerEpoch'
  | 'describeTrainers'
  | 'tellStanding'
  | 'describeTurn'
  | 'warmUp'
  | 'trainBatch'
  | 'remakeVersion'
  | 'restoreVersion'
  | 'publishVersion'
> {
  const { spec } = run;
  return {
    nextTrainerEpoch: () => run.epoch + 1,
    leaseTrainer: async ({ workflowId, epoch }) => {
      run.epoch = epoch;
      const holder = spec.queue
        ? gpuWorkers.find((name) => trainerQueues(name).hold === Context.current().info.taskQueue)!
        : gpuWorkers[run.isSlow ? 0 : epoch % gpuWorkers.length]!;
      const lost = new Promise<void>((_, reject) => {
        run.loseTrainer = () => reject(ApplicationFailure.create({ message: 'the GPU worker is gone' }));
      });
      lost.catch(() => undefined);
      const givenBack = new Promise<void>((resolve) => (run.giveBackTrainer = resolve));
      await tell(workflowId, { epoch, holder });
      await Promise.race([lost, givenBack, Context.current().cancelled]);
    },
    giveBackTrainer: ({ epoch }) => {
      if (epoch === run.epoch) run.giveBackTrainer();
    },
    describeTrainers: () => 'a GPU worker: none known',
    // As they are: the pool is a workflow like others.
    tellStanding,
    describeTurn,
    warmUp: ({ from }) => {
      const total = spec.sft?.steps ?? 0;
      const step = from === null && total > 0 ? 0 : Math.min((from?.step ?? 0) + 50, total);
      return { step, policy: versionAfter(0, 'main', step), optimizer: null, loss: step === 0 ? null : 1 };
    },
    trainBatch: ({ run: { lineage }, step, attempt, from, packed, overrides, reference, klBeta, halvedTo, seals }) => {
      const { maxSteps, checkpoints, learningRate: given } = spec;
      const learningRate = overrides.learningRate ?? given;
      const snapshot =
        step % checkpoints.interval === 0 ||
        step === (overrides.maxSteps ?? maxSteps) ||
        step === overrides.stopAfter ||
        seals === true;
      const made = [from.digest, packed.sha256, learningRate, reference.digest, klBeta, halvedTo ?? null];
      const policy = versionAfter(step, lineage, ...made);
      return {
        plan: refOf(`batches/step_${step}.${attempt}.${packed.sha256.slice(0, 8)}.${from.replay ?? 0}.plan.json`, made),
        learningRate,
        snapshot,
        policy,
        replay: null,
        optimizer: snapshot ? refOf(`${policy.weights}optimizer`) : null,
        pendingAt: null,
        engine: 'fake',
        metrics: { loss: 1, kl_divergence: 0.01 },
        recovery: null,
        seconds: 0.1,
      };
    },
    remakeVersion: () => ({ replay: null, recovery: null }),
    restoreVersion: () => null,
    publishVersion: () => true,
  };
}

function after(
  run: FakeRun,
): Pick<Training, 'commitStep' | 'auditRun' | 'broadcastWeights' | 'saveCheckpoint' | 'findUnpublished'> {
  return {
    commitStep: (input) => {
      const { lineage } = input.run;
      const { step, policy } = input.state;
      const there = run.lineages.get(lineage)!.find(({ commit }) => commit.step === step);
      if (there === undefined) return { sha256: run.add(committed(input)).sha256, adopted: false, isPublished: false };
      const isSame = there.commit.parent === input.parent && there.commit.policy.digest === policy.digest;
      if (isSame) return { sha256: there.sha256, adopted: true, isPublished: false };
      throw new RatchetError('CommitConflict', `step ${step} was committed by someone else`);
    },
    auditRun: ({ run: { lineage } }) => {
      const audit = auditLineages(
        [...run.lineages.keys()].map((name) => ({
          lineage: name,
          origin: run.origins.get(name) ?? null,
          first: run.commits(name)[0]?.step ?? 0,
          commits: run.commits(name).map(({ outcomes }) => outcomes),
        })),
      );
      const own = audit.lineages.find((one) => one.lineage === lineage)!;
      return {
        issued: own.issued,
        pending: own.pending,
        counts: countsByKind(own.counts),
        isSound: audit.isSound,
        brokenLinks: brokenLinks(run),
        holes: [...own.holes],
        duplicates: [...own.duplicates],
        effectiveness: effectivenessOf(run.commits(lineage)),
      };
    },
    broadcastWeights: ({ policy }) => {
      run.served.push(policy);
      return { canaryDifference: null };
    },
    saveCheckpoint: ({ step }) => {
      run.sealed.push(step);
      return { kept: [...run.sealed] };
    },
    findUnpublished: () => [],
  };
}

function committed({ run, parent, plan, optimizer, outcomes, metrics, state }: Input<'commitStep'>): StepCommit {
  return {
    schemaVersion: 1,
    codeVersion: 'fake',
    run: run.name,
    lineage: run.lineage,
    step: state.step,
    parent,
    spec: run.spec,
    plan,
    policy: state.policy,
    optimizer,
    outcomes,
    metrics,
    state,
    committedAt: new Date().toISOString(),
  };
}

/** Commits that do not continue the one before them. */
function brokenLinks(run: FakeRun): number[] {
  return [...run.lineages.values()].flatMap((commits) =>
    commits.flatMap(({ commit }, i) => (i > 0 && commit.parent !== commits[i - 1]!.sha256 ? [commit.step] : [])),
  );
}

/** Which groups a batch was packed of. */
export function groupsIn(run: FakeRun, packed: ObjectRef): string {
  const { trained } = run.stored.get(packed.key) as { trained: readonly { ordinals: string }[] };
  return encodeRanges(trained.flatMap(({ ordinals }) => decodeRanges(ordinals)));
}
