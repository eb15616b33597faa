import type { LeaseInput, MayLease } from '../../activities/index.ts';
import { roundsBeforeWidening, samplingRoundsMax } from '../../core/limits.ts';
import { present } from '../../core/present.ts';
import type { Baselines } from '../../core/rl/rollout/agents.ts';
import type { CurriculumState } from '../../core/rl/sampling/curriculum.ts';
import {
  type BatchSize,
  batchSizeOf,
  countGroups,
  isBatch,
  selectGroups,
  type Selection,
  youngestOf,
} from '../../core/rl/learning/selection.ts';
import { countEnded, decodeRanges, encodeRanges, type EndedRanges } from '../../core/rl/ledger.ts';
import type { LostWork } from '../../core/rl/lost-work.ts';
import type {
  KeptGroups,
  ObjectRef,
  OpenRound,
  PolicyVersion,
  RowPlace,
  RunHandle,
  TaughtBatch,
} from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { eager, priorityOfRun, rolloutsFor } from '../options.ts';
import type { RunControl } from '../control/run-control.ts';
import type { RoundToLease } from './rounds-in-play.ts';
import type { CollectedGroups, SamplingWindow, ToFill, WindowContext } from './sampling-window.ts';

export interface CollectedStep {
  readonly packed: ObjectRef;
  /** The teacher's log probabilities, for a run with a teacher that scores. */
  readonly taught?: TaughtBatch;
  readonly trained: readonly KeptGroups[];
  readonly surplus: readonly KeptGroups[];
  /** Rounds in flight when its groups were taken; absent without any. */
  readonly open?: readonly OpenRound[];
  /** Ordinals in flight in those rounds; absent without any. */
  readonly inPlay?: string;
  readonly curriculum: CurriculumState;
  /** Same as in {@link RunState}. */
  readonly baselines?: Baselines;
  /** Same as in {@link RunState}. */
  readonly staleBudget?: number;
  /** Position in the rows of `[data]` after the batch; absent for rollouts. */
  readonly rowsNext?: RowPlace;
  /** Ordinals issued for it, first and last of each round. */
  readonly issued: readonly (readonly [first: number, last: number])[];
  readonly ended: readonly EndedRanges[];
  readonly rows: number;
  readonly figures: Readonly<Record<string, number>>;
  readonly lost: LostWork;
}

/** Candidates for the batch. */
interface Ready {
  readonly selection: Selection;
  /** Groups with a signal, and those that wait for the next batch with them. */
  readonly groups: number;
  readonly waiting: number;
  /** Kept groups that the selection was made from. */
  readonly kept: readonly KeptGroups[];
}

/**
 * Collects groups with a signal until there is a batch of them, then packs it, beginning with leftovers. By rounds, one
 * round after another is leased until there is a batch, as `batch_fill` says; else the window is kept full until there
 * is a whole one. When too much fails, or round after round keeps too little, the run pauses with a reason rather than
 * train on the rest.
 */
export async function collectStep(
  context: WindowContext,
  window: SamplingWindow,
  asked: Asked,
): Promise<CollectedStep> {
  const collection = new Collection(context, window, asked);
  window.collects(asked.step);
  for (;;) {
    await collection.pauseIfBroken();
    const ready = collection.ready();
    if (collection.isBatch(ready)) {
      const collected = await collection.pack(ready);
      if (collected !== null) return collected;
    } else if (collection.isToBeWidened) {
      await collection.widen(ready);
    } else {
      await collection.pauseIfStarved(ready);
      await collection.sampleOn(ready);
    }
  }
}

/** The round with which sampling begins for a step that nothing is collected for yet; null: none may begin. */
export function firstRound(
  context: WindowContext,
  window: SamplingWindow,
  asked: Asked,
  policyStep: number,
): RoundToLease | null {
  return new Collection(context, window, asked).firstRound(policyStep);
}

export interface Asked {
  readonly step: number;
  readonly steps: () => StepsAhead;
  /** Packs the batch; the same activity may lease for the next step. */
  readonly packWith: <T extends MayLease>(pack: (lease?: LeaseInput) => Promise<T>) => Promise<T>;
}

/**
 * Steps that may be sampled for now, including this one and possibly a fraction, and steps left until the end of the
 * run.
 */
export interface StepsAhead {
  readonly left: number;
  readonly toEnd: number;
  /** Greatest age in versions of trained groups, under `max_off_policy_steps` and `max_mismatch_kl`. */
  readonly within: number;
}

/** The groups of one step while they are collected. */
class Collection {
  readonly #context: WindowContext;
  readonly #window: SamplingWindow;
  readonly #asked: Asked;
  #ready: Ready | null = null;

  constructor(context: WindowContext, window: SamplingWindow, asked: Asked) {
    this.#context = context;
    this.#window = window;
    this.#asked = asked;
  }

  ready(): Ready {
    const { spec } = this.#context;
    const { maxOffPolicySteps } = spec;
    const { step } = this.#asked;
    this.#window.giveUpStale(step);
    const kept = this.#window.ready;
    if (this.#ready?.kept === kept) return this.#ready;
    const selection = selectGroups({ step, size: this.#size(), maxOffPolicySteps, kept });
    const groups = countGroups(selection.trained);
    this.#ready = { kept, selection, groups, waiting: groups + countGroups(selection.surplus) };
    return this.#ready;
  }

  /**
   * Whether the batch can be taken. By rounds that is decided when nothing is in flight; else when it is whole, or when
   * much sampling gave little.
   */
  isBatch({ selection }: Ready): boolean {
    const { share } = selection;
    const { isInPlay, byRounds, isWidened, collected } = this.#window;
    const { batchFill } = this.#context.spec;
    const { hasRounds: hasSampled, roundsWithoutBatch } = collected;
    const isLong = roundsWithoutBatch >= roundsBeforeWidening;
    const isOnce = batchFill === 'once' && roundsWithoutBatch >= 1;
    const isHalf = batchFill === 'half' && roundsWithoutBatch >= 1;
    // A round for a batch counted in tokens or rollouts may have had too few groups, whatever was kept of them.
    const fill = batchFill === 'once' && this.#size().total !== null && !isOnce ? 'full' : batchFill;
    const isEnough = share === 1 || isLong || isOnce || isHalf;
    const isDecided = byRounds ? !isInPlay : isEnough && this.#awaited(selection) === 0;
    return isDecided && isBatch({ share, hasSampled, isWidened, fill, isLong });
  }

  /** Number of groups in flight that a batch of these waits for. */
  #awaited(selection: Selection): number {
    return this.#window.awaited(this.#asked.step, selection);
  }

  /**
   * Packs the batch; null when no token of it is to be trained on: its groups are dropped, the rest stays for the next
   * round.
   */
  async pack({ selection, groups }: Ready): Promise<CollectedStep | null> {
    const { run, spec, control, datasets } = this.#context;
    const { step, steps } = this.#asked;
    const { trained, stale, surplus, groupsPerBatch } = selection;
    const { curriculum, open, inPlay, isWidened } = this.#window;
    const collected = this.#window.take(surplus);
    this.#window.fillBeside({ step, groups, groupsPerBatch }, steps());
    collected.settle();
    if (stale !== '') collected.ended.push({ stale });
    const { scored, issued, ended, lost } = collected;
    const packing = this.#asked.packWith((lease) =>
      eager.packBatch({
        run,
        step,
        trained,
        scored,
        curriculum,
        datasets,
        ...(isWidened ? { widened: true } : {}),
        ...present({ baselines: this.#window.baselines, lease }),
      }),
    );
    const packed = await control.waitFor(`pack the batch of step ${step}`, packing);
    control.progress.collected();
    if (!packed.hasSignal) {
      const ordinals = encodeRanges(trained.flatMap((source) => decodeRanges(source.ordinals)));
      collected.ended.push({ 'filtered:no_signal': ordinals });
      this.#tellWarning(`no token of ${groups} groups has an advantage; they are not trained`);
      this.#window.giveBack(collected);
      return null;
    }
    const grownOld = ended.reduce((sum, { stale: ranges = '' }) => sum + decodeRanges(ranges).length, 0);
    this.#window.taken({ ended: groups + countEnded(ended), stale: grownOld }, packed.baselines);
    const { utilisation, staleBudget } = this.#window;
    const told = this.#window.noteStale({ stale: grownOld, trained: groups });
    if (told !== null) this.#tellWarning(told);
    const { newestPolicy } = this.#context;
    const taught = await askTeacher(control, { run, spec, step }, { ...packed, trained, policy: newestPolicy() });
    return {
      packed: packed.packed,
      ...taught,
      trained,
      surplus,
      ...(open.length === 0 ? {} : { open, inPlay }),
      curriculum,
      ...(packed.baselines ? { baselines: packed.baselines } : {}),
      ...(staleBudget === null ? {} : { staleBudget }),
      issued,
      ended,
      rows: packed.rows,
      figures: {
        ...(packed.reward === null ? {} : { reward: packed.reward }),
        ...packed.metrics,
        kept_groups: groups,
        ended_groups: groups + countEnded(ended),
        ...collected.figures(),
        ...(utilisation === null ? {} : { window_utilisation: utilisation }),
      },
      lost,
    };
  }

  get isToBeWidened(): boolean {
    const { onStarvation } = this.#context.spec.filter;
    const { isWidened, collected } = this.#window;
    return onStarvation === 'widen' && !isWidened && collected.roundsWithoutBatch >= roundsBeforeWidening;
  }

  /** Adds the groups of all rounds that the difficulty filter had left out. */
  async widen({ groups, selection: { groupsPerBatch } }: Ready): Promise<void> {
    const { run } = this.#context;
    const { collected } = this.#window;
    const { all, none } = collected.solved;
    this.#window.widen();
    const judging = collected.judge(({ round, scored }) => eager.filterGroups({ run, round, scored, widened: true }));
    await this.#context.control.waitFor(`filter the groups of step ${this.#asked.step} with wider bounds`, judging);
    const rounds = Math.round(collected.roundsWithoutBatch);
    const kept = `they kept ${groups} of the ${groupsPerBatch} groups a batch needs (${all} groups all right, ${none} all wrong)`;
    const isFirst = this.#context.control.explains('widening');
    this.#tellWarning(
      `[difficulty_filter] widened after ${rounds} sampling rounds: ${kept}${isFirst ? `. ${this.#widenedMeans(groups)}` : ''}`,
    );
  }

  #widenedMeans(kept: number): string {
    const { all, none } = this.#window.collected.solved;
    const { name } = this.#context.run;
    const means = 'This step now takes every group whose rewards differ, and an eighth of a batch is enough.';
    if (all > kept + none)
      return `${means} The policy solves nearly all of these examples, so more steps teach little: end the run with its evaluations (npx ratchet-rl stop ${name}), or train on harder examples.`;
    if (none > kept + all)
      return `${means} The policy solves hardly any of these examples: take easier ones, or a reward that tells wrong answers apart.`;
    return `${means} If many steps say this, widen the bounds in [difficulty_filter] or change the examples.`;
  }

  async pauseIfStarved({ groups, selection: { groupsPerBatch } }: Ready): Promise<void> {
    const { collected } = this.#window;
    if (collected.roundsWithoutBatch < samplingRoundsMax) return;
    const { name } = this.#context.run;
    const { step } = this.#asked;
    const { all, none } = collected.solved;
    const reason = [
      `no-signal: ${Math.round(collected.roundsWithoutBatch)} sampling rounds for step ${step} kept ${groups} of the ${groupsPerBatch} groups a batch needs (${all} groups all right, ${none} all wrong).`,
      ...collected.account.describe(),
      all > groups + none
        ? `The policy solves nearly all of these examples, and resuming alone will not help: end the run with its evaluations (npx ratchet-rl stop ${name}), or train a new one on harder examples.`
        : 'Choose easier or harder examples, or widen [difficulty_filter]; then resume.',
    ];
    await this.#pause(reason.join(' '));
    collected.forgetRounds();
  }

  firstRound(policyStep: number): RoundToLease | null {
    if (this.#window.isInPlay) return null;
    const ready = this.ready();
    const asked = this.#toFill(ready);
    const isNone = this.isBatch(ready) || this.isToBeWidened || asked.toEnd < 1;
    return isNone ? null : this.#window.firstRound(this.#asked.step, asked, policyStep);
  }

  #toFill(collected: Ready): ToFill & { readonly missing: number } {
    const ready = (): CollectedGroups => {
      const { waiting, selection } = this.ready();
      const { share, groupsPerBatch } = selection;
      const isWhole = share === 1 && this.#awaited(selection) === 0;
      return { waiting, isWhole, youngest: share === 1 ? youngestOf(selection.trained) : 0, groupsPerBatch };
    };
    const missing = Math.ceil(this.#missing(collected) * this.#context.spec.oversamplingFactor);
    const { changes } = this.#window;
    // Groups that ended may widen the filter, or pause the run, before others are leased.
    const isOver = (): boolean => this.#window.changes !== changes;
    return { ...this.#asked.steps(), missing, ready, isOver };
  }

  /** Has more sampled, and waits until there is something new. */
  async sampleOn(collected: Ready): Promise<void> {
    const { spec } = this.#context;
    const { step, steps } = this.#asked;
    const window = this.#window;
    const { changes } = window;
    if (!window.byRounds && steps().toEnd < 1) {
      // The run now ends with an earlier step, unless its end is put off.
      return window.until(`the run ends before step ${step}, unless its end is put off`, () => steps().toEnd > 0);
    }
    const asked = this.#toFill(collected);
    // A commit lets later steps be sampled for, whatever is in play.
    const mayLease = (): boolean => steps().left > asked.left;
    if (await window.fill(step, asked)) {
      if (window.byRounds || !asked.ready().isWhole)
        await window.next({ seen: changes, why: this.#whyItWaits(), mayLease });
      return;
    }
    // Groups in flight may complete the batch, and return examples to the normal pool.
    if (window.isInPlay) return window.next({ seen: changes });
    if (window.changes !== changes) return; // those that ended meanwhile may have returned some
    await this.#pause(noExamplesReason(spec, step));
    window.drawAll();
  }

  /** Appended to the wait's text when a whole batch waits for late groups. */
  #whyItWaits(): string {
    const { selection } = this.ready();
    const awaited = selection.share === 1 ? this.#awaited(selection) : 0;
    return awaited === 0
      ? ''
      : `; step ${this.#asked.step} waits for ${awaited} of them, or hard examples would be left out`;
  }

  /**
   * A batch of tokens or rollouts needs as many groups as their mean size so far implies; before the first, as many as
   * the file says.
   */
  #size(): BatchSize {
    const size = batchSizeOf(this.#context.spec);
    const { sizePerGroup } = this.#window.collected;
    if (size.total === null || sizePerGroup === null) return size;
    return { ...size, groups: Math.ceil(size.total / sizePerGroup) };
  }

  /** Groups that a batch lacks; for a batch counted in tokens or rollouts, the groups that those take. */
  #missing({ groups, selection: { groupsPerBatch } }: Ready): number {
    if (this.#context.spec.batchFill !== 'once' || this.#size().total === null) return groupsPerBatch - groups;
    return this.#size().groups * (1 - (this.#window.collected.roundsWithoutBatch % 1));
  }

  /** Pauses the run when too many rollouts failed. */
  async pauseIfBroken(): Promise<void> {
    this.#window.throwIfFailed();
    const { account } = this.#window.collected;
    const tooMuch = account.breakerReason(this.#context.spec.breaker, this.#asked.step);
    if (tooMuch === null) return;
    await this.#pause(tooMuch);
    account.forgetFailures();
  }

  async #pause(reason: string): Promise<void> {
    const { control } = this.#context;
    control.pause(reason);
    await control.untilResumed();
  }

  #tellWarning(what: string): void {
    const { step } = this.#asked;
    this.#context.control.emit('warning', step, `step ${step}: ${what}`);
  }
}

interface Packed {
  readonly packed: ObjectRef;
  readonly rows: number;
  readonly trained: readonly KeptGroups[];
  readonly policy: PolicyVersion;
}

/** Asks the teacher before the step is planned; undefined for a run without a teacher that scores. */
async function askTeacher(
  control: RunControl,
  { run, spec, step }: { readonly run: RunHandle; readonly spec: RunSpec; readonly step: number },
  { packed, rows, trained, policy }: Packed,
): Promise<Pick<CollectedStep, 'taught'>> {
  if (spec.teacher?.role !== 'scores') return {};
  const summary = `step ${step}: ${rows} rows`;
  const priority = priorityOfRun(spec, control.overrides, { rollouts: rows });
  const taught = await control.waitFor(
    `ask the teacher, ${summary}`,
    rolloutsFor(spec, priority).askTeacher.executeWithOptions({ summary }, [
      spec.teacher.demonstration ? { run, step, packed, trained, policy } : { run, step, packed },
    ]),
  );
  return { taught };
}

function noExamplesReason({ environments }: RunSpec, step: number): string {
  const names = environments.map(({ name }) => name).join(', ');
  return `no-examples: every example of ${names} is in a difficulty pool that is never drawn, so there is nothing to sample for step ${step}. Resume to take all of them as normal again, or stop here; easy_fraction and hard_fraction of [buffer] above 0 keep drawing from the pools.`;
}
