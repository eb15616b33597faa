import { type Client, type WorkflowExecutionInfo } from '@temporalio/client';
import { defineSearchAttributeKey } from '@temporalio/common';
import { Command } from 'commander';
import { memoKeys } from '../../core/names.ts';
import type { AskedOfRun } from '../../core/rl/run-state.ts';
import { askStatus } from '../ask-status.ts';
import { onOneLine } from '../plain-text.ts';
import { readCount } from '../read-count.ts';
import { withTemporal } from '../with-temporal.ts';

export const runsCommand = new Command('runs')
  .description('all runs this Temporal server knows: state, step, reward, and what they wait for; the newest first')
  .option('--json', 'as a JSON array')
  .option('--limit <n>', 'at most this many', '50')
  .action((options: { json?: boolean; limit: string }) => listRuns(options));

const runKey = defineSearchAttributeKey('RatchetRun', 'KEYWORD');
const stepKey = defineSearchAttributeKey('RatchetStep', 'INT');
const rewardKey = defineSearchAttributeKey('RatchetReward', 'DOUBLE');

/** `ratchet runs --json`: one of these for each. */
export interface ListedRun {
  readonly run: string;
  readonly workflowId: string;
  /** `paused`, `training`, … of a run that answers; else Temporal's word: `running`, `completed`, `failed`, `canceled`, … */
  readonly state: string;
  readonly step: number | null;
  readonly maxSteps: number | null;
  /** Of the last committed step. */
  readonly reward: number | null;
  /** Why it is paused, or what it waits for longest; null when nothing is known. */
  readonly waitingFor: string | null;
  /** ISO time: when the attempt began; of a run that does not answer, when its newest execution did. */
  readonly startedAt: string;
}

/** One that is busy says so; nobody waits for it here. */
const answerWithinMs = 1_500;

export async function listRuns({ json = false, limit = '50' }: { json?: boolean; limit?: string }): Promise<void> {
  const most = readCount('--limit', limit);
  const runs = await withTemporal(async (client) => {
    const found: WorkflowExecutionInfo[] = [];
    for await (const info of client.workflow.list({ query: "WorkflowType='trainRun'", pageSize: most })) {
      // A run that continued as new, or was started again, is one run.
      if (!found.some(({ workflowId }) => workflowId === info.workflowId)) found.push(info);
      if (found.length === most) break;
    }
    return Promise.all(found.map((info) => listed(client, info)));
  });
  if (json) process.stdout.write(`${JSON.stringify(runs, null, 2)}\n`);
  else if (runs.length === 0) process.stdout.write('no runs yet\n');
  else for (const line of table(runs)) process.stdout.write(`${onOneLine(line)}\n`);
}

async function listed(client: Client, info: WorkflowExecutionInfo): Promise<ListedRun> {
  const { workflowId, status, startTime, typedSearchAttributes: attributes, memo = {} } = info;
  const isRunning = status.name === 'RUNNING';
  const answer = isRunning
    ? await askStatus(client.workflow.getHandle(workflowId), answerWithinMs).catch(() => null)
    : null;
  const noted = memo[memoKeys.asked] as AskedOfRun | undefined;
  const pausedBecause = answer ? answer.pausedBecause : isRunning ? (noted?.pausedBecause ?? null) : null;
  const waiting = answer?.waitingOn.toSorted((a, b) => a.since.localeCompare(b.since))[0]?.what ?? null;
  return {
    run: attributes.get(runKey) ?? answer?.run ?? text(memo['run']) ?? workflowId,
    workflowId,
    state: answer?.phase ?? (pausedBecause === null ? stateName(status.name, noted) : 'paused'),
    step: answer?.step ?? attributes.get(stepKey) ?? number(memo['step']),
    maxSteps: answer?.maxSteps ?? null,
    reward: attributes.get(rewardKey) ?? number(memo['reward']),
    waitingFor: pausedBecause ?? waiting ?? (isRunning && !answer ? 'an orchestrator that answers' : null),
    startedAt: answer?.since ?? startTime.toISOString(),
  };
}

/** A run that ended where it was told to stop has not finished. */
function stateName(name: string, noted: AskedOfRun | undefined): string {
  if (name === 'COMPLETED' && noted?.overrides.stopAfter !== undefined) return 'stopped';
  return name.toLowerCase().replaceAll('_', ' ');
}

function table(runs: readonly ListedRun[]): string[] {
  const cells = runs.map(({ run, state, step, maxSteps, reward, startedAt, waitingFor }) => [
    run,
    state,
    step === null ? '' : `step ${step}${maxSteps === null ? '' : ` of ${maxSteps}`}`,
    reward === null ? '' : `reward ${reward.toFixed(3)}`,
    `since ${startedAt.slice(0, 19)}`,
    waitingFor === null ? '' : waitingFor.slice(0, 100),
  ]);
  const widths = cells[0]!.map((_, column) => Math.max(...cells.map((row) => row[column]!.length)));
  return cells.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join('  ')
      .trimEnd(),
  );
}

function text(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

function number(value: unknown): number | null {
  return typeof value === 'number' ? value : null;
}
