import { ActivityFailure, ApplicationFailure, workflowInfo } from '@temporalio/workflow';
import { overridesThatStay } from '../core/rl/live-settings.ts';
import type { AskedOfRun, RewindRequest, RunState } from '../core/rl/run-state.ts';
import type { EvaluationSummary, OpenedRun, TrainRunInput } from '../activities/index.ts';
import { eager, opening } from './options.ts';
import { type RunFigures, figuresFrom } from './control/figures.ts';
import type { PendingEvaluation } from './beside/online-evals.ts';
import type { ControlState } from './control/run-control.ts';
import type { CarriedFlows } from './step/rollout-flow.ts';
import { type CarriedAccount, StepAccount } from './step/step-account.ts';

/** All that continue-as-new carries: what is not here is lost. */
export interface ContinuedRun {
  readonly continued: {
    /** What the run was started with. */
    readonly typed: TypedInput;
    /** Without the spec, which is read from the store again. */
    readonly opened: Omit<OpenedRun, 'head' | 'spec'>;
    readonly state: RunState;
    /** sha256 of the last commit. */
    readonly parent: string;
    readonly control: ControlState;
    readonly account?: CarriedAccount;
    /** The last few, for the summary. */
    readonly evals: readonly EvaluationSummary[];
    /** Those under way, which go on by themselves. */
    readonly evaluating?: readonly PendingEvaluation[];
    /** Where to go on from in a new lineage, instead of from `state`. */
    readonly rewind?: RewindRequest;
    /** Why that could not be done after all: retention was at work meanwhile. The run goes on where it was. */
    readonly rewindRefused?: string;
    /** The GPU worker that held the run last: it may hold the newest version still. */
    readonly trainer?: string | null;
    /** Who plays the rounds that are in play. */
    readonly flows?: CarriedFlows;
  };
}

type TypedInputOnce = Exclude<TrainRunInput, string>;

/** The part of the input that a user may type, without what is done once. */
type TypedInput = Omit<TypedInputOnce, 'rewind' | 'takesOver'>;

/** Where a run goes on from: a commit's state, and its sha256. */
interface Start {
  readonly state: RunState;
  readonly parent: string;
  /** Whether its lineage takes over here. */
  readonly begins: boolean;
}

export interface OpenedStart {
  readonly typed: TypedInput;
  readonly opened: Omit<OpenedRun, 'head'>;
  /** Null when nothing is committed yet. */
  readonly start: Start | null;
  /** Of the execution before, when this one continues it. */
  readonly carried: ContinuedRun['continued'] | null;
  readonly pausedBecause: AskedOfRun['pausedBecause'];
  readonly isPausedByPerson: boolean;
  readonly overrides: AskedOfRun['overrides'];
  /** Whether an execution by other code had worked on it. */
  readonly isTakenOver: boolean;
  readonly account: StepAccount;
  /** The curves so far; undefined where there are none. */
  readonly figures: RunFigures | undefined;
}

/** Opens the run, or takes up what continue-as-new carried. */
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
    isTakenOver: Boolean(takesOver?.handle),
    account,
    figures: opened.curves && figuresFrom(opened.curves),
  };
  if (!head) return { ...rest, opened, start: null, overrides: asked?.overrides ?? {} };
  const { commit, sha256: parent } = head;
  // What was set holds from the newest commit on; a rewind takes it back with everything else.
  const { isRewound = false } = opened;
  const state = asked && !isRewound ? { ...commit.state, overrides: asked.overrides } : startOver(commit.state);
  const begins = commit.origin !== undefined;
  if (opened.hadEnded === true) account.stoodStill((Date.now() - Date.parse(commit.committedAt)) / 1000);
  else if (!begins) account.startedAgain();
  const start: Start = { state, parent, begins };
  return { ...rest, opened, start, overrides: state.overrides };
}

async function continueFrom(carried: ContinuedRun['continued']): Promise<OpenedStart> {
  const { typed, state, parent, rewind, control } = carried;
  const { handle: run } = carried.opened;
  const opened = { ...carried.opened, spec: await eager.readSpec({ run }) };
  const { pausedBecause, isPausedByPerson } = control;
  const account = new StepAccount(carried.account);
  const rest = { typed, pausedBecause, isPausedByPerson, isTakenOver: false, account, figures: control.figures };
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
  const from = startOver(commit.state);
  return {
    ...rest,
    opened: { ...opened, handle: { ...run, lineage: begun.lineage }, weightsAreGone: !begun.hasWeights },
    start: { state: from, parent: sha256, begins: true },
    carried,
    overrides: from.overrides,
    account: new StepAccount(), // what was lost on the way there is not the new lineage's
  };
}

/** What the store says against it; anything else is not an answer. */
function refusalOf(error: unknown): string {
  const { cause } = error as Error;
  if (error instanceof ActivityFailure && cause instanceof ApplicationFailure && cause.nonRetryable === true) {
    return cause.message;
  }
  throw error;
}

/** When to stop was a wish for the execution that has ended; everything else stays as it was set. */
function startOver(state: RunState): RunState {
  return { ...state, overrides: overridesThatStay(state.overrides) };
}
