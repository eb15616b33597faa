import { workflowInfo } from '@temporalio/workflow';
import type { RunState } from '../core/rl/run-state.ts';
import type { EvaluationSummary, OpenedRun, TrainRunInput } from '../activities/index.ts';
import { opening } from './activity-options.ts';
import type { DeskState } from './run-desk.ts';

/** All that continue-as-new carries: what is not here is lost. */
export interface ContinuedRun {
  readonly continued: {
    readonly opened: Omit<OpenedRun, 'head'>;
    readonly state: RunState;
    /** sha256 of the last commit. */
    readonly parent: string;
    readonly desk: DeskState;
    /** The last few, for the summary. */
    readonly evals: readonly EvaluationSummary[];
    /** The GPU worker that held the run last: it may hold the newest version still. */
    readonly trainer?: string | null;
  };
}

/** Where a run goes on from: a commit's state, and its sha256. */
export interface Start {
  readonly state: RunState;
  readonly parent: string;
}

/** Opens the run, or takes up what continue-as-new carried. */
export async function openOrContinue(
  input: TrainRunInput | ContinuedRun,
): Promise<{ opened: Omit<OpenedRun, 'head'>; start: Start | null; carried: ContinuedRun['continued'] | null }> {
  if (typeof input === 'object' && 'continued' in input) {
    const { opened, state, parent } = input.continued;
    return { opened, start: { state, parent }, carried: input.continued };
  }
  const config = typeof input === 'string' ? input : input.config;
  const opened = await opening.openRun.executeWithOptions({ summary: config }, [input, workflowInfo().workflowId]);
  const { head } = opened;
  return { opened, start: head && { state: startOver(head.commit.state), parent: head.sha256 }, carried: null };
}

/** `stop-after` was a wish for the execution that has ended; everything else stays as it was set. */
function startOver(state: RunState): RunState {
  const { stopAfter: _, ...overrides } = state.overrides;
  return { ...state, overrides };
}
