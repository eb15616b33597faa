import { appendMetrics, forgetMetrics, hasMetrics } from './metrics.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { committedSteps, lineagesOf, requireCommit, type RunPlace, storeOf } from '../run-access.ts';

/**
 * Writes rows that a run lacks: of a step whose process was killed after its commit, when Temporal's state was lost
 * too, or all when the file is gone. Steps that a lineage took over have rows of the other lineage; a commit without
 * metrics has none.
 */
export async function recordMissing(run: RunPlace): Promise<void> {
  forgetMetrics(storeOf(run));
  for (const lineage of await lineagesOf(run)) {
    const place = { ...run, lineage };
    for (const step of await committedSteps(place)) {
      if (await hasMetrics(storeOf(run), { lineage, step })) continue;
      const { commit } = await requireCommit(place, step);
      await recordCommit(run, commit);
    }
  }
}

/** Projects a committed step into `metrics.jsonl`, once. */
export async function recordCommit(run: RunPlace, commit: StepCommit): Promise<void> {
  if (commit.origin !== undefined || Object.keys(commit.metrics).length === 0) return;
  const row = { step: commit.step, lineage: commit.lineage, time: commit.committedAt, ...commit.metrics };
  await appendMetrics(storeOf(run), row);
}
