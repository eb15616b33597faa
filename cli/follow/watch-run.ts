import { setTimeout as delay } from 'node:timers/promises';
import type { WorkflowHandle } from '@temporalio/client';
import { ApplicationFailure } from '@temporalio/common';
import type { ErrorCode } from '../../core/errors.ts';
import { describeEffectiveness } from '../../core/rl/effectiveness.ts';
import { showStoreUri } from '../../store/index.ts';
import { readRunningStack } from '../../workers/stack/project-lock.ts';
import type { Stack } from '../../workers/stack/supervisor.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import type { Audience } from './audience.ts';
import { type Ending, endingOf, type Leaving } from './ending.ts';
import { followRun, isTakenOver, tellRest } from './follow-run.ts';
import type { NdjsonEnd } from '../output/ndjson.ts';
import { resultOf } from '../../workers/temporal/result-of.ts';
import { rootMessage } from '../../workers/temporal/root-message.ts';
import type { StoredRollouts } from '../view/stored-rollouts.ts';

export type RunWorkflow = WorkflowHandle<typeof trainRun>;

interface Watch {
  readonly run: string;
  readonly audience: Audience;
  /** Our own processes; null when they are another command's. */
  readonly stack: Stack | null;
  readonly wasRunning: boolean;
  /** How the live view reaches the run's rollouts. */
  readonly rollouts: (status: RunStatus) => StoredRollouts | null;
  /** Last known facts of a run that no longer answers: its steps and the URI of its folder. */
  readonly known: Pick<RunStatus, 'maxSteps' | 'store'> | null;
  /** Command that continues the run from its position. */
  readonly goOn: string;
  /** The same command without a step to resume at. */
  readonly goOnPlainly: string;
  /** Raised by Ctrl-C. */
  readonly interrupted: AbortController;
  /** Aborted when the processes of another command, to which this one is attached, have ended. */
  readonly gone: AbortSignal;
  /**
   * Restarts the run from its store if the execution has older state than the store. If missing, a message is printed
   * instead.
   */
  readonly startAnew?: () => Promise<RunWorkflow>;
  /** After the summary of a run that has finished. */
  readonly sayNext?: () => Promise<void>;
}

/**
 * Reports on a run until it ends or the user leaves; returns the exit code. After an upgrade, which starts the workflow
 * anew, it follows the new execution.
 */
export async function watchRun(handle: RunWorkflow, options: Watch): Promise<number> {
  const { run, audience, stack, wasRunning: attached, rollouts, interrupted } = options;
  await audience.begin({
    run,
    workflow: handle.workflowId,
    attached,
    leaving: stack === null ? 'detach' : 'stop',
    rollouts,
    onLeave: () => interrupted.abort(),
  });
  try {
    for (let [watched, isFirst] = [handle, true]; ; isFirst = false) {
      const end = await watchExecution(watched, options, isFirst);
      if (typeof end === 'object') {
        audience.end(end);
        return end.exit_code;
      }
      watched =
        end === 'behind' ? await options.startAnew!() : handle.client.getHandle<typeof trainRun>(handle.workflowId);
    }
  } finally {
    audience.leave();
  }
}

type End = Omit<NdjsonEnd, 'type' | 'time' | 'run'>;
const nothingKnown = { step: null, policy: null, weights: null, ledger_sound: null, ettr: null };

/** `isFirst`: this is the execution that the command began, or one that existed before it was typed. */
async function watchExecution(
  handle: RunWorkflow,
  options: Watch,
  isFirst: boolean,
): Promise<End | 'taken over' | 'behind'> {
  const { run, audience, stack, goOn, gone, sayNext } = options;
  const interrupted = options.interrupted.signal;
  const ended = new AbortController();
  const left = AbortSignal.any([interrupted, gone]);
  const isAttached = isFirst && options.wasRunning;
  const following = followRun({ ...audience, handle, isAttached, signal: AbortSignal.any([ended.signal, left]) });
  const over = (outcome: End['outcome'], exitCode: number, message: string): End => {
    audience.leave();
    audience.say(message);
    return { ...nothingKnown, outcome, exit_code: exitCode, message };
  };
  try {
    const result = await resultOf(handle, left);
    ended.abort();
    const status = await tellRest(handle, await following, audience);
    await audience.untilRead(left);
    audience.leave();
    if (status === null) audience.say(describeEffectiveness(result.effectiveness)); // other details are in the log
    summarize(result, status ?? options.known, stack, audience);
    await sayNext?.();
    const { step, policyDigest, weights, ledger, effectiveness } = result;
    return {
      outcome: 'finished',
      exit_code: ledger.isSound ? 0 : 1,
      message: null,
      step,
      policy: policyDigest,
      weights,
      ledger_sound: ledger.isSound,
      ettr: effectiveness.ettr,
    };
  } catch (error) {
    ended.abort();
    const seen = await following;
    switch (await endingOfRun(handle, error, { interrupted, gone })) {
      case 'taken over':
        return 'taken over';
      case 'interrupted':
        return stack
          ? over('stopped', 130, `stopped. The run ${run} is not lost: ${goOn} continues it`)
          : over('detached', 0, `detached. The run ${run} continues; come back with: npx ratchet-rl attach ${run}`);
      case 'gone':
        return over('lost', 1, `the processes this run used have ended; the run is not lost: ${goOn} continues it`);
      case 'unknown':
        return over(
          'lost',
          1,
          `this Temporal server does not know the run ${run} (any more); its files are still there: ${goOn} continues it`,
        );
      case 'cancelled':
        await tellRest(handle, seen, audience);
        await audience.untilRead(left);
        return over('failed', 1, `the run was cancelled; what is committed stays: ${goOn} continues from there`);
      case 'failed':
        await tellRest(handle, seen, audience);
        if (options.startAnew && isFirst && isBehind(error)) {
          audience.say(
            `${rootMessage(error)}\nThis command was typed since: the run ${run} goes on from its newest commit`,
          );
          return 'behind';
        }
        await audience.untilRead(left);
    }
    const end = over('failed', 1, `the run failed: ${rootMessage(error)}`);
    audience.say(sayAfterFailure(options, rootMessage(error)));
    return end;
  }
}

/** Temporal terminates a workflow before it deletes it, so a workflow that is not found may have been deleted. */
async function endingOfRun(handle: RunWorkflow, error: unknown, leaving: Leaving): Promise<Ending | 'taken over'> {
  const ending = endingOf(error, leaving);
  if (ending !== 'failed') return ending;
  try {
    return (await isTakenOver(handle, error)) ? 'taken over' : ending;
  } catch (askedAfter) {
    return endingOf(askedAfter, leaving);
  }
}

/** Whether the workflow failed because its state was older than its store. */
function isBehind(error: unknown): boolean {
  for (let one = error; one instanceof Error; one = one.cause)
    if (one instanceof ApplicationFailure && one.type === ('CommitConflict' satisfies ErrorCode)) return true;
  return false;
}

/** Next command after a failure. A step from which the run could not continue is not suggested again. */
function sayAfterFailure({ run, goOn, goOnPlainly }: Watch, why: string): string {
  if (!why.startsWith(`Rewind of ${run}:`)) {
    return `After fixing this, run: ${goOn}   (it continues from the last committed step, if there is one)`;
  }
  return `nothing was changed. From another step: ${goOnPlainly} --resume.step N   (npx ratchet-rl checkpoints ${run} lists them); from its newest step: ${goOnPlainly}`;
}

/** How often one looks whether another command's processes are still there. */
const stackPollMs = 1_000;

/** Watches the processes of another command; none when they are ours or elsewhere. */
export function watchStack(projectFolder: string, pid: number | null): { gone: AbortSignal; stop: () => void } {
  const gone = new AbortController();
  const stopping = new AbortController();
  if (pid !== null) void look(pid);
  return { gone: gone.signal, stop: () => stopping.abort() };

  async function look(expected: number): Promise<void> {
    while (!stopping.signal.aborted) {
      const running = await readRunningStack(projectFolder).catch(() => null); // The stack's folder was deleted.
      if (running?.pid !== expected) return gone.abort();
      await delay(stackPollMs, undefined, { signal: stopping.signal }).catch(() => undefined); // stopped: the loop ends
    }
  }
}

/** Ctrl-C, SIGTERM, and a reader of our lines that went away. */
export function whenLeft(): { readonly interrupted: AbortController; readonly stop: () => void } {
  const interrupted = new AbortController();
  const onSignal = (): void => interrupted.abort();
  const onError = (error: NodeJS.ErrnoException): void => {
    if (error.code !== 'EPIPE' && error.code !== 'EIO') throw error;
    interrupted.abort();
  };
  process.on('SIGINT', onSignal).on('SIGTERM', onSignal);
  process.stdout.on('error', onError);
  return {
    interrupted,
    // `onError` stays: after a broken pipe, stdout must not throw.
    stop: () => void process.off('SIGINT', onSignal).off('SIGTERM', onSignal),
  };
}

function summarize(
  { step, policyDigest, weights, ledger }: RunSummary,
  known: Watch['known'],
  stack: Stack | null,
  audience: Audience,
): void {
  const restarts = Object.values(stack?.restarts() ?? {}).reduce((sum, count) => sum + count, 0);
  const counts = Object.entries(ledger.counts).map(([state, count]) => `${count} ${state}`);
  if (ledger.pending > 0) counts.push(`${ledger.pending} pending`);
  const parts = [
    known?.maxSteps === 0
      ? 'done: supervised training'
      : `done: step ${step}${known === null ? '' : ` of ${known.maxSteps}`}`,
    ...(stack ? [`${restarts} processes restarted`] : []),
    `ledger ${ledger.issued} groups issued${counts.length === 0 ? '' : ` = ${counts.join(' + ')}`} ${ledger.isSound ? '✓' : '✗ NOT SOUND'}`,
  ];
  audience.say(parts.join(' · '));
  audience.say(
    `policy  ${known === null ? '' : showStoreUri(known.store)}${weights.replace(/\/$/, '')}   (${policyDigest.slice(0, 12)})`,
  );
}
