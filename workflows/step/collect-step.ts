import { roundsBeforeWidening, samplingRoundsMax } from '../../core/limits.ts';
import type { CurriculumState } from '../../core/rl/curriculum.ts';
import { countGroups, isBatch, selectGroups } from '../../core/rl/selection.ts';
import { decodeRanges, encodeRanges, type EndedRanges } from '../../core/rl/ledger.ts';
import { addLost, nothingLost, type LostWork } from '../../core/rl/lost-work.ts';
import type {
  KeptGroups,
  ObjectRef,
  PolicyVersion,
  Prompts,
  RunHandle,
  SamplingRound,
  TaughtBatch,
} from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { FilteredRound, LeaseInput } from '../../activities/index.ts';
import { local, rolloutsFor } from '../options.ts';
import { generateRound } from './generate-round.ts';
import { RoundAccount } from './round-account.ts';
import type { RunControl } from '../control/run-control.ts';
import type { ServingSchedule } from './serving-schedule.ts';

/** What a step's groups were drawn from and what is left over: the run's state moves from `Before` to the result. */
export interface CollectInput {
  readonly run: RunHandle;
  readonly spec: RunSpec;
  readonly datasets: LeaseInput['datasets'];
  readonly step: number;
  readonly curriculum: CurriculumState;
  readonly surplus: readonly KeptGroups[];
  /** The newest version the servers hold, asked again for every round. */
  readonly newestPolicy: () => PolicyVersion;
  /** System prompts in use; undefined while every environment has its own. */
  readonly prompts?: Prompts | undefined;
  /** The servers may be an evaluation's alone for a while. */
  readonly serving: ServingSchedule;
}

export interface CollectedStep {
  readonly packed: ObjectRef;
  /** Where the run has a teacher that scores. */
  readonly taught?: TaughtBatch;
  readonly trained: readonly KeptGroups[];
  readonly surplus: readonly KeptGroups[];
  readonly curriculum: CurriculumState;
  /** Ordinals issued for it, first and last of each round. */
  readonly issued: readonly (readonly [first: number, last: number])[];
  readonly ended: readonly EndedRanges[];
  readonly rows: number;
  readonly figures: Readonly<Record<string, number>>;
  readonly lost: LostWork;
}

/** One sampling round that has been scored, and what the filter made of it. */
interface ScoredRound {
  readonly round: SamplingRound;
  readonly scored: ObjectRef;
  readonly filtered: FilteredRound;
}

/**
 * Samples until there is at least half a batch of groups with a signal, then packs a batch: lease → generate → score →
 * filter, and again if too little was kept. Surplus groups of the step before come first. When too much fails, or round
 * after round keeps too little, the run pauses and says why rather than train on what is left.
 */
export async function collectStep(control: RunControl, input: CollectInput): Promise<CollectedStep> {
  const { run, spec, datasets, step } = input;
  const groupsPerBatch = spec.batchSize / spec.rolloutsPerExample;
  const issued: [number, number][] = [];
  const ended: EndedRanges[] = [];
  const scored: ObjectRef[] = [];
  const solved = { all: 0, none: 0 };
  const spent = { generate_s: 0, score_s: 0, adopted: 0 };
  let { curriculum, surplus } = input;
  let rounds: ScoredRound[] = [];
  const account = new RoundAccount();
  let lost = nothingLost;
  let fruitlessRounds = 0;
  let isWidened = false;

  for (;;) {
    const kept = [...surplus, ...rounds.map(({ filtered }) => filtered.kept).filter(({ ordinals }) => ordinals !== '')];
    const selection = selectGroups({ step, groupsPerBatch, maxOffPolicySteps: spec.maxOffPolicySteps, kept });
    const ready = countGroups(selection.trained);
    if (isBatch({ ready, groupsPerBatch, hasSampled: issued.length > 0, isWidened })) {
      const widened = isWidened ? { widened: true } : {};
      const packed = await local.packBatch({
        run,
        step,
        trained: selection.trained,
        scored,
        curriculum,
        datasets,
        ...widened,
      });
      ended.push(...rounds.map(({ filtered }) => filtered.ended));
      if (selection.stale !== '') ended.push({ stale: selection.stale });
      // What a run recorded before this was asked has a signal.
      control.progress.collected();
      const { hasSignal = true } = packed as Partial<typeof packed>;
      if (!hasSignal) {
        // Not a word of it to train on: its groups are set aside, the rest stands for the next round.
        const ordinals = encodeRanges(selection.trained.flatMap((source) => decodeRanges(source.ordinals)));
        ended.push({ 'filtered:no_signal': ordinals });
        control.tell('warning', step, `step ${step}: no token of ${ready} groups has an advantage; they are set aside`);
        [surplus, rounds] = [selection.surplus, []];
        continue;
      }
      const taught = await askTeacher(control, input, packed);
      return {
        packed: packed.packed,
        ...taught,
        trained: selection.trained,
        surplus: selection.surplus,
        curriculum,
        issued,
        ended,
        rows: packed.rows,
        figures: {
          ...(packed.reward === null ? {} : { reward: packed.reward }),
          ...packed.metrics,
          kept_groups: ready,
          issued_groups: issued.reduce((sum, [first, last]) => sum + last - first + 1, 0),
          solved_all: solved.all,
          solved_none: solved.none,
          rounds: issued.length,
          failed_rollouts: account.failures.failedRollouts,
          policy_failures: account.failures.policyFailures ?? 0,
          rollouts: account.failures.rollouts,
          ...spent,
        },
        lost,
      };
    }
    if (spec.filter.onStarvation === 'widen' && !isWidened && fruitlessRounds >= roundsBeforeWidening) {
      isWidened = true;
      rounds = await Promise.all(
        rounds.map(async (one) => {
          const filtered = await local.filterGroups({ run, round: one.round, scored: one.scored, widened: true });
          return { ...one, filtered };
        }),
      );
      control.tell(
        'warning',
        step,
        `step ${step}: [difficulty_filter] widened after ${fruitlessRounds} sampling rounds`,
      );
      continue;
    }
    if (fruitlessRounds >= samplingRoundsMax) {
      control.pause(
        [
          `no-signal: ${fruitlessRounds} sampling rounds for step ${step} kept ${ready} of the ${groupsPerBatch} groups a batch needs (${solved.all} groups all right, ${solved.none} all wrong).`,
          ...account.describe(),
          solved.all > ready + solved.none
            ? `The policy solves nearly all of these examples, and resuming alone will not help: end the run with its evaluations (npx ratchet stop ${run.name}), or train a new one on harder examples.`
            : 'Choose easier or harder examples, or widen [difficulty_filter]; then resume.',
        ].join(' '),
      );
      await control.untilResumed();
      fruitlessRounds = 0;
    }

    const count = Math.ceil((groupsPerBatch - ready) * spec.oversamplingFactor);
    const prompts = input.prompts ? { prompts: input.prompts } : {};
    const sampled = await input.serving.shared(async () => {
      const policy = input.newestPolicy(); // a broadcast that was waited for has changed it
      const leased = await local.leaseGroups({ run, step, count, curriculum, datasets, policy, ...prompts });
      const { round, groups } = leased;
      if (round === null) return null;
      const label = `step ${step}: ${count} groups × ${spec.rolloutsPerExample} from v${round.policyStep}`;
      control.progress.leased({
        step,
        policyStep: round.policyStep,
        rollouts: count * spec.rolloutsPerExample,
        needed: groupsPerBatch,
        kept: ready,
      });
      const generated = await generateRound(control, { run, spec, round, count, groups, label });
      return { curriculum: leased.curriculum, round, label, generated };
    });
    if (sampled === null) {
      control.pause(noExamplesReason(spec, step));
      await control.untilResumed();
      curriculum = withAllExamples(curriculum);
      continue;
    }
    const { round, label, generated } = sampled;
    curriculum = sampled.curriculum;
    issued.push([round.first, round.last]);
    control.progress.scoring();
    const score = await control.waitFor(
      `score ${label}`,
      rolloutsFor(spec).scoreRollouts.executeWithOptions({ summary: `${label}: rubric` }, [
        { run, round, finished: generated.finished },
      ]),
    );
    const widened = isWidened ? { widened: true } : {};
    const filtered = await local.filterGroups({ run, round, scored: score.scored, curriculum, ...widened });
    curriculum = filtered.curriculum ?? curriculum;

    scored.push(score.scored);
    rounds = [...rounds, { round, scored: score.scored, filtered }];
    control.progress.filtered([...surplus, ...rounds.map(({ filtered }) => filtered.kept)], filtered.ended);
    fruitlessRounds += 1;
    solved.all += filtered.solved.all;
    solved.none += filtered.solved.none;
    spent.generate_s += generated.seconds;
    spent.score_s += score.seconds;
    spent.adopted += generated.adopted;
    lost = [generated.lost, score.lost ?? nothingLost].reduce(addLost, lost);

    account.add(filtered);
    const tooMuch = account.breakerReason(spec.breaker, step);
    if (tooMuch !== null) {
      control.pause(tooMuch);
      await control.untilResumed();
      account.forgetFailures();
    }
  }
}

/** Before the step is planned; nothing where the run has no teacher that scores. */
async function askTeacher(
  control: RunControl,
  { run, spec, step }: Pick<CollectInput, 'run' | 'spec' | 'step'>,
  { packed, rows }: { readonly packed: ObjectRef; readonly rows: number },
): Promise<Pick<CollectedStep, 'taught'>> {
  if (spec.teacher?.role !== 'scores') return {};
  const summary = `step ${step}: ${rows} rows`;
  const taught = await control.waitFor(
    `ask the teacher, ${summary}`,
    rolloutsFor(spec).askTeacher.executeWithOptions({ summary }, [{ run, step, packed }]),
  );
  return { taught };
}

function noExamplesReason({ environments }: RunSpec, step: number): string {
  const names = environments.map(({ name }) => name).join(', ');
  return `no-examples: every example of ${names} lies in a difficulty pool that is never drawn, so there is nothing to sample for step ${step}. Resume to take all of them as normal again, or stop here; easy_fraction and hard_fraction of [buffer] above 0 keep drawing from the pools.`;
}

/** As before anything was judged. */
function withAllExamples({ nextOrdinal, environments }: CurriculumState): CurriculumState {
  return { nextOrdinal, environments };
}
