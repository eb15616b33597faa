import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { type Client, WorkflowFailedError, type WorkflowHandle } from '@temporalio/client';
import { Command } from 'commander';
import { describeSink, sinkStatesIn, type SinkStates } from '../../runs/sink-states.ts';
import { RatchetError } from '../../core/errors.ts';
import { layout } from '../../runs/layout.ts';
import { environmentRewards } from '../../core/rl/metrics.ts';
import { describePools } from '../../core/rl/pools.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import { askStatus } from '../ask-status.ts';
import { findRun, temporalHere } from '../connection.ts';
import { askBranches, type BranchFigures, describePrompts } from '../describe-prompts.ts';
import { describeFigures } from '../describe-figures.ts';
import { describeWaiting, retrying } from '../follow-run.ts';
import { jsonText, withoutControls } from '../plain-text.ts';
import { rootMessage } from '../root-message.ts';
import { storeOption } from '../store-option.ts';
import type { StoredRun } from '../stored-runs.ts';
import { whyStuck } from '../why-stuck.ts';
import { withTemporal } from '../with-temporal.ts';
import { listRuns } from './runs.ts';
import { readRegular } from '../../engine/regular-file.ts';

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

/** `ratchet status RUN --json`. */
interface StatusReport {
  readonly run: string;
  /** Temporal's word for the workflow, in lower case (`running`, `completed`, `failed`, …); null when Temporal does not tell. */
  readonly workflow: string | null;
  /** What the workflow says of itself; null when nobody can answer for it. */
  readonly status: RunStatus | null;
  /** Activities that are being tried again, with what they failed with. */
  readonly retries: readonly string[];
  /** Why the workflow failed; null when it did not. */
  readonly stoppedBecause: string | null;
  /** What the run's folder says; read where the workflow does not run, as it takes longer. */
  readonly committed: StoredRun | null;
  /** Why Temporal could not be asked; null when it could. */
  readonly temporalError: string | null;
  /** How far its branches are that look for better prompts, by workflow; those that answer. */
  readonly branches: BranchFigures;
  /** What stands in for a status: who does not answer. */
  readonly waiting: string | null;
  /** Where its metrics go besides its folder, and how far that is; empty where that cannot be read from here. */
  readonly sinks: SinkStates;
  /** Why that could not be read; null when it could. */
  readonly sinksError: string | null;
}

async function reportOf(run: string, store: string | undefined): Promise<StatusReport> {
  const nothing = { run, workflow: null, status: null, retries: [], stoppedBecause: null, temporalError: null };
  const untold = { ...nothing, branches: {}, waiting: null };
  const committed = (await temporalHere(process.cwd())) === null ? await readCommitted(run, store) : null;
  if (committed) return { ...untold, ...(await sinksOf(run, store)), committed };
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
    return { ...untold, ...sinks, committed, temporalError: (error as Error).message };
  }
}

const runningPatienceMs = 10_000;
const endedPatienceMs = 3_000;

type Told = Pick<StatusReport, 'workflow' | 'status' | 'retries' | 'stoppedBecause' | 'waiting' | 'branches'>;

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
  };
}

/** Who does not answer, and why where Temporal knows it. */
async function describeSilence(handle: WorkflowHandle, run: string): Promise<string> {
  const stuck = await whyStuck(handle, run).catch(() => null); // a server that is being restarted
  return stuck === null ? describeWaiting(handle) : `waiting on: ${stuck.text}`;
}

type Sinks = Pick<StatusReport, 'sinks' | 'sinksError'>;

/** Of a folder read as a plain file: opening stores takes longer than all else here. */
async function sinksOf(run: string, store = 'file:outputs'): Promise<Sinks> {
  if (!store.startsWith('file:')) return sinksInBucket(run, store);
  const folder = store.startsWith('file:///') ? fileURLToPath(store) : store.slice('file:'.length);
  const file = path.resolve(folder, run, layout.sinks());
  try {
    return { sinks: sinkStatesIn(await readRegular(file), file), sinksError: null };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { sinks: {}, sinksError: null };
    return { sinks: {}, sinksError: rootMessage(error) }; // it is made again by whoever feeds them
  }
}

/** What is asked beside the run itself must not keep anybody from its answer. */
const bucketPatienceMs = 3_000;

async function sinksInBucket(run: string, uri: string): Promise<Sinks> {
  const [{ openRunStore }, { readSinkStates }] = await Promise.all([
    import('../../backends/store/index.ts'),
    import('../../runs/run-sinks.ts'),
  ]);
  const store = openRunStore(uri, run);
  const patience = new AbortController();
  const reading = readSinkStates(store).then(
    (sinks): Sinks => ({ sinks, sinksError: null }),
    (error: unknown): Sinks => ({ sinks: {}, sinksError: rootMessage(error) }),
  );
  const late = delay(bucketPatienceMs, undefined, { signal: patience.signal }).then((): Sinks => ({
    sinks: {},
    sinksError: `${store.uri} has not answered within ${bucketPatienceMs / 1000} s`,
  }));
  late.catch(() => undefined); // it answered sooner
  try {
    return await Promise.race([reading, late]);
  } finally {
    patience.abort();
  }
}

/** From the run's folder alone; null when there is none here, or nothing is committed. Loaded only where it is needed: it is heavy. */
async function readCommitted(run: string, store: string | undefined): Promise<StoredRun | null> {
  return (await import('../stored-runs.ts')).findStoredRun(run, store);
}

/** Why a closed workflow did not complete; null when it did. */
async function failureOf(handle: WorkflowHandle): Promise<string | null> {
  try {
    await handle.result();
    return null;
  } catch (error) {
    if (error instanceof WorkflowFailedError) return rootMessage(error);
    throw error;
  }
}

async function describe(report: StatusReport): Promise<string[]> {
  const { run, workflow, status, committed, stoppedBecause, temporalError, waiting } = report;
  const lines = status ? describeStatus(status, workflow!, report) : [`${run}: ${standing(report)}`];
  if (stoppedBecause) lines.push(`failed because: ${stoppedBecause}`);
  if (waiting) lines.push(waiting);
  if (temporalError) lines.push(temporalError);
  if (committed) lines.push(...(await describeStored(committed, status === null)));
  lines.push(...Object.entries(report.sinks).flatMap(([sink, state]) => describeSink(sink, state) ?? []));
  if (report.sinksError) lines.push(`metrics elsewhere: not known, ${report.sinksError}`);
  if (committed) lines.push(...(await import('../stored-runs.ts')).describeGoOn(committed));
  return lines;
}

/** `isAll`: nobody else says anything of it. */
async function describeStored(stored: StoredRun, isAll: boolean): Promise<string[]> {
  const { describeEffectiveness } = await import('../../core/rl/effectiveness.ts');
  return [
    ...(isAll
      ? [
          ...describeFigures(stored, false),
          `policy        ${stored.store}${stored.weights}   (${stored.policyDigest.slice(0, 12)})`,
        ]
      : []),
    ...describeEnvironments(stored.metrics),
    describeEffectiveness(stored.effectiveness),
  ];
}

function standing({ workflow, committed, temporalError }: StatusReport): string {
  if (!committed) return `workflow ${workflow}`;
  const { step, maxSteps, lineage, committedAt, state } = committed;
  const place = `step ${step} of ${maxSteps}, lineage ${lineage}, committed at ${committedAt}`;
  if (workflow !== null) return `workflow ${workflow}; ${place}`;
  return `${state}, ${place}${temporalError === null ? ' (no Temporal server runs here; its folder says this)' : ''}`;
}

/** Of a run with several environments, or with pools. */
function describeEnvironments(figures: Readonly<Record<string, number | string>>): string[] {
  const rewards = environmentRewards(figures).map(([name, reward]) => `${name} ${reward.toFixed(3)}`);
  const pools = describePools(figures);
  return [
    ...(rewards.length > 0 ? [`rewards       ${rewards.join(' · ')}`] : []),
    ...(pools.length > 0 ? [`pools         ${pools.join(' · ')}`] : []),
  ];
}

function describeStatus(
  status: RunStatus,
  workflow: string,
  { retries, branches }: Pick<StatusReport, 'retries' | 'branches'>,
): string[] {
  const waiting = [
    ...status.waitingOn.map(({ what, since }) => `  ${what}, since ${since}`),
    ...retries.map((retry) => `  ${retry}`),
  ];
  // What was terminated had no time to say so itself.
  const phase = workflow === 'running' || status.phase === 'finished' ? status.phase : 'stopped';
  return [
    `${status.run}: ${phase} (workflow ${workflow}), step ${status.step} of ${status.maxSteps}, lineage ${status.lineage}`,
    ...(status.pausedBecause
      ? [`paused because: ${status.pausedBecause}`, `continue with npx ratchet resume ${status.run}`]
      : []),
    ...describeFigures(status, status.phase === 'training' && workflow === 'running'),
    `policy        ${status.policyDigest?.slice(0, 12) ?? 'none yet'}`,
    `learning rate ${status.learningRate} (peak)`,
    `files         ${status.store}`,
    ...(workflow === 'running' ? describeEnvironments(status.latest) : []),
    ...Object.values(status.regressions).map(({ text }) => text),
    ...(status.progress.quarantinedServers ?? []).map(
      (server) => `canary: ${server} is quarantined, and asked for nothing`,
    ),
    ...describePrompts(status, branches, workflow === 'running'),
    ...(workflow === 'running' && waiting.length > 0 ? ['waiting on:', ...waiting] : []),
  ];
}
