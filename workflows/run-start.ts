import { ActivityFailure, ApplicationFailure, workflowInfo } from '@temporalio/workflow';
import type { RunState } from '../core/rl/run-state.ts';
import type { EvaluationSummary, OpenedRun, TrainRunInput } from '../activities/index.ts';
import { opening } from './activity-options.ts';
import type { DeskState } from './run-desk.ts';
import { type CarriedAccount, StepAccount } from './step-account.ts';

/** All that continue-as-new carries: what is not here is lost. */
export interface ContinuedRun {
  readonly continued: {
    readonly opened: Omit<OpenedRun, 'head'>;
    readonly state: RunState;
    /** sha256 of the last commit. */
    readonly parent: string;
    readonly desk: DeskState;
    readonly account?: CarriedAccount;
    /** The last few, for the summary. */
    readonly evals: readonly EvaluationSummary[];
    /** The committed step to go on from in a new lineage, instead of `state`. */
    readonly rewindTo?: number;
    /** Why that could not be done after all: retention was at work meanwhile. The run goes on where it was. */
    readonly rewindRefused?: string;
    /** The GPU worker that held the run last: it may hold the newest version still. */
    readonly trainer?: string | null;
  };
}

/** Where a run goes on from: a commit's state, and its sha256. */
export interface Start {
  readonly state: RunState;
  readonly parent: string;
  /** Whether its lineage takes over here. */
  readonly begins: boolean;
}

/** Opens the run, or takes up what continue-as-new carried. */
export async function openOrContinue(input: TrainRunInput | ContinuedRun): Promise<{
  opened: Omit<OpenedRun, 'head'>;
  start: Start | null;
  carried: ContinuedRun['continued'] | null;
  account: StepAccount;
}> {
  const { workflowId, runId } = workflowInfo();
  if (typeof input === 'object' && 'continued' in input) {
    const { opened, state, parent, rewindTo } = input.continued;
    const account = new StepAccount(input.continued.account);
    if (rewindTo === undefined) {
      return { opened, start: { state, parent, begins: false }, carried: input.continued, account };
    }
    const { handle: run } = opened;
    const begun = await opening.beginLineage
      .executeWithOptions({ summary: `from step ${rewindTo}` }, [
        { run: { name: run.name, store: run.store }, step: rewindTo, request: `${workflowId}/${runId}` },
      ])
      .catch(refusalOf);
    if (typeof begun === 'string') {
      const carried = { ...input.continued, rewindRefused: begun };
      return { opened, start: { state, parent, begins: false }, carried, account };
    }
    const { commit, sha256 } = begun.head;
    return {
      opened: { ...opened, handle: { ...run, lineage: begun.lineage }, weightsAreGone: !begun.hasWeights },
      start: { state: startOver(commit.state), parent: sha256, begins: true },
      carried: input.continued,
      account: new StepAccount(), // what was lost on the way there is not the new lineage's
    };
  }
  const config = typeof input === 'string' ? input : input.config;
  const opened = await opening.openRun.executeWithOptions({ summary: config }, [input, workflowId, runId]);
  const { head } = opened;
  const account = new StepAccount();
  if (!head) return { opened, start: null, carried: null, account };
  const { commit, sha256: parent } = head;
  const begins = commit.origin !== undefined;
  if (opened.hadEnded === true) account.stoodStill((Date.now() - Date.parse(commit.committedAt)) / 1000);
  else if (!begins) account.startedAgain();
  return {
    opened,
    start: { state: startOver(commit.state), parent, begins },
    carried: null,
    account,
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

/** `stop-after` was a wish for the execution that has ended; everything else stays as it was set. */
function startOver(state: RunState): RunState {
  const { stopAfter: _, ...overrides } = state.overrides;
  return { ...state, overrides };
}
