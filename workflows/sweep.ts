import {
  ApplicationFailure,
  CancellationScope,
  condition,
  continueAsNew,
  defineQuery,
  executeChild,
  isCancellation,
  log,
  patched,
  ParentClosePolicy,
  setCurrentDetails,
  setHandler,
  sleep,
} from '@temporalio/workflow';
import { TerminatedFailure, WorkflowExecutionAlreadyStartedError } from '@temporalio/common';
import { evaluationLookAgainMs } from '../core/limits.ts';
import { decideRung } from '../core/sweep/halving.ts';
import type { Changed } from '../core/rl/changes.ts';
import type { SweepInput, SweepResult, SweepStatus } from '../core/sweep/sweep.ts';
import { type CarriedSweep, type StandingRun, SweepState } from '../core/sweep/sweep-state.ts';
import { recordingItsCancel, recordStart } from './beside/recorded.ts';
import { rootCause } from './beside/root-cause.ts';
import { AskedChanges } from './control/asked-changes.ts';
import { pauseUpdate, resumeUpdate } from './control/messages.ts';
import { refusal } from './control/refusal.ts';
import { describeSweep } from './control/sweep-lines.ts';
import { isHistoryLong } from './history-length.ts';
import { readSweepInput } from './inputs.ts';
import { evaluationParts, opening } from './options.ts';
import { trainRun } from './train-run.ts';

const sweepStatusQuery = defineQuery<SweepStatus>('status');

/**
 * A table of settings as runs: trains all of them to a rung, drops what is behind there, and trains the others to the
 * next one. A run is a `trainRun` of its own, which stops at its rung and continues from its commit for the next: no
 * step is made twice. What is in the store decides, so a sweep that is begun again comes the same way.
 */
export async function sweep(...given: [SweepInput | CarriedSweep]): Promise<SweepResult> {
  const read = readSweepInput(given);
  const input = 'continued' in read ? read.continued.input : read;
  const of: Changed = { kind: 'sweep', name: input.name, store: input.store };
  // An execution of an earlier version waited to be resumed although no run was left to begin.
  const waitsForNothing = !patched('sweep-ends-while-paused');
  const state = new SweepState(input, 'continued' in read ? read.continued.state : null);
  const changes = listen(state, of);
  return recordingItsCancel(of, async () => {
    if (!('continued' in read)) await recordStart(of);
    return toItsEnd(input, state, { changes, waitsForNothing });
  });
}

interface UnderWay {
  readonly changes: AskedChanges;
  readonly waitsForNothing: boolean;
}

async function toItsEnd(
  input: SweepInput,
  state: SweepState,
  { changes, waitsForNothing }: UnderWay,
): Promise<SweepResult> {
  for (;;) {
    tell(state);
    await trainToRung(input, state, waitsForNothing);
    if (state.waiting.length > 0) {
      await condition(() => changes.areDone);
      return continueAsNew<typeof sweep>({ continued: { input, state: state.carry() } });
    }
    const eta = state.isLastRung ? null : (input.halving?.eta ?? null);
    const decision = decideRung(state.results(), input.metric.goal, eta);
    if (decision.survivors.length === 0) throw nothingMeasured(state);
    if (state.decide(decision)) break;
  }
  tell(state);
  await condition(() => changes.areDone);
  return state.result();
}

/**
 * Trains what waits, some at once. Returns with runs that wait when the history is long. A pause holds runs back, not the
 * decision of a rung that all have reached.
 */
async function trainToRung(input: SweepInput, state: SweepState, waitsForNothing: boolean): Promise<void> {
  const mayGoOn = (): boolean => state.pausedBecause === null || (!waitsForNothing && state.waiting.length === 0);
  const lane = async (): Promise<void> => {
    for (;;) {
      await condition(mayGoOn);
      const run = isHistoryLong() ? undefined : state.waiting[0];
      if (run === undefined) return;
      state.begin(run);
      tell(state);
      await trainOne(input, state, run);
      tell(state);
    }
  };
  // All lanes end before a failure is thrown or the rung is decided.
  const lanes = await Promise.allSettled(Array.from({ length: input.atOnce }, lane));
  for (const ended of lanes) if (ended.status === 'rejected') throw ended.reason;
}

/** Trains a run to the rung under way, and reads its metric there. */
async function trainOne(input: SweepInput, state: SweepState, run: StandingRun): Promise<void> {
  const step = state.rungStep;
  const measure = (made: number | null) =>
    evaluationParts.measureSweepRun.executeWithOptions({ summary: `${run.name} at step ${step}` }, [
      {
        run: { name: run.name, store: input.store },
        metric: input.metric,
        step,
        ...(made === null ? {} : { made }),
      },
    ]);
  for (;;) {
    // A sweep that is begun again finds what it had.
    // A run that was at a rung is there, however far a person may have taken it back since.
    const before = await measure(run.step > 0 ? 0 : null);
    if (before.step !== null && before.step >= step && before.value !== null) {
      return state.measured(run, { ...before, step: before.step });
    }
    const ended = await trainChild(input, run, step);
    if (ended.is === 'failed') return state.failed(run, ended.why);
    if (ended.is === 'elsewhere') {
      // Somebody else trains it, or an upgrade took it over: its commits will be here.
      await sleep(evaluationLookAgainMs);
      if (isHistoryLong()) return state.putBack(run);
      continue;
    }
    const after = await measure(ended.step);
    if (after.step === null || after.step < step) return state.stopped(run, after.step ?? 0);
    return state.measured(run, { ...after, step: after.step });
  }
}

type Ended =
  | { readonly is: 'ended'; /** null: it was stopped at once. */ readonly step: number | null }
  | { readonly is: 'elsewhere' }
  | { readonly is: 'failed'; readonly why: string };

async function trainChild(input: SweepInput, run: StandingRun, stopAfter: number): Promise<Ended> {
  const { config, over, dialect, sent } = input;
  try {
    const { step } = await executeChild(trainRun, {
      workflowId: run.name,
      args: [
        {
          config,
          run: run.name,
          overrides: run.overrides,
          stopAfter,
          ...(over === undefined ? {} : { over }),
          ...(dialect === undefined ? {} : { dialect }),
          ...(sent === undefined ? {} : { sent }),
        },
      ],
      // A sweep that is ended at once leaves its runs at work; a cancelled one cancels them.
      parentClosePolicy: ParentClosePolicy.ABANDON,
      workflowIdReusePolicy: 'ALLOW_DUPLICATE',
      workflowTaskTimeout: '5s',
      staticSummary: `${input.name} · to step ${stopAfter}`,
    });
    return { is: 'ended', step };
  } catch (error) {
    if (CancellationScope.current().consideredCancelled) throw error;
    if (error instanceof WorkflowExecutionAlreadyStartedError) return { is: 'elsewhere' };
    const root = rootCause(error);
    if (root instanceof TerminatedFailure) return { is: 'elsewhere' };
    if (isCancellation(error)) return { is: 'ended', step: null }; // stopped at once by a person: its commits say how far
    return { is: 'failed', why: root.message };
  }
}

function listen(state: SweepState, of: Changed): AskedChanges {
  const changes = new AskedChanges({
    record: (change) => opening.recordChange.executeWithOptions({ summary: change.what }, [{ ...change, of }]),
    emit: (kind, text) => (kind === 'warning' ? log.warn(text) : undefined),
  });
  setHandler(sweepStatusQuery, () => state.status());
  changes.on(pauseUpdate, (given?: string | null) => {
    const before = state.pausedBecause;
    const reason = given ?? 'asked to';
    state.pausedBecause = reason;
    tell(state);
    const goOn = `Continue with: npx ratchet-rl sweep ${state.name} --resume`;
    if (before !== null) return `It was paused already (${before}); the reason is now: ${reason}. ${goOn}`;
    const begins = `running → paused: ${reason}. No further run begins; those that train go on to their rung.`;
    if (state.isLastRung && state.waiting.length === 0) return `${begins} None is left to begin: then the sweep ends.`;
    return `${begins} ${goOn}`;
  });
  changes.on(
    resumeUpdate,
    () => {
      const before = state.pausedBecause;
      state.pausedBecause = null;
      tell(state);
      return `paused (${before}) → running`;
    },
    () => {
      if (state.pausedBecause === null) throw refusal('The sweep is not paused.');
    },
  );
  return changes;
}

function tell(state: SweepState): void {
  setCurrentDetails(describeSweep(state.status()));
}

function nothingMeasured(state: SweepState): ApplicationFailure {
  const { metric, runs } = state.status();
  const why = [...new Set(runs.flatMap(({ name, failure }) => (failure === undefined ? [] : [`${name}: ${failure}`])))];
  return ApplicationFailure.nonRetryable(
    [
      `No run of ${state.name} has ${metric.name} at step ${state.rungStep}, so none can be preferred. npx ratchet-rl metrics ${runs[0]!.name} --names lists what there is. The same command continues, with what is committed.`,
      ...why.slice(0, 3),
    ].join('\n'),
    'SweepUndecided',
  );
}
