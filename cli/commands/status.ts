import { defineSearchAttributeKey } from '@temporalio/common';
import {
  type Client,
  QueryNotRegisteredError,
  ServiceError,
  WorkflowFailedError,
  type WorkflowHandle,
} from '@temporalio/client';
import { Command } from 'commander';
import { type CommittedRun, committedRun } from '../../activities/committed-run.ts';
import { RatchetError } from '../../core/errors.ts';
import { describeEffectiveness } from '../../core/rl/effectiveness.ts';
import { environmentRewards } from '../../core/rl/metrics.ts';
import { describePools } from '../../core/rl/pools.ts';
import type { RunStatus } from '../../workflows/messages.ts';
import { connect, findRun, findTemporal } from '../connection.ts';
import { describeWaiting, retrying } from '../follow-run.ts';
import { rootMessage } from '../root-message.ts';
import { findRunFolder, storeOption } from '../run-place.ts';

export const statusCommand = new Command('status')
  .description('where a run stands and what it is waiting for; without a name, all runs')
  .argument('[run]')
  .option(...storeOption)
  .action(async (run: string | undefined, options: { store: string }) => {
    if (run === undefined) return withTemporal(listRuns);
    const committed = await readCommitted(run, options.store);
    const figures = committed ? describeCommitted(committed) : [];
    const lines = await withTemporal((client) => describeRun(client, run)).catch((error: unknown) => {
      if (!committed) throw error;
      return withoutTemporal(run, committed, error);
    });
    process.stdout.write(`${[...lines, ...figures].join('\n')}\n`);
  });

function describeCommitted({ metrics, effectiveness }: CommittedRun): string[] {
  const rewards = environmentRewards(metrics).map(([name, reward]) => `${name} ${reward.toFixed(3)}`);
  const pools = describePools(metrics);
  return [
    ...(rewards.length > 0 ? [`rewards       ${rewards.join(' · ')}`] : []),
    ...(pools.length > 0 ? [`pools         ${pools.join(' · ')}`] : []),
    `effectiveness ${describeEffectiveness(effectiveness)}`,
  ];
}

async function withTemporal<T>(work: (client: Client) => Promise<T>): Promise<T> {
  const { client, close } = await connect(await findTemporal(process.cwd()));
  try {
    return await work(client);
  } finally {
    await close();
  }
}

/** From the run's folder alone; null when there is none here, or nothing is committed. */
async function readCommitted(run: string, storeUri: string): Promise<CommittedRun | null> {
  try {
    return await committedRun(await findRunFolder(run, storeUri));
  } catch (error) {
    if (error instanceof RatchetError && error.code === 'RunNotFound') return null;
    throw error;
  }
}

async function describeRun(client: Client, run: string): Promise<string[]> {
  const handle = await findRun(client, run);
  const { status } = await handle.describe();
  const details = await askStatus(handle);
  const failure = status.name === 'RUNNING' ? null : await failureOf(handle);
  const retries = details && status.name === 'RUNNING' ? ((await retrying(handle)) ?? []) : [];
  const lines = details ? [describe(details, status.name, retries)] : [`${run}: workflow ${status.name.toLowerCase()}`];
  if (failure) lines.push(`stopped because: ${failure}`);
  else if (!details && status.name === 'RUNNING') lines.push(await describeWaiting(handle));
  return lines;
}

/** What the commits say when Temporal does not answer, or does not know the run (any more). */
function withoutTemporal(run: string, { step, lineage, committedAt }: CommittedRun, error: unknown): string[] {
  const isKnown = error instanceof RatchetError && ['ServerUnavailable', 'RunNotFound'].includes(error.code);
  if (!isKnown) throw error;
  return [`${run}: step ${step}, lineage ${lineage}, committed at ${committedAt}`, error.message];
}

/** Null when the run did not get as far as listening, or no orchestrator worker is there to speak for it. */
async function askStatus(handle: WorkflowHandle): Promise<RunStatus | null> {
  try {
    return await handle.client.withDeadline(Date.now() + 10_000, () => handle.query<RunStatus>('status'));
  } catch (error) {
    if (error instanceof QueryNotRegisteredError || error instanceof ServiceError) return null;
    throw error;
  }
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

const runsListedMax = 50;
const runKey = defineSearchAttributeKey('RatchetRun', 'KEYWORD');
const stepKey = defineSearchAttributeKey('RatchetStep', 'INT');
const rewardKey = defineSearchAttributeKey('RatchetReward', 'DOUBLE');

/** Newest first, one line each. */
async function listRuns(client: Client): Promise<void> {
  let count = 0;
  for await (const found of client.workflow.list({ query: "WorkflowType='trainRun'", pageSize: runsListedMax })) {
    const { workflowId, status, startTime, typedSearchAttributes: attributes } = found;
    const reward = attributes.get(rewardKey);
    const parts = [
      (attributes.get(runKey) ?? workflowId).padEnd(32),
      status.name.toLowerCase().padEnd(12),
      `step ${attributes.get(stepKey) ?? 0}`.padEnd(10),
      (reward === undefined ? '' : `reward ${reward.toFixed(3)}`).padEnd(14),
      `since ${startTime.toISOString().slice(0, 19)}`,
    ];
    process.stdout.write(`${parts.join('  ')}\n`);
    if (++count === runsListedMax) break;
  }
  if (count === 0) process.stdout.write('no runs yet\n');
}

function describe(status: RunStatus, workflow: string, retries: readonly string[]): string {
  const waiting = [
    ...status.waitingOn.map(({ what, since }) => `  ${what}, since ${since}`),
    ...retries.map((retry) => `  ${retry}`),
  ];
  return [
    `${status.run}: ${status.phase} (workflow ${workflow.toLowerCase()}), step ${status.step} of ${status.maxSteps}, lineage ${status.lineage}`,
    ...(status.pausedBecause ? [`paused because: ${status.pausedBecause}`] : []),
    `policy        ${status.policyDigest?.slice(0, 12) ?? 'none yet'}`,
    `learning rate ${status.learningRate} (peak)`,
    `files         ${status.store}`,
    ...(waiting.length > 0 ? ['waiting on:', ...waiting] : []),
  ].join('\n');
}
