import { existsSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import {
  type Client,
  isGrpcServiceError,
  ServiceError,
  WorkflowFailedError,
  type WorkflowHandle,
  WorkflowNotFoundError,
} from '@temporalio/client';
import { CancelledFailure } from '@temporalio/common';
import type { ChunkProgress } from '../../activities/evaluation/evaluate-chunk.ts';
import type { EvaluationResult, EvaluationStatus } from '../../core/eval/evaluation.ts';
import type { Evaluated, evaluate } from '../../workflows/evaluate.ts';
import { pendingActivities } from '../pending-activities.ts';
import { onOneLine } from '../plain-text.ts';
import { rootMessage } from '../root-message.ts';
import { namedEvaluations } from './find.ts';
import { readEvaluation } from './read.ts';
import { describe } from './show.ts';
import type { EvaluationProgress, EvaluationTeller } from './teller.ts';

export interface WatchOptions {
  readonly teller: EvaluationTeller;
  /** The processes are this command's: they end with it. */
  readonly hasOwnStack: boolean;
  /** So does what answers: nobody could go on without this command. */
  readonly endsWithUs: boolean;
  readonly interrupted: AbortSignal;
  readonly gone: AbortSignal;
  /** Without an example. */
  readonly abbreviated: boolean;
}

const pollMs = 1_000;
const queryTimeoutMs = 4_000;
/** A line at least so often, when something has happened; and when nothing has, what is waited for. */
const toldEveryMs = 10_000;
/** So much more of an evaluation is worth a line. */
const toldShare = 0.1;

type Handle = WorkflowHandle<typeof evaluate>;

/** Tells of an evaluation until it ends or is left, and what came of it; the exit code. */
export async function watchEvaluation(handle: Handle, options: WatchOptions): Promise<number> {
  const { teller, interrupted, gone } = options;
  const { workflowId: workflow } = handle;
  teller.tell({ type: 'started', time: now(), workflow, attached: !options.hasOwnStack });
  const ended = new AbortController();
  const left = AbortSignal.any([interrupted, gone]);
  const following = follow(handle, teller, AbortSignal.any([ended.signal, left]));
  const end = (
    outcome: 'finished' | 'failed' | 'stopped' | 'detached' | 'lost',
    exitCode: number,
    message: string | null,
  ): number => {
    if (message !== null) teller.say(message);
    teller.tell({ type: 'end', time: now(), outcome, exit_code: exitCode, message });
    return exitCode;
  };
  try {
    const { results } = await resultOf(handle, left);
    ended.abort();
    await following;
    for (const result of results) {
      teller.tell({ type: 'result', time: now(), ...result });
      await sayResult(result, options);
    }
    return end('finished', results.every(({ rollouts, failed }) => failed < rollouts) ? 0 : 1, null);
  } catch (error) {
    ended.abort();
    await following;
    if (interrupted.aborted) return end(...(await leave(handle, options)));
    if (gone.aborted)
      return end('lost', 1, 'the processes this evaluation used have ended; the same command goes on where it is');
    if (error instanceof WorkflowNotFoundError)
      return end(
        'lost',
        1,
        'this Temporal server does not know the evaluation (any more); its results are kept: the same command goes on where it is',
      );
    if (!(error instanceof WorkflowFailedError)) throw error;
    if (error.cause instanceof CancelledFailure)
      return end(
        'stopped',
        1,
        'the evaluation was cancelled; what is finished is kept: the same command goes on from there',
      );
    return end('failed', 1, `the evaluation stopped: ${rootMessage(error)}`);
  }
}

async function leave(handle: Handle, options: WatchOptions): Promise<['stopped' | 'detached', number, string]> {
  if (options.endsWithUs) await handle.cancel().catch(() => undefined); // it is done for anyway, once its server ends
  if (options.endsWithUs || options.hasOwnStack) {
    return ['stopped', 130, 'stopped. What is finished is kept: the same command goes on where it is'];
  }
  return [
    'detached',
    0,
    `detached. The evaluation goes on; the same command comes back to it. To end it: npx ratchet temporal workflow cancel --workflow-id ${handle.workflowId}`,
  ];
}

/** How long a server that did not answer is left alone. */
const serverPauseMs = 1_000;

async function resultOf(handle: Handle, left: AbortSignal): Promise<Evaluated> {
  for (;;) {
    try {
      return await handle.client.withAbortSignal(left, () => handle.result());
    } catch (error) {
      if (left.aborted || !(error instanceof ServiceError || isGrpcServiceError(error))) throw error;
      await delay(serverPauseMs, undefined, { signal: left });
    }
  }
}

async function follow(handle: Handle, teller: EvaluationTeller, signal: AbortSignal): Promise<void> {
  const told = new Map<string, { readonly at: number; readonly done: number; readonly line: string }>();
  while (!signal.aborted) {
    for (const progress of await looksAt(handle)) {
      const before = told.get(progress.workflow);
      const line = describeProgress(progress);
      const isMore = progress.done - (before?.done ?? -1) >= Math.max(1, (progress.of ?? 0) * toldShare);
      const isSilent = Date.now() - (before?.at ?? 0) >= toldEveryMs;
      if (before?.line === line && !isSilent) continue;
      if (!isMore && !isSilent) continue;
      told.set(progress.workflow, { at: Date.now(), done: progress.done, line });
      teller.say(before?.line === line ? `${line}${waits(progress)}` : line);
      teller.tell({ type: 'progress', time: now(), ...progress });
    }
    await delay(pollMs, undefined, { signal }).catch(() => undefined); // ended: the loop ends
  }
}

/** One look at an evaluation, or at each of several; none where nobody answers at the moment. */
async function looksAt(handle: Handle): Promise<EvaluationProgress[]> {
  const status = await ask(handle);
  if (status === null) return [];
  if (status.parts.length === 0) return [await progressOf(handle, status)];
  const { client } = handle;
  const parts = await Promise.all(
    status.waitingOn.map(async (workflowId) => {
      const part = client.getHandle<typeof evaluate>(workflowId);
      const own = await ask(part);
      return own && progressOf(part, own);
    }),
  );
  return parts.filter((part) => part !== null);
}

async function ask(handle: Handle): Promise<EvaluationStatus | null> {
  return handle.client
    .withDeadline(Date.now() + queryTimeoutMs, () => handle.query<EvaluationStatus>('status'))
    .catch(() => null); // an orchestrator that is being restarted, or a part that has not begun
}

async function progressOf(handle: Handle, status: EvaluationStatus): Promise<EvaluationProgress> {
  const pending = (await pendingActivities(handle, queryTimeoutMs)) ?? [];
  const chunks = pending.flatMap(({ said }) => (isChunkProgress(said) ? [said] : []));
  const { environment, model, phase, rollouts, avgReward } = status;
  const sum = (read: (chunk: ChunkProgress) => number): number =>
    chunks.reduce((total, chunk) => total + read(chunk), 0);
  const scored = rollouts.done - rollouts.failed;
  const rewarded = scored + sum((chunk) => chunk.rewarded);
  const rewards = (avgReward ?? 0) * scored + sum((chunk) => chunk.rewards);
  const troubles = pending.flatMap(({ name, attempt, lastFailure }) =>
    lastFailure === null ? [] : [`${name}, attempt ${attempt}: ${onOneLine(lastFailure)}`],
  );
  return {
    workflow: handle.workflowId,
    environment,
    model,
    phase,
    done: rollouts.done + sum((chunk) => chunk.done),
    of: rollouts.of,
    failed: rollouts.failed + sum((chunk) => chunk.failed),
    avgReward: rewarded === 0 ? null : rewards / rewarded,
    waitingOn: troubles.length > 0 ? troubles : status.waitingOn,
  };
}

function isChunkProgress(said: unknown): said is ChunkProgress {
  return typeof said === 'object' && said !== null && 'rewarded' in said;
}

export function describeProgress({
  environment,
  model,
  phase,
  done,
  of,
  failed,
  avgReward,
}: EvaluationProgress): string {
  const counted = of === null ? phase : `${done} of ${of} rollouts`;
  const lost = failed === 0 ? '' : `, ${failed} failed`;
  return `${environment} with ${model}: ${counted}${lost}${avgReward === null ? '' : `  reward ${avgReward.toFixed(3)}`}`;
}

function waits({ waitingOn }: EvaluationProgress): string {
  return waitingOn.length === 0 ? '' : `  waits for ${waitingOn[0]!}`;
}

/** As `ratchet eval show` has it, where its folder can be read here. */
async function sayResult(result: EvaluationResult, { teller, abbreviated }: WatchOptions): Promise<void> {
  const { folder, failed, adopted, cost, failures } = result;
  if (existsSync(folder) && result.rollouts > 0) {
    const [found] = await namedEvaluations(folder, {});
    teller.print(await describe(await readEvaluation(found!), { hasExample: !abbreviated }));
  }
  if (adopted > 0) teller.say(`${result.sampled} rollouts were sampled now, ${adopted} lay here already`);
  if (cost !== null) teller.say(`cost $${cost.toFixed(4)}`);
  if (failed > 0) {
    teller.say(
      `${failed} of ${result.rollouts} rollouts have no reward; the same command with --resume plays them again`,
    );
    for (const failure of failures) teller.say(`  ${onOneLine(failure.split('\n')[0]!)}`);
  }
  teller.say(`results  ${folder}`);
}

/** Whether a workflow of this id is at work. */
export async function isRunning(client: Client, workflowId: string): Promise<boolean> {
  return client.workflow
    .getHandle(workflowId)
    .describe()
    .then(
      ({ status }) => status.name === 'RUNNING',
      (error: unknown) => {
        if (error instanceof WorkflowNotFoundError) return false;
        throw error;
      },
    );
}

function now(): string {
  return new Date().toISOString();
}
