import { patched } from '@temporalio/workflow';
import { roundsBeforeWidening, samplingRoundsMax } from '../../core/limits.ts';
import type { Baselines } from '../../core/rl/agents.ts';
import type { CurriculumState } from '../../core/rl/curriculum.ts';
import { type BatchSize, batchSizeOf, countGroups, isBatch, selectGroups } from '../../core/rl/selection.ts';
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
import { eager, rolloutsFor } from '../options.ts';
import type { RunControl } from '../control/run-control.ts';
import type { ReadyGroups, SamplingWindow, WindowContext } from './sampling-window.ts';

export interface CollectedStep {
  readonly packed: ObjectRef;
  /** Where the run has a teacher that scores. */
  readonly taught?: TaughtBatch;
  readonly trained: readonly KeptGroups[];
  readonly surplus: readonly KeptGroups[];
  /** Rounds in play when its groups were taken; absent where there were none. */
  readonly open?: readonly OpenRound[];
  /** Ordinals of what was in play in them; absent likewise. */
  readonly inPlay?: string;
  readonly curriculum: CurriculumState;
  /** As in {@link RunState}. */
  readonly baselines?: Baselines;
  /** Where the rows of `[data]` stand behind it; absent of rollouts. */
  readonly rowsNext?: RowPlace;
  /** Ordinals issued for it, first and last of each round. */
  readonly issued: readonly (readonly [first: number, last: number])[];
  readonly ended: readonly EndedRanges[];
  readonly rows: number;
  readonly figures: Readonly<Record<string, number>>;
  readonly lost: LostWork;
}

/** What a batch would be made of. */
interface Ready {
  readonly selection: ReturnType<typeof selectGroups>;
  /** Groups with a signal, and those that wait for the next batch with them. */
  readonly groups: number;
  readonly waiting: number;
  /** What it is made of. */
  readonly kept: readonly KeptGroups[];
}

/**
 * Collects groups with a signal until there is a batch of them, then packs it. What was sampled and left over before comes first. One round
 * after another is leased until there is a batch, as `batch_fill` has it; where rollouts are sampled continuously the window is kept full until
 * there is a whole one. When too much fails, or round after round keeps too little, the run pauses and says why rather than train on what is left.
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
      await collection.pauseIfFruitless(ready);
      await collection.sampleOn(ready);
    }
  }
}

interface Asked {
  readonly step: number;
  readonly steps: () => StepsAhead;
}

/** This step included: how many may be sampled for by now, fractions among them, and how many there are to the end of the run. */
export interface StepsAhead {
  readonly left: number;
  readonly toEnd: number;
  /** How many versions behind may be trained, as far as `max_off_policy_steps` and `max_mismatch_kl` go. */
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

  /** Sampled round by round, it is decided on when nothing is in play; continuously, when it is whole, or much was sampled for little. */
  isBatch({ selection: { share } }: Ready): boolean {
    const { isInPlay, isContinuous, isWidened, harvest } = this.#window;
    const { batchFill } = this.#context.spec;
    const { hasRounds: hasSampled, fruitlessRounds } = harvest;
    const isLong = fruitlessRounds >= roundsBeforeWidening;
    const isOnce = batchFill === 'once' && fruitlessRounds >= 1;
    const isHalf = batchFill === 'half' && fruitlessRounds >= 1 && isContinuous && patched('half-while-continuous');
    // A round of a batch of so many tokens or rollouts may have had too few groups, whatever was kept of them.
    const fill = batchFill === 'once' && this.#size().total !== null && !isOnce ? 'full' : batchFill;
    const isDecided = isContinuous ? share === 1 || isLong || isOnce || isHalf : !isInPlay;
    return isDecided && isBatch({ share, hasSampled, isWidened, fill, isLong });
  }

  /** The batch; null where not a word of it is to be trained on: its groups are not trained, the rest stands for the next round. */
  async pack({ selection, groups }: Ready): Promise<CollectedStep | null> {
    const { run, spec, control, datasets } = this.#context;
    const { step } = this.#asked;
    const { trained, stale, surplus } = selection;
    const { curriculum, open, inPlay, isWidened } = this.#window;
    const harvest = this.#window.take(surplus);
    harvest.settle();
    if (stale !== '') harvest.ended.push({ stale });
    const { scored, issued, ended, lost } = harvest;
    const packed = await eager.packBatch({
      run,
      step,
      trained,
      scored,
      curriculum,
      datasets,
      ...(isWidened ? { widened: true } : {}),
      ...(this.#window.baselines ? { baselines: this.#window.baselines } : {}),
    });
    control.progress.collected();
    // What a run recorded before this was asked has a signal.
    const { hasSignal = true } = packed as Partial<typeof packed>;
    if (!hasSignal) {
      const ordinals = encodeRanges(trained.flatMap((source) => decodeRanges(source.ordinals)));
      harvest.ended.push({ 'filtered:no_signal': ordinals });
      this.#tellWarning(`no token of ${groups} groups has an advantage; they are not trained`);
      this.#window.giveBack(harvest);
      return null;
    }
    this.#window.taken(packed.baselines);
    const { utilisation } = this.#window;
    const grownOld = ended.reduce((sum, { stale: ranges = '' }) => sum + decodeRanges(ranges).length, 0);
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
      issued,
      ended,
      rows: packed.rows,
      figures: {
        ...(packed.reward === null ? {} : { reward: packed.reward }),
        ...packed.metrics,
        kept_groups: groups,
        ended_groups: groups + countEnded(ended),
        ...harvest.figures(),
        ...(utilisation === null ? {} : { window_utilisation: utilisation }),
      },
      lost,
    };
  }

  get isToBeWidened(): boolean {
    const { onStarvation } = this.#context.spec.filter;
    const { isWidened, harvest } = this.#window;
    return onStarvation === 'widen' && !isWidened && harvest.fruitlessRounds >= roundsBeforeWidening;
  }

  /** Takes of all rounds what the difficulty filter had left out. */
  async widen({ groups, selection: { groupsPerBatch } }: Ready): Promise<void> {
    const { run } = this.#context;
    const { harvest } = this.#window;
    const { all, none } = harvest.solved;
    this.#window.isWidened = true;
    await harvest.judge(({ round, scored }) => eager.filterGroups({ run, round, scored, widened: true }));
    const rounds = Math.round(harvest.fruitlessRounds);
    const kept = `they kept ${groups} of the ${groupsPerBatch} groups a batch needs (${all} groups all right, ${none} all wrong)`;
    const isFirst = !this.#window.hasExplainedWidening;
    this.#window.hasExplainedWidening = true;
    this.#tellWarning(
      `[difficulty_filter] widened after ${rounds} sampling rounds: ${kept}${isFirst ? `. ${this.#widenedMeans(groups)}` : ''}`,
    );
  }

  #widenedMeans(kept: number): string {
    const { all, none } = this.#window.harvest.solved;
    const { name } = this.#context.run;
    const means = 'This step now takes every group whose rewards differ, and an eighth of a batch is enough.';
    if (all > kept + none)
      return `${means} The policy solves nearly all of these examples, so more steps teach little: end the run with its evaluations (npx ratchet-rl stop ${name}), or train on harder examples.`;
    if (none > kept + all)
      return `${means} The policy solves hardly any of these examples: take easier ones, or a reward that tells wrong answers apart.`;
    return `${means} If many steps say this, widen the bounds in [difficulty_filter] or change the examples.`;
  }

  async pauseIfFruitless({ groups, selection: { groupsPerBatch } }: Ready): Promise<void> {
    const { harvest } = this.#window;
    if (harvest.fruitlessRounds < samplingRoundsMax) return;
    const { name } = this.#context.run;
    const { step } = this.#asked;
    const { all, none } = harvest.solved;
    const reason = [
      `no-signal: ${Math.round(harvest.fruitlessRounds)} sampling rounds for step ${step} kept ${groups} of the ${groupsPerBatch} groups a batch needs (${all} groups all right, ${none} all wrong).`,
      ...harvest.account.describe(),
      all > groups + none
        ? `The policy solves nearly all of these examples, and resuming alone will not help: end the run with its evaluations (npx ratchet-rl stop ${name}), or train a new one on harder examples.`
        : 'Choose easier or harder examples, or widen [difficulty_filter]; then resume.',
    ];
    await this.#pause(reason.join(' '));
    harvest.forgetFruitless();
  }

  /** Has more sampled, and waits until there is something new. */
  async sampleOn(collected: Ready): Promise<void> {
    const { spec } = this.#context;
    const { step, steps } = this.#asked;
    const window = this.#window;
    const missing = Math.ceil(this.#missing(collected) * spec.oversamplingFactor);
    const ready = (): ReadyGroups => {
      const { waiting, selection } = this.ready();
      return { waiting, isWhole: selection.share === 1, groupsPerBatch: selection.groupsPerBatch };
    };
    const { changes } = window;
    if (window.isContinuous && steps().toEnd < 1 && patched('ends-before')) {
      // The run ends with an earlier step by now, unless somebody puts its end off.
      return window.until(() => steps().toEnd > 0);
    }
    const hasExamples = window.isContinuous
      ? await window.fill(step, { ...steps(), ready })
      : window.isInPlay || (await window.openRound(step, missing));
    if (hasExamples) {
      if (!window.isContinuous || !ready().isWhole) await window.next();
      return;
    }
    // What is in play may make the batch, and examples normal again.
    if (window.isInPlay && patched('examples-in-play')) return window.next(changes);
    await this.#pause(noExamplesReason(spec, step));
    window.drawAll();
  }

  /** A batch of so many tokens or rollouts is as many groups as those take that were sampled for it; before that, as many as the file says. */
  #size(): BatchSize {
    const size = batchSizeOf(this.#context.spec);
    const { sizePerGroup } = this.#window.harvest;
    if (size.total === null || sizePerGroup === null) return size;
    return { ...size, groups: Math.ceil(size.total / sizePerGroup) };
  }

  /** Groups that a batch lacks; where it is what was kept of so many tokens or rollouts, groups that those lack. */
  #missing({ groups, selection: { groupsPerBatch } }: Ready): number {
    if (this.#context.spec.batchFill !== 'once' || this.#size().total === null) return groupsPerBatch - groups;
    return this.#size().groups * (1 - (this.#window.harvest.fruitlessRounds % 1));
  }

  /** Where too much of what was sampled failed. */
  async pauseIfBroken(): Promise<void> {
    this.#window.throwIfFailed();
    const { account } = this.#window.harvest;
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
    this.#context.control.tell('warning', step, `step ${step}: ${what}`);
  }
}

interface Packed {
  readonly packed: ObjectRef;
  readonly rows: number;
  readonly trained: readonly KeptGroups[];
  readonly policy: PolicyVersion;
}

/** Before the step is planned; nothing where the run has no teacher that scores. */
async function askTeacher(
  control: RunControl,
  { run, spec, step }: { readonly run: RunHandle; readonly spec: RunSpec; readonly step: number },
  { packed, rows, trained, policy }: Packed,
): Promise<Pick<CollectedStep, 'taught'>> {
  if (spec.teacher?.role !== 'scores') return {};
  const summary = `step ${step}: ${rows} rows`;
  const taught = await control.waitFor(
    `ask the teacher, ${summary}`,
    rolloutsFor(spec).askTeacher.executeWithOptions({ summary }, [
      spec.teacher.demonstration ? { run, step, packed, trained, policy } : { run, step, packed },
    ]),
  );
  return { taught };
}

function noExamplesReason({ environments }: RunSpec, step: number): string {
  const names = environments.map(({ name }) => name).join(', ');
  return `no-examples: every example of ${names} is in a difficulty pool that is never drawn, so there is nothing to sample for step ${step}. Resume to take all of them as normal again, or stop here; easy_fraction and hard_fraction of [buffer] above 0 keep drawing from the pools.`;
}
