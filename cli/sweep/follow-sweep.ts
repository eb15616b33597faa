import { setTimeout as delay } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import type { WorkflowHandle } from '@temporalio/client';
import { narrowlyDropped } from '../../core/sweep/halving.ts';
import type { SweepRung, SweepRunStatus, SweepStatus } from '../../core/sweep/sweep.ts';
import { describeRow } from '../../core/sweep/table.ts';

const pollMs = 1_000;
const queryTimeoutMs = 4_000;

/** Whom a sweep is told to: lines for a person, and how it stands for a program. */
interface Audience {
  readonly say: (line: string) => void;
  readonly tell: (status: SweepStatus) => void;
}

/** Tells what changes in a sweep, until the signal. */
export async function followSweep(handle: WorkflowHandle, { say, tell }: Audience, signal: AbortSignal): Promise<void> {
  let told: SweepStatus | null = null;
  while (!signal.aborted) {
    const status = await handle.client
      .withDeadline(Date.now() + queryTimeoutMs, () => handle.query<SweepStatus>('status'))
      .catch(() => null); // no worker answers now: it is asked again
    if (status !== null && !isDeepStrictEqual(status, told)) {
      for (const line of changeLines(told, status)) say(line);
      tell(status);
      told = status;
    }
    await delay(pollMs, undefined, { signal }).catch(() => undefined); // ended: the loop ends
  }
}

/** Lines for runs whose state has changed since the look before, for rungs, and for a pause: in the order in which they happen. */
export function changeLines(before: SweepStatus | null, now: SweepStatus): string[] {
  const { runs, rows, metric, decided } = now;
  const was = new Map(before?.runs.map((run) => [run.name, run]));
  const changed = runs.filter((run) => run.state !== 'waiting' && was.get(run.name)?.state !== run.state);
  const lineOf = (run: SweepRunStatus): string => {
    const at = wasMeasured.has(run.state)
      ? ` at step ${stepOfValue(run, now)}: ${metric.name} ${run.value?.toPrecision(4) ?? '–'}`
      : '';
    const steered = run.changed === undefined || at === '' ? '' : `  steered: ${run.changed.join(', ')}`;
    return `${run.name}  ${run.state}${at}  ${describeRow(rows[run.row]!)}${steered}`;
  };
  return [
    ...changed.filter(({ state }) => !followsRung.has(state)).map(lineOf),
    ...decided.slice(before?.decided.length ?? 0).map(rungLine),
    ...changed.filter(({ state }) => followsRung.has(state)).map(lineOf),
    ...pauseLines(before, now),
  ];
}

/** Step of a run's metric. Its own last step may be later: it was further before the sweep was begun again. */
function stepOfValue({ row, step, state }: SweepRunStatus, { rungSteps, rung, decided }: SweepStatus): number {
  if (state === 'at its rung') return rungSteps[rung] ?? step;
  return decided.findLast(({ ranking }) => ranking.some((one) => one.row === row))?.step ?? step;
}

const wasMeasured: ReadonlySet<SweepRunStatus['state']> = new Set(['at its rung', 'dropped', 'finished']);
const followsRung: ReadonlySet<SweepRunStatus['state']> = new Set(['training', 'dropped', 'finished']);

function pauseLines(before: SweepStatus | null, { name, phase, pausedBecause }: SweepStatus): string[] {
  const was = before?.pausedBecause ?? null;
  if (was === pausedBecause) return [];
  if (was !== null && phase === 'finished') return [`ended while it was paused (${was}): no run was left to begin`];
  if (pausedBecause === null) return [`resumed, after a pause (${was})`];
  return [`paused: ${pausedBecause}. Continue with: npx ratchet-rl sweep ${name} --resume`];
}

function rungLine({ step, ...decision }: SweepRung): string {
  const { ranking, survivors } = decision;
  const narrow = narrowlyDropped(decision).length;
  const dropped = ranking.length - survivors.length;
  const told =
    narrow === 0 ? '' : `; ${narrow} of the ${dropped} dropped within the standard error of the last that goes on`;
  return `rung at step ${step}: ${survivors.length} of ${ranking.length} rows go on${told}`;
}
