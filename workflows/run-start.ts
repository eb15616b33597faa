import { ActivityFailure, ApplicationFailure, workflowInfo } from '@temporalio/workflow';
import { overridesThatStay } from '../core/rl/live-settings.ts';
import type { AskedOfRun, Overrides, RewindRequest, RunState } from '../core/rl/run-state.ts';
import type { EvaluationSummary, OpenedRun, TakenOver, TrainRunInput } from '../activities/index.ts';
import { eager, opening } from './options.ts';
import { type RunFigures, figuresFrom } from './control/figures.ts';
import type { PendingEvaluation } from './beside/online-evals.ts';
import type { CarriedTurn } from './step/pool-turn.ts';
import type { ControlState } from './control/run-control.ts';
import type { CarriedFlows } from './step/rollout-flow.ts';
import { type CarriedAccount, StepAccount } from './step/step-account.ts';

/** State for continue-as-new: anything missing here is lost. */
export interface ContinuedRun {
  readonly continued: {
    /** Input that the run was started with. */
    readonly typed: TypedInput;
    /** Without the spec, which is read from the store again. */
    readonly opened: Omit<OpenedRun, 'head' | 'spec'>;
    readonly state: RunState;
    /** sha256 of the last commit. */
    readonly parent: string;
    readonly control: ControlState;
    readonly account?: CarriedAccount;
    /** The last few evaluations, for the summary. */
    readonly evals: readonly EvaluationSummary[];
    /** Evaluations under way, which continue by themselves. */
    readonly evaluating?: readonly PendingEvaluation[];
    /** Step to continue from in a new lineage, instead of from `state`. */
    readonly rewind?: RewindRequest;
    /**
     * Why the rewind was impossible after all: retention removed its step meanwhile. The run continues where it was.
     */
    readonly rewindRefused?: string;
    /** The GPU worker that held the run last: it may hold the newest version still. */
    readonly trainer?: string | null;
    /** Its turn with a trainer of its pool; absent for a run of no pool. */
    readonly turn?: CarriedTurn;
    /** Workflows that generate the rounds in flight. */
    readonly flows?: CarriedFlows;
    /** Seconds that chunks of rollouts take; null: none has ended. */
    readonly playS: number | null;
  };
}

type TypedInputOnce = Exclude<TrainRunInput, string>;

/** The part of the input that a user may type, without requests that are done once. */
type TypedInput = Omit<TypedInputOnce, 'rewind' | 'takesOver'>;

/** Starting point of a run: a commit's state, and its sha256. */
interface Start {
  readonly state: RunState;
  readonly parent: string;
  /** Whether its lineage begins here. */
  readonly begins: boolean;
}

export interface OpenedStart {
  readonly typed: TypedInput;
  readonly opened: Omit<OpenedRun, 'head'>;
  /** null before the first commit. */
  readonly start: Start | null;
  /** Carried over from the previous execution, when this one continues it. */
  readonly carried: ContinuedRun['continued'] | null;
  readonly pausedBecause: AskedOfRun['pausedBecause'];
  readonly isPausedByPerson: boolean;
  readonly overrides: AskedOfRun['overrides'];
  /** Why another execution had worked on it: its code was another, or could not replay its history. */
  readonly takenOverAs: 'upgraded' | 'broken' | null;
  readonly account: StepAccount;
  /** Curves so far; undefined without any. */
  readonly figures: RunFigures | undefined;
}

/** Opens the run, or resumes from continue-as-new. */
export async function openOrContinue(input: TypedInputOnce | ContinuedRun): Promise<OpenedStart> {
  if ('continued' in input) return continueFrom(input.continued);
  const { workflowId, runId } = workflowInfo();
  const { takesOver = null, rewind: _, ...typed } = input;
  const opened = await opening.openRun.executeWithOptions({ summary: typed.config }, [input, workflowId, runId]);
  const { head } = opened;
  const asked = takesOver?.asked ?? null;
  const account = new StepAccount();
  const rest = {
    typed,
    carried: null,
    pausedBecause: asked?.pausedBecause ?? null,
    isPausedByPerson: asked?.isPausedByPerson ?? false,
    takenOverAs: takenOverAs(takesOver),
    account,
    figures: opened.curves && figuresFrom(opened.curves),
  };
  const stop = stopOf(typed);
  // What was asked of the execution that this one takes over is newer than its input.
  if (!head) return { ...rest, opened, start: null, overrides: asked?.overrides ?? stop };
  const { commit, sha256: parent } = head;
  // Overrides hold from the newest commit on; a rewind takes them back with everything else but the input's own stop.
  const { isRewound = false } = opened;
  const state = asked && !isRewound ? { ...commit.state, overrides: asked.overrides } : startOver(commit.state, stop);
  const begins = commit.origin !== undefined;
  if (opened.hadEnded === true) account.stoodStill((Date.now() - Date.parse(commit.committedAt)) / 1000);
  else if (!begins) account.startedAgain();
  const start: Start = { state, parent, begins };
  return { ...rest, opened, start, overrides: state.overrides };
}

function takenOverAs(takesOver: TakenOver | null): OpenedStart['takenOverAs'] {
  if (!takesOver?.handle) return null;
  return takesOver.isBroken === true ? 'broken' : 'upgraded';
}

async function continueFrom(carried: ContinuedRun['continued']): Promise<OpenedStart> {
  const { typed, state, parent, rewind, control } = carried;
  const { handle: run } = carried.opened;
  const opened = { ...carried.opened, spec: await eager.readSpec({ run }) };
  const { pausedBecause, isPausedByPerson } = control;
  const account = new StepAccount(carried.account);
  const rest = { typed, pausedBecause, isPausedByPerson, takenOverAs: null, account, figures: control.figures };
  const start = { state, parent, begins: false };
  if (!rewind) return { ...rest, opened, start, carried, overrides: state.overrides };
  const begun = await opening.beginLineage
    .executeWithOptions({ summary: `from step ${rewind.step}` }, [
      { run: { name: run.name, store: run.store }, ...rewind },
    ])
    .catch(refusalOf);
  if (typeof begun === 'string') {
    return { ...rest, opened, start, carried: { ...carried, rewindRefused: begun }, overrides: state.overrides };
  }
  const { commit, sha256 } = begun.head;
  const from = startOver(commit.state, stopOf(typed));
  return {
    ...rest,
    opened: { ...opened, handle: { ...run, lineage: begun.lineage }, weightsAreGone: !begun.hasWeights },
    start: { state: from, parent: sha256, begins: true },
    carried,
    overrides: from.overrides,
    account: new StepAccount(), // losses on the way there do not belong to the new lineage
  };
}

/** Message of a refusal by the store; any other error is rethrown. */
function refusalOf(error: unknown): string {
  const { cause } = error as Error;
  if (error instanceof ActivityFailure && cause instanceof ApplicationFailure && cause.nonRetryable === true) {
    return cause.message;
  }
  throw error;
}

/** A requested stop applied to the execution that has ended; all other overrides stay. */
function startOver(state: RunState, stop: Overrides): RunState {
  return { ...state, overrides: { ...overridesThatStay(state.overrides), ...stop } };
}

/** The stop that the input asks for, which holds for the whole execution. */
function stopOf({ stopAfter }: TypedInput): Overrides {
  return stopAfter === undefined ? {} : { stopAfter };
}
