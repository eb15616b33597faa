import { existsSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { type Client, type WorkflowHandle, WorkflowNotFoundError } from '@temporalio/client';
import type { ChunkProgress } from '../../activities/evaluation/evaluate-chunk.ts';
import type { EvaluationResult, EvaluationStatus } from '../../core/eval/evaluation.ts';
import type { evaluate } from '../../workflows/evaluate.ts';
import { pendingActivities } from '../pending-activities.ts';
import { onOneLine } from '../plain-text.ts';
import type { Teller } from '../teller.ts';
import { type WatchOptions as WatchedWorkflow, watchWorkflow } from '../watch-workflow.ts';
import { namedEvaluations } from './find.ts';
import { readEvaluation } from './read.ts';
import { describe } from './show.ts';

/** One line of `ratchet eval run --json` between its first and its last. */
export type EvaluationLine =
  | ({ readonly type: 'progress'; readonly time: string } & EvaluationProgress)
  | ({ readonly type: 'result'; readonly time: string } & EvaluationResult);

/** How far one evaluation is. */
export interface EvaluationProgress {
  readonly workflow: string;
  readonly environment: string;
  readonly model: string;
  readonly phase: string;
  readonly done: number;
  /** null until its examples are counted. */
  readonly of: number | null;
  readonly failed: number;
  /** Of what is scored so far. */
  readonly avgReward: number | null;
  readonly waitingOn: readonly string[];
}

export type EvaluationTeller = Teller<EvaluationLine>;

interface WatchOptions extends WatchedWorkflow<EvaluationLine> {
  /** What answers ends with this command: nobody could go on without it. */
  readonly endsWithUs: boolean;
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
export function watchEvaluation(handle: Handle, options: WatchOptions): Promise<number> {
  const { teller, endsWithUs } = options;
  return watchWorkflow(handle, options, {
    noun: 'evaluation',
    endsWithUs,
    toEnd: `npx ratchet temporal workflow cancel --workflow-id ${handle.workflowId}`,
    follow: (signal) => follow(handle, teller, signal),
    async tellResult({ results }) {
      for (const result of results) {
        teller.tell({ type: 'result', time: now(), ...result });
        await sayResult(result, options);
      }
      return results.every(({ rollouts, failed }) => failed < rollouts) ? 0 : 1;
    },
  });
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
