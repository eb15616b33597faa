import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { storeOf, type RunPlace } from '../../runs/run-access.ts';
import { RatchetError } from '../../core/errors.ts';
import { taskQueues } from '../../core/names.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { TrainRunInput } from '../../activities/index.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import type { SentFiles } from '../../load/sent-files.ts';
import { rootMessage } from '../../workers/temporal/root-message.ts';
import { scoredGroups } from '../../runs/run-records.ts';

/** Interval between looks at whether the round is scored. */
const pollMs = 300;

interface Sampling {
  readonly file: string;
  /** Files laid over it, and their dialect, as typed. */
  readonly laid: Pick<Exclude<TrainRunInput, string>, 'over' | 'dialect'>;
  readonly overrides: Readonly<Record<string, string>>;
  readonly sent: SentFiles;
  readonly groups: number;
  readonly signal: AbortSignal;
}

/** The scored groups of step 1's first round; the workflow is over when this returns. */
export async function sampleRound(
  client: Client,
  place: RunPlace,
  { file, laid, overrides, sent, groups, signal }: Sampling,
): Promise<ScoredGroup[]> {
  const run = place.name;
  const handle = await client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: run,
    taskQueue: taskQueues.orchestrator,
    args: [{ config: file, ...laid, overrides, run, sent }],
    workflowTaskTimeout: '5s',
    staticSummary: `baseline of ${file}: sampled, not trained`,
  });
  const ended = new AbortController();
  const failure = handle.result().then(
    () => null,
    (error: unknown) => error,
  );
  void failure.then(() => ended.abort());
  try {
    for (;;) {
      const scored = await scoredGroups(place, 1).catch(unlessNotYet);
      if (scored.length >= groups) return scored.slice(0, groups);
      signal.throwIfAborted();
      if (ended.signal.aborted) throw stoppedEarly(run, await failure);
      await delay(pollMs, undefined, { signal: AbortSignal.any([signal, ended.signal]) }).catch(() => undefined); // looked at again at once
    }
  } finally {
    if (!ended.signal.aborted) await handle.cancel();
    await failure;
  }
}

const removals = { attempts: 20, everyMs: 250 };

/**
 * Removes the run until its folder stays empty: workers of a stack that keeps running may still write a last line into
 * it.
 */
export async function removeRun(place: RunPlace): Promise<void> {
  const store = storeOf(place);
  for (let attempt = 1; ; attempt++) {
    const failure: unknown = await store.removeAll('').then(
      () => null,
      (error: unknown) => error,
    );
    await delay(removals.everyMs);
    if (failure === null && (await store.list('')).length === 0) return;
    if (attempt === removals.attempts) throw failure ?? new Error(`${store.uri} is written to again and again`);
  }
}

/** Before the run is opened, nothing is stored. */
function unlessNotYet(error: unknown): ScoredGroup[] {
  if (error instanceof RatchetError && error.code === 'StoreUnavailable') return [];
  throw error;
}

function stoppedEarly(run: string, cause: unknown): RatchetError {
  const why = cause instanceof Error ? rootMessage(cause) : 'it ended without a scored round';
  return new RatchetError('Unsupported', `The run ${run}, in which the baseline was measured, failed: ${why}`, {
    cause,
  });
}
