import type { Client } from '@temporalio/client';
import { Command } from 'commander';
import { RatchetError } from '../../core/errors.ts';
import { askStatus } from '../ask-status.ts';
import { findRun, temporalHere } from '../connection.ts';
import { askBranches } from '../describe-prompts.ts';
import { retrying } from '../follow-run.ts';
import { jsonText, withoutControls } from '../plain-text.ts';
import { failureOf } from '../result-of.ts';
import { describeSilence, silentStack } from '../silent-stack.ts';
import { storeOption } from '../store-option.ts';
import type { StoredRun } from '../stored-runs.ts';
import { otherVersions } from '../../workers/other-versions.ts';
import { withTemporal } from '../with-temporal.ts';
import { listRuns } from './runs.ts';
import { sinksOf } from '../metrics-sinks.ts';
import { type StatusReport, describe } from '../describe-status.ts';

export const statusCommand = new Command('status')
  .description('how far a run is and what it is waiting for; without a name, all runs')
  .argument('[run]')
  .option(...storeOption)
  .option('--json', 'as one JSON object')
  .action(async (run: string | undefined, options: { store?: string; json?: boolean }) => {
    if (run === undefined) return listRuns(options);
    const report = await reportOf(run, options.store);
    const text = options.json ? jsonText(report, 2) : withoutControls((await describe(report)).join('\n'));
    process.stdout.write(`${text}\n`, () => {
      if (report.sinksError !== null) process.exit(); // or the bucket would be asked on, for nobody
    });
  });

export async function reportOf(run: string, store: string | undefined): Promise<StatusReport> {
  const untouched = { run, workflow: null, status: null, retries: [], stoppedBecause: null };
  const nothing = { ...untouched, temporalError: null, silent: null };
  const untold = { ...nothing, branches: {}, waiting: null, otherVersions: [] };
  const committed = (await temporalHere(process.cwd())) === null ? await readCommitted(run, store) : null;
  if (committed) {
    return { ...untold, ...(await sinksOf(run, store)), committed, silent: await silentStack(process.cwd()) };
  }
  try {
    const told = await withTemporal((client) => askTemporal(client, run));
    return {
      ...nothing,
      ...told,
      committed: told.workflow === 'running' ? null : await readCommitted(run, store),
      ...(await sinksOf(run, store ?? told.status?.storeUri)),
    };
  } catch (error) {
    const isKnown = error instanceof RatchetError && ['ServerUnavailable', 'RunNotFound'].includes(error.code);
    const committed = isKnown ? await readCommitted(run, store) : null;
    if (!committed) throw error;
    const sinks = await sinksOf(run, store);
    const silent = (error as RatchetError).code === 'ServerUnavailable' ? await silentStack(process.cwd()) : null;
    return { ...untold, ...sinks, committed, temporalError: (error as Error).message, silent };
  }
}

const runningPatienceMs = 10_000;
const endedPatienceMs = 3_000;

type Told = Pick<
  StatusReport,
  'workflow' | 'status' | 'retries' | 'stoppedBecause' | 'waiting' | 'branches' | 'otherVersions'
>;

async function askTemporal(client: Client, run: string): Promise<Told> {
  const handle = await findRun(client, run);
  const description = await handle.describe();
  const isRunning = description.status.name === 'RUNNING';
  // One that has ended is replayed to answer; what its commits say is there sooner.
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

/** From the run's folder alone; null when there is none here, or nothing is committed. Loaded only where it is needed: it is heavy. */
async function readCommitted(run: string, store: string | undefined): Promise<StoredRun | null> {
  return (await import('../stored-runs.ts')).findStoredRun(run, store);
}
