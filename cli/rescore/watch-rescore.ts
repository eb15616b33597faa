import { setTimeout as delay } from 'node:timers/promises';
import type { WorkflowHandle } from '@temporalio/client';
import type { RescoreResult, RescoreStatus } from '../../core/eval/rescore.ts';
import type { RescoreProgress } from '../../play/rescoring/rescored-chunk.ts';
import type { rescore } from '../../workflows/rescore.ts';
import { onOneLine } from '../output/plain-text.ts';
import { pendingActivities } from '../temporal/pending-work.ts';
import { type WatchOptions, watchWorkflow } from '../temporal/watch-workflow.ts';
import { describeRescored } from './rescore-lines.ts';

/** One line of `ratchet rescore --json` between its first and its last. */
export type RescoreLine =
  | ({ readonly type: 'progress'; readonly time: string } & Progress)
  | ({ readonly type: 'result'; readonly time: string } & RescoreResult);

interface Progress {
  readonly phase: string;
  readonly rollouts: number;
  readonly changed: number;
  readonly failed: number;
  readonly judgeCalls: number;
  readonly chunks: number;
  /** Null until the stored rollouts are found. */
  readonly of: number | null;
  /** What it waits for, obstacles first. */
  readonly waitingOn: readonly string[];
}

const pollMs = 1_000;
const queryTimeoutMs = 4_000;
/** Between lines while nothing new comes. */
const toldEveryMs = 10_000;

type Handle = WorkflowHandle<typeof rescore>;

/** Reports on a rescore until it ends or the user leaves, then on its result; returns the exit code. */
export function watchRescore(
  handle: Handle,
  options: WatchOptions<RescoreLine>,
  { mayFork }: { readonly mayFork: boolean },
): Promise<number> {
  const { reporter } = options;
  return watchWorkflow(handle, options, {
    noun: 'rescore',
    toEnd: `npx ratchet-rl temporal workflow cancel --workflow-id ${handle.workflowId}`,
    follow: (signal) => follow(handle, options, signal),
    tellResult: (result) => {
      reporter.emit({ type: 'result', time: now(), ...result });
      reporter.print(describeRescored(result, { mayFork }));
      return Promise.resolve(0);
    },
  });
}

async function follow(handle: Handle, { reporter }: WatchOptions<RescoreLine>, signal: AbortSignal): Promise<void> {
  let [told, toldAt] = ['', 0];
  while (!signal.aborted) {
    const progress = await progressOf(handle);
    const line = progress === null ? '' : describeProgress(progress);
    if (progress !== null && (line !== told || Date.now() - toldAt >= toldEveryMs)) {
      const [first] = progress.waitingOn;
      reporter.say(line === told && first !== undefined ? `${line}  waits for ${first}` : line);
      reporter.emit({ type: 'progress', time: now(), ...progress });
      [told, toldAt] = [line, Date.now()];
    }
    await delay(pollMs, undefined, { signal }).catch(() => undefined); // ended: the loop ends
  }
}

/** The workflow's status with the heartbeats of its chunks, which are newer; null while no worker answers. */
async function progressOf(handle: Handle): Promise<Progress | null> {
  const status = await handle.client
    .withDeadline(Date.now() + queryTimeoutMs, () => handle.query<RescoreStatus>('status'))
    .catch(() => null);
  if (status === null) return null;
  const pending = (await pendingActivities(handle, queryTimeoutMs)) ?? [];
  const chunks = pending.flatMap(({ said }) => (isProgress(said) ? [said] : []));
  const sum = (read: (chunk: RescoreProgress) => number): number => chunks.reduce((total, chunk) => total + read(chunk), 0); // prettier-ignore
  const troubles = pending.flatMap(({ name, attempt, lastFailure }) =>
    lastFailure === null ? [] : [`${name}, attempt ${attempt}: ${onOneLine(lastFailure)}`],
  );
  return {
    phase: status.phase,
    rollouts: status.rollouts.done + sum(({ rescored }) => rescored),
    changed: status.rollouts.changed + sum(({ changed }) => changed),
    failed: status.rollouts.failed + sum(({ failed }) => failed),
    judgeCalls: status.judge.calls + sum(({ judge }) => judge.calls),
    chunks: status.chunks.done,
    of: status.chunks.of,
    waitingOn: [...troubles, ...status.waitingOn],
  };
}

function isProgress(said: unknown): said is RescoreProgress {
  return typeof said === 'object' && said !== null && 'rescored' in said;
}

function describeProgress({ phase, rollouts, changed, failed, judgeCalls, chunks, of }: Progress): string {
  if (of === null) return phase;
  const judged = judgeCalls === 0 ? '' : `, ${judgeCalls} judge calls`;
  const lost = failed === 0 ? '' : `, ${failed} without one`;
  return `${rollouts} rollouts rescored (${chunks} of ${of} chunks): ${changed} with another reward${lost}${judged}`;
}

function now(): string {
  return new Date().toISOString();
}
