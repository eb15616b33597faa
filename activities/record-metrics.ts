import { appendMetrics } from '../backends/metrics/jsonl.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import { requireCommit, storeOf } from './run-access.ts';

/** Projects a committed step into `metrics.jsonl`. A step that is there already is not written again. */
export async function recordMetrics(input: { readonly run: RunHandle; readonly step: number }): Promise<void> {
  const { commit } = await requireCommit(input.run, input.step);
  const row = { step: commit.step, lineage: commit.lineage, time: commit.committedAt, ...commit.metrics };
  await appendMetrics(storeOf(input.run), row);
}
