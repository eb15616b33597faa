import type { Client } from '@temporalio/client';
import { otherVersions } from '../../../workers/stack/other-versions.ts';
import { askBranches } from '../../describe/prompts.ts';
import type { StatusReport } from '../../describe/status.ts';
import { retrying } from '../../follow/follow-run.ts';
import { askStatus } from '../../../workers/temporal/ask-status.ts';
import { findRun } from '../../../workers/temporal/client.ts';
import { failureOf } from '../../../workers/temporal/result-of.ts';
import { describeSilence } from '../../temporal/silent-stack.ts';

const runningPatienceMs = 10_000;
const endedPatienceMs = 3_000;

type Told = Pick<
  StatusReport,
  'workflow' | 'status' | 'retries' | 'stoppedBecause' | 'waiting' | 'branches' | 'otherVersions'
>;

/** Answers of the run's workflow and of its server. */
export async function askRun(client: Client, run: string): Promise<Told> {
  const handle = await findRun(client, run);
  const description = await handle.describe();
  const isRunning = description.status.name === 'RUNNING';
  // An ended run is replayed to answer; its commits are read faster.
  const status = await askStatus(handle, isRunning ? runningPatienceMs : endedPatienceMs);
  return {
    workflow: description.status.name.toLowerCase(),
    status,
    branches: isRunning && status ? await askBranches(client, status) : {},
    retries: isRunning && status ? ((await retrying(handle)) ?? []) : [],
    stoppedBecause: isRunning ? null : await failureOf(handle),
    waiting: isRunning && !status ? await describeSilence(handle, run) : null,
    otherVersions: isRunning ? await otherVersions(client) : [],
  };
}
