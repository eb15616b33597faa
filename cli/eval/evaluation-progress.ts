import type { WorkflowHandle } from '@temporalio/client';
import type { ChunkProgress } from '../../play/evaluated-chunk.ts';
import type { EvaluationStatus } from '../../core/eval/evaluation.ts';
import type { evaluate } from '../../workflows/evaluate.ts';
import { pendingActivities } from '../temporal/pending-work.ts';
import { onOneLine } from '../output/plain-text.ts';

const queryTimeoutMs = 4_000;

type Handle = WorkflowHandle<typeof evaluate>;

export interface EvaluationProgress {
  readonly workflow: string;
  readonly environment: string;
  readonly model: string;
  readonly phase: string;
  readonly done: number;
  /** null until its examples are counted. */
  readonly of: number | null;
  readonly failed: number;
  /** Mean over the rollouts scored so far. */
  readonly avgReward: number | null;
  /** Waits of the evaluation, obstacles first. */
  readonly waitingOn: readonly string[];
  /** Whether `waitingOn` holds an obstacle. */
  readonly hasTrouble: boolean;
  /** Warnings about its environment and its prices. */
  readonly warnings: readonly string[];
}

/** Progress of the evaluation; null while no worker answers. */
export async function evaluationProgress(handle: Handle): Promise<EvaluationProgress | null> {
  const status = await askEvaluation(handle);
  return status && progressOf(handle, status);
}

/** null while no worker answers. */
export async function askEvaluation(handle: Handle): Promise<EvaluationStatus | null> {
  return handle.client
    .withDeadline(Date.now() + queryTimeoutMs, () => handle.query<EvaluationStatus>('status'))
    .catch(() => null); // an orchestrator that is being restarted, or a part that has not begun
}

/** Combines the workflow's status with the heartbeats of its chunks, which are newer. */
export async function progressOf(handle: Handle, status: EvaluationStatus): Promise<EvaluationProgress> {
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
  const away = chunks.flatMap(({ waitsFor }) => waitsFor ?? []);
  return {
    workflow: handle.workflowId,
    environment,
    model,
    phase,
    done: rollouts.done + sum((chunk) => chunk.done),
    of: rollouts.of,
    failed: rollouts.failed + sum((chunk) => chunk.failed),
    avgReward: rewarded === 0 ? null : rewards / rewarded,
    waitingOn: [...new Set([...away, ...troubles, ...status.waitingOn])],
    hasTrouble: away.length + troubles.length > 0,
    warnings: status.warnings,
  };
}

function isChunkProgress(said: unknown): said is ChunkProgress {
  return typeof said === 'object' && said !== null && 'rewarded' in said;
}

export function describeProgress({
  workflow,
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
  const version = versionIn(workflow);
  const asked = version === '' ? model : `${model} ${version}`;
  return `${environment} with ${asked}: ${counted}${lost}${avgReward === null ? '' : `  reward ${avgReward.toFixed(3)}`}`;
}

/** Version of a run in the id of its evaluation (`evaluationWorkflowId`); '' without one. */
export function versionIn(workflow: string): string {
  return /\.(v\d+(?:\.r\d+)?)(?:\.[a-z]+)?$/.exec(workflow)?.[1] ?? '';
}
