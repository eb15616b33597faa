import type { Client } from '@temporalio/client';
import { WorkflowNotFoundError } from '@temporalio/client';
import { RatchetError } from '../../core/errors.ts';
import { sweepWorkflowId } from '../../core/names.ts';
import type { SweepInput } from '../../core/sweep/sweep.ts';
import type { CarriedSweep } from '../../core/sweep/sweep-state.ts';
import { describeRow } from '../../core/sweep/table.ts';
import { readBeginning } from '../../workers/stack/take-over.ts';

/** Refuses a file that is not the one of the sweep under way, which goes on with what it began with. */
export async function refuseOtherSweep(client: Client, input: SweepInput, file: string): Promise<void> {
  const workflowId = sweepWorkflowId(input.name);
  const found = await client.workflow.getHandle(workflowId).describe().catch(nothingThere);
  if (found?.status.name !== 'RUNNING') return;
  const { input: begun } = await readBeginning<SweepInput | CarriedSweep>(client, workflowId, found.runId);
  const changed = changesOfSweep('continued' in begun ? begun.continued.input : begun, input);
  if (changed.length === 0) return;
  throw new RatchetError(
    'ConfigInvalid',
    [
      `The sweep ${input.name} is under way, and ${file} is not what it was when it began:`,
      ...changed.map((line) => `  ${line}`),
      `It goes on as it began. To look at it: npx ratchet-rl sweep ${input.name} --status; to end it: --cancel. For another table, name another sweep: name = "…" in [sweep].`,
    ].join('\n'),
  );
}

/** Null for the error that the server does not know a workflow; throws every other one. */
export function nothingThere(error: unknown): null {
  if (error instanceof WorkflowNotFoundError) return null;
  throw error;
}

/** What differs between the sweep under way and what its file says now, a line each. */
export function changesOfSweep(was: SweepInput, now: SweepInput): string[] {
  const facts: readonly [string, (input: SweepInput) => string][] = [
    ['run', ({ config }) => config],
    ['metric', ({ metric }) => metric.name],
    ['goal', ({ metric }) => metric.goal],
    ['last_steps', ({ metric }) => String(metric.lastSteps)],
    ['at_once', ({ atOnce }) => String(atOnce)],
    ['seeds', ({ runs }) => [...new Set(runs.map(({ seed }) => seed ?? 'that of the run file'))].join(', ')],
    ['[sweep.halving]', ({ halving }) => halvingText(halving)],
    ['max_steps', ({ maxSteps }) => String(maxSteps)],
  ];
  const changed = facts.flatMap(([name, of]) =>
    of(was) === of(now) ? [] : [`${name}: was ${of(was)}, now ${of(now)}`],
  );
  const rows = Array.from({ length: Math.max(was.rows.length, now.rows.length) }, (_, i) => {
    const [before, after] = [was.rows[i], now.rows[i]].map((row) => (row === undefined ? 'nothing' : describeRow(row)));
    return before === after ? [] : [`row ${i + 1}: was ${before}, now ${after}`];
  });
  const all = [...changed, ...rows.flat()];
  if (all.length === 0 && JSON.stringify(was.sent) !== JSON.stringify(now.sent))
    return [`${now.config}, or a file that it names, has another text`];
  return all;
}

function halvingText(halving: SweepInput['halving']): string {
  if (halving === null) return 'nothing';
  const { eta, rungs, minSteps } = halving;
  return `eta ${eta}${rungs === null ? '' : `, rungs ${rungs}`}${minSteps === null ? '' : `, min_steps ${minSteps}`}`;
}
