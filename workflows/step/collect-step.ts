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
import { eager, rolloutsFor } from '../options.ts';
import { type GeneratedRound, generateRound } from './generate-round.ts';
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

/** What was leased and played, and is not scored yet. */
interface PlayedRound {
  readonly round: SamplingRound;
  readonly label: string;
  readonly generated: GeneratedRound;
}

/** What a batch would be made of. */
interface Ready {
  readonly selection: ReturnType<typeof selectGroups>;
  /** Groups with a signal. */
  readonly groups: number;
}

/**
 * Samples until there is at least half a batch of groups with a signal, then packs a batch: lease → generate → score →
 * filter, and again if too little was kept. Surplus groups of the step before come first. When too much fails, or round
 * after round keeps too little, the run pauses and says why rather than train on what is left.
 */
export async function collectStep(control: RunControl, input: CollectInput): Promise<CollectedStep> {
  const collection = new Collection(control, input);
  for (;;) {
    const ready = collection.ready();
    if (collection.isBatch(ready)) {
      const collected = await collection.pack(ready);
      if (collected !== null) return collected;
    } else if (collection.isToBeWidened) {
      await collection.widen();
    } else {
      await collection.pauseIfFruitless(ready);
      const played = await collection.play(ready);
      if (played !== null) await collection.score(played);
    }
  }
}

/** The groups of one step while they are collected. */
class Collection {
  readonly #control: RunControl;
  readonly #input: CollectInput;
  readonly #groupsPerBatch: number;
  readonly #issued: [number, number][] = [];
  readonly #ended: EndedRanges[] = [];
  readonly #scored: ObjectRef[] = [];
  readonly #solved = { all: 0, none: 0 };
  readonly #spent = { generate_s: 0, score_s: 0, adopted: 0 };
  readonly #account = new RoundAccount();
  #curriculum: CurriculumState;
  #surplus: readonly KeptGroups[];
  #rounds: ScoredRound[] = [];
  #lost = nothingLost;
  #fruitlessRounds = 0;
  #isWidened = false;

  constructor(control: RunControl, input: CollectInput) {
    this.#control = control;
    this.#input = input;
    this.#groupsPerBatch = input.spec.batchSize / input.spec.rolloutsPerExample;
    this.#curriculum = input.curriculum;
    this.#surplus = input.surplus;
  }

  ready(): Ready {
    const { step, spec } = this.#input;
    const filtered = this.#rounds.map((round) => round.filtered.kept).filter(({ ordinals }) => ordinals !== '');
    const selection = selectGroups({
      step,
      groupsPerBatch: this.#groupsPerBatch,
      maxOffPolicySteps: spec.maxOffPolicySteps,
      kept: [...this.#surplus, ...filtered],
    });
    return { selection, groups: countGroups(selection.trained) };
  }

  isBatch({ groups }: Ready): boolean {
    return isBatch({
      ready: groups,
      groupsPerBatch: this.#groupsPerBatch,
      hasSampled: this.#issued.length > 0,
      isWidened: this.#isWidened,
    });
  }

  /** The batch; null where not a word of it is to be trained on: its groups are set aside, the rest stands for the next round. */
  async pack({ selection, groups }: Ready): Promise<CollectedStep | null> {
    const { run, spec, step, datasets } = this.#input;
    const { trained, stale, surplus } = selection;
    const curriculum = this.#curriculum;
    const packed = await eager.packBatch({
      run,
      step,
      trained,
      scored: this.#scored,
      curriculum,
      datasets,
      ...this.#widened,
    });
    this.#ended.push(...this.#rounds.map(({ filtered }) => filtered.ended));
    if (stale !== '') this.#ended.push({ stale });
    this.#control.progress.collected();
    // What a run recorded before this was asked has a signal.
    const { hasSignal = true } = packed as Partial<typeof packed>;
    if (!hasSignal) {
      const ordinals = encodeRanges(trained.flatMap((source) => decodeRanges(source.ordinals)));
      this.#ended.push({ 'filtered:no_signal': ordinals });
      this.#tellWarning(`no token of ${groups} groups has an advantage; they are set aside`);
      [this.#surplus, this.#rounds] = [surplus, []];
      return null;
    }
    const taught = await askTeacher(this.#control, { run, spec, step }, packed);
    return {
      packed: packed.packed,
      ...taught,
      trained,
      surplus,
      curriculum,
      issued: this.#issued,
      ended: this.#ended,
      rows: packed.rows,
      figures: {
        ...(packed.reward === null ? {} : { reward: packed.reward }),
        ...packed.metrics,
        kept_groups: groups,
        ...this.#figures(),
      },
      lost: this.#lost,
    };
  }

  get isToBeWidened(): boolean {
    const { onStarvation } = this.#input.spec.filter;
    return onStarvation === 'widen' && !this.#isWidened && this.#fruitlessRounds >= roundsBeforeWidening;
  }

  /** Takes of all rounds what the difficulty filter had left out. */
  async widen(): Promise<void> {
    const { run } = this.#input;
    this.#isWidened = true;
    this.#rounds = await Promise.all(
      this.#rounds.map(async (one) => {
        const filtered = await eager.filterGroups({ run, round: one.round, scored: one.scored, widened: true });
        return { ...one, filtered };
      }),
    );
    this.#tellWarning(`[difficulty_filter] widened after ${this.#fruitlessRounds} sampling rounds`);
  }

  async pauseIfFruitless({ groups }: Ready): Promise<void> {
    if (this.#fruitlessRounds < samplingRoundsMax) return;
    const { run, step } = this.#input;
    const { all, none } = this.#solved;
    const reason = [
      `no-signal: ${this.#fruitlessRounds} sampling rounds for step ${step} kept ${groups} of the ${this.#groupsPerBatch} groups a batch needs (${all} groups all right, ${none} all wrong).`,
      ...this.#account.describe(),
      all > groups + none
        ? `The policy solves nearly all of these examples, and resuming alone will not help: end the run with its evaluations (npx ratchet stop ${run.name}), or train a new one on harder examples.`
        : 'Choose easier or harder examples, or widen [difficulty_filter]; then resume.',
    ];
    await this.#pause(reason.join(' '));
    this.#fruitlessRounds = 0;
  }

  /** Leases what is missing, with some more, and plays it; null where there was no example to draw, and the run had paused. */
  async play({ groups: ready }: Ready): Promise<PlayedRound | null> {
    const { run, spec, step, datasets, serving } = this.#input;
    const count = Math.ceil((this.#groupsPerBatch - ready) * spec.oversamplingFactor);
    const prompts = this.#input.prompts ? { prompts: this.#input.prompts } : {};
    const played = await serving.shared(async () => {
      const policy = this.#input.newestPolicy(); // a broadcast that was waited for has changed it
      const curriculum = this.#curriculum;
      const leased = await eager.leaseGroups({ run, step, count, curriculum, datasets, policy, ...prompts });
      const { round, groups } = leased;
      if (round === null) return null;
      const label = `step ${step}: ${count} groups × ${spec.rolloutsPerExample} from v${round.policyStep}`;
      this.#control.progress.leased({
        step,
        policyStep: round.policyStep,
        rollouts: count * spec.rolloutsPerExample,
        needed: this.#groupsPerBatch,
        kept: ready,
      });
      const generated = await generateRound(this.#control, { run, spec, round, count, groups, label });
      return { curriculum: leased.curriculum, round, label, generated };
    });
    if (played === null) {
      await this.#pause(noExamplesReason(spec, step));
      this.#curriculum = withAllExamples(this.#curriculum);
      return null;
    }
    this.#curriculum = played.curriculum;
    this.#issued.push([played.round.first, played.round.last]);
    return played;
  }

  /** Scores and filters a round, and adds it to what there is; pauses where too much of it failed. */
  async score({ round, label, generated }: PlayedRound): Promise<void> {
    const { run, spec, step } = this.#input;
    this.#control.progress.scoring();
    const score = await this.#control.waitFor(
      `score ${label}`,
      rolloutsFor(spec).scoreRollouts.executeWithOptions({ summary: `${label}: rubric` }, [
        { run, round, finished: generated.finished },
      ]),
    );
    const { scored } = score;
    const filtered = await eager.filterGroups({ run, round, scored, curriculum: this.#curriculum, ...this.#widened });
    this.#curriculum = filtered.curriculum ?? this.#curriculum;
    this.#scored.push(scored);
    this.#rounds = [...this.#rounds, { round, scored, filtered }];
    const kept = this.#rounds.map((one) => one.filtered.kept);
    this.#control.progress.filtered([...this.#surplus, ...kept], filtered.ended);
    this.#fruitlessRounds += 1;
    this.#solved.all += filtered.solved.all;
    this.#solved.none += filtered.solved.none;
    this.#spent.generate_s += generated.seconds;
    this.#spent.score_s += score.seconds;
    this.#spent.adopted += generated.adopted;
    this.#lost = [generated.lost, score.lost ?? nothingLost].reduce(addLost, this.#lost);
    this.#account.add(filtered);
    const tooMuch = this.#account.breakerReason(spec.breaker, step);
    if (tooMuch === null) return;
    await this.#pause(tooMuch);
    this.#account.forgetFailures();
  }

  get #widened(): { readonly widened?: true } {
    return this.#isWidened ? { widened: true } : {};
  }

  #figures(): Record<string, number> {
    const { failedRollouts, policyFailures, rollouts } = this.#account.failures;
    return {
      issued_groups: this.#issued.reduce((sum, [first, last]) => sum + last - first + 1, 0),
      solved_all: this.#solved.all,
      solved_none: this.#solved.none,
      rounds: this.#issued.length,
      failed_rollouts: failedRollouts,
      policy_failures: policyFailures,
      rollouts,
      ...this.#spent,
    };
  }

  async #pause(reason: string): Promise<void> {
    this.#control.pause(reason);
    await this.#control.untilResumed();
  }

  #tellWarning(what: string): void {
    const { step } = this.#input;
    this.#control.tell('warning', step, `step ${step}: ${what}`);
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
