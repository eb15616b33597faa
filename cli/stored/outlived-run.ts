import { type Retention, retentionOf, teamOf } from '../../core/roles.ts';
import { teamNamedBy } from '../../runs/changes.ts';
import { newestSpec } from '../../runs/forms/stored-spec.ts';
import { ownerInFolder, rolesHere } from '../../workers/temporal/who-may.ts';
import { bytesText } from '../output/bytes-text.ts';
import { keptRun, lastWritten, runsFrom } from '../../runs/lineages/outlived.ts';
import type { RunPlace } from '../../runs/run-access.ts';
import { findRun, temporalHere } from '../../workers/temporal/client.ts';
import { RatchetError } from '../../core/errors.ts';
import { withTemporal } from '../temporal/with-temporal.ts';

/** How long things of a run are kept, as its file says, else its team. */
export async function retentionHere(place: RunPlace): Promise<Retention> {
  const [roles, spec] = [await rolesHere(), await newestSpec(place)];
  const owner = roles === null ? null : await ownerInFolder(place)();
  return retentionOf(roles, spec.retention, teamOf(roles, owner, teamNamedBy(spec)));
}

const dayMs = 24 * 3_600_000;

/** A run all of which may go, or that stays although its time is over. */
export interface OutlivedRun {
  readonly bytes: number;
  readonly why: string;
  /** Why it stays; null: it may go. */
  readonly staysBecause: string | null;
}

/** null for a run whose retention is not over, or that has none. */
export async function outlivedRun(run: RunPlace, runDays: number | null): Promise<OutlivedRun | null> {
  if (runDays === null) return null;
  const written = await lastWritten(run);
  if (written === null || Date.now() - written.atMs < runDays * dayMs) return null;
  const day = new Date(written.atMs).toISOString().slice(0, 10);
  const why = `the whole run: nothing was written into it since ${day}, and its retention is ${runDays} days`;
  return { bytes: written.bytes, why, staysBecause: await whyItStays(run) };
}

async function whyItStays(run: RunPlace): Promise<string | null> {
  const kept = await keptRun(run);
  if (kept !== null) return `${kept.who} keeps it since ${kept.since.slice(0, 10)}: ${kept.why}`;
  const others = await runsFrom(run);
  if (others.length > 0) return `${others.join(', ')} began from its weights`;
  return whyOpen(run.name);
}

/** A pause writes nothing either: only the Temporal server knows whether a run is over. */
export async function whyOpen(run: string): Promise<string | null> {
  if ((await temporalHere(process.cwd())) === null)
    return 'no Temporal server here says whether it is over (npx ratchet-rl dev, or TEMPORAL_ADDRESS)';
  return withTemporal(async (client) => {
    try {
      const { status, raw } = await (await findRun(client, run)).describe();
      if (status.name === 'RUNNING') return 'its workflow is open';
      const { workflowId } = raw.workflowExecutionInfo?.parentExecution ?? {};
      if (!workflowId) return null;
      const parent = await client.workflow.getHandle(workflowId).describe();
      return parent.status.name === 'RUNNING' ? `the workflow ${workflowId}, whose run it is, is open` : null;
    } catch (error) {
      if (error instanceof RatchetError && error.code === 'RunNotFound') return null; // longer over than the server remembers
      if (error instanceof Error && error.name === 'WorkflowNotFoundError') return null;
      throw error;
    }
  });
}

/** For people: `word: 1.2 GB to remove …`. `toRemove`: what to type; null when it is removed. */
export function outlivedLines(
  run: string,
  { bytes, why, staysBecause }: OutlivedRun,
  toRemove: string | null,
): string[] {
  if (staysBecause !== null) return [`${run}: stays, though its retention is over: ${staysBecause}`];
  if (toRemove === null) return [`${run}: removed ${bytesText(bytes)}, ${why}`];
  return [`${run}: to remove ${bytesText(bytes)}, ${why}`, `  to remove it: ${toRemove}`];
}
