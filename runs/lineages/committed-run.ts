import { effectivenessOf, type Effectiveness } from '../../core/rl/effectiveness.ts';
import { committedSteps, currentLineage, requireCommit, type RunPlace } from '../run-access.ts';

/** Progress of a run by its commits, independent of Temporal. */
export interface CommittedRun {
  readonly lineage: string;
  readonly step: number;
  /** ISO time of the last commit. */
  readonly committedAt: string;
  readonly effectiveness: Effectiveness;
  readonly metrics: Readonly<Record<string, number>>;
}

/** State of the current lineage; null before its first commit. */
export async function committedRun(run: RunPlace): Promise<CommittedRun | null> {
  const place = { ...run, lineage: await currentLineage(run) };
  const steps = await committedSteps(place);
  const commits = await Promise.all(steps.map(async (step) => (await requireCommit(place, step)).commit));
  const last = commits.at(-1);
  if (!last) return null;
  const { lineage, step, committedAt, metrics } = last;
  return { lineage, step, committedAt, metrics, effectiveness: effectivenessOf(commits) };
}
