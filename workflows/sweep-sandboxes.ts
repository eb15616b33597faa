import { setCurrentDetails } from '@temporalio/workflow';
import { plainMarkdown } from '../core/markdown.ts';
import { sweeping } from './options.ts';
import { readSweepSandboxesInput } from './inputs.ts';

export interface SweepSandboxesInput {
  /** Where the runs are whose sandboxes these were. */
  readonly store: string;
}

/**
 * Ends the sandboxes that nobody owns, whenever a Temporal Schedule asks for it: whatever died, and whether or not there
 * still is a run. A provider that does not answer is asked the next time.
 */
export async function sweepSandboxes(...given: [SweepSandboxesInput]): Promise<SweptSandboxes> {
  const { store } = readSweepSandboxesInput(given);
  const swept = await sweeping.sweepSandboxes({ store });
  const lines = [
    ...swept.ended.map(({ name, why }) => `${name}: ended (${why})`),
    ...swept.orphans.map((name) => `${name}: destroyed, it had no lease`),
    ...swept.left.map((name) => `${name}: still there`),
    ...(swept.forgotten ?? []).map((worker) => `${worker}: has ended, its snapshots were removed`),
    ...swept.troubles,
  ];
  setCurrentDetails(lines.map((line) => `- ${plainMarkdown(line)}`).join('\n'));
  return {
    ...swept,
    ended: swept.ended.length,
    orphans: swept.orphans.length,
    forgotten: swept.forgotten?.length ?? 0,
  };
}

/** Small enough for a history that is written each minute. */
export interface SweptSandboxes {
  readonly open: number;
  readonly ended: number;
  readonly orphans: number;
  readonly forgotten: number;
  readonly left: readonly string[];
  readonly troubles: readonly string[];
}
