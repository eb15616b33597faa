import type { Client } from '@temporalio/client';
import { defineSearchAttributeKey } from '@temporalio/common';
import { Command } from '@commander-js/extra-typings';
import { moneyText, type RunCost } from '../../../core/rl/cost.ts';
import type { AskedOfRun } from '../../../core/rl/run-state.ts';
import { askStatus } from '../../../workers/temporal/ask-status.ts';
import { temporalHere } from '../../../workers/temporal/client.ts';
import { askedIn, listWorkflows, type ListedWorkflow, memoOf } from '../../../workers/temporal/list-workflows.ts';
import { bytesText } from '../../output/bytes-text.ts';
import { onOneLine } from '../../output/plain-text.ts';
import { readCount } from '../../typed/read-count.ts';
import type { StoredStanding } from '../../../runs/lineages/standing.ts';
import type { RunStorage } from '../../../runs/storage.ts';
import { type Stuck, whyStuck } from '../../../workers/temporal/why-stuck.ts';
import { withTemporal } from '../../temporal/with-temporal.ts';
import { inColumns } from '../../output/in-columns.ts';
import { print, printAside, printJson } from '../../output/print.ts';

/** Time in which storage and cost are looked up. Counting takes a look at every file of a run. */
const countedWithinMs = 3_000;

export const runsCommand = new Command('runs')
  .description(
    'all runs, the newest first: those of the Temporal server here, if one runs, and those whose folders are in ./outputs',
  )
  .option('--json', 'as a JSON array')
  .option('--limit <n>', 'at most this many', '50')
  .option('--store <uri>', 'where the runs are (default: ./outputs)')
  .option(
    '--sizes',
    `count all of their storage, however long that takes (without: ${countedWithinMs / 1000} s for all together)`,
  ) // prettier-ignore
  .action((options) => listRuns(options));

const runKey = defineSearchAttributeKey('RatchetRun', 'KEYWORD');
const stepKey = defineSearchAttributeKey('RatchetStep', 'INT');
const rewardKey = defineSearchAttributeKey('RatchetReward', 'DOUBLE');

/** `ratchet runs --json`: one of these for each. */
interface ListedRun {
  readonly run: string;
  /** null for a run that no Temporal server here knows; its values come from its folder. */
  readonly workflowId: string | null;
  /**
   * `paused`, `training`, … for a run that answers; else Temporal's word: `running`, `completed`, `failed`, `canceled`,
   * …; for a run known from its folder only: `finished`, `stopped`, `not running`, `unfinished fork` or `cannot be
   * read`.
   */
  readonly state: string;
  readonly step: number | null;
  readonly maxSteps: number | null;
  /** Reward of the last committed step. */
  readonly reward: number | null;
  /** Reason of its pause, or its longest wait; null when unknown. */
  readonly waitingFor: string | null;
  /**
   * ISO time at which the attempt began, or the newest execution when the run does not answer; null for a run known
   * from its folder only.
   */
  readonly startedAt: string | null;
  /** ISO time of the newest commit, for a run known from its folder only; else null. */
  readonly committedAt: string | null;
  /** Absolute URI of the place of its folder; null when it is not known. */
  readonly store: string | null;
  /** Bytes of its folder; `isWhole` is false where counting was ended early. null where its folder is not reached. */
  readonly storage: RunStorage | null;
  /** All that its rows of metrics count; null where they count nothing, or are not reached. */
  readonly cost: RunCost | null;
}

type StandingRun = Omit<ListedRun, 'storage' | 'cost'>;

/** A run that answers later is shown as busy. */
const answerWithinMs = 1_500;

export async function listRuns({
  json = false,
  limit = '50',
  store,
  sizes = false,
}: {
  json?: boolean;
  limit?: string;
  store?: string;
  sizes?: boolean;
}): Promise<void> {
  const most = readCount('--limit', limit);
  const served = (await temporalHere(process.cwd())) === null ? null : await servedRuns(most);
  const known = new Set((served ?? []).map(({ run }) => run));
  // Imported alone: without a server, no client needs to be loaded.
  const [{ storedStandings }, { resolveStoreUri }, { defaultStore }] = await Promise.all([
    import('../../stored/stored-runs.ts'),
    import('../../../store/index.ts'),
    import('../../stored/run-place.ts'),
  ]);
  const here = resolveStoreUri(store ?? defaultStore, process.cwd());
  const found = await storedStandings(store);
  const stored = found.filter(({ run }) => !known.has(run)).map((one) => listedFromFolder(one, here));
  const inFolder = new Map(found.map((one) => [one.run, one]));
  const asked = (served ?? []).map((one) => withFolder(one, inFolder.get(one.run), here));
  const standings = [...asked, ...stored].slice(0, most);
  const { usedByRuns } = await import('../../stored/used-by-runs.ts');
  const places = standings.map(({ run, store: at }) => (at === null ? null : { name: run, store: at }));
  const used = await usedByRuns(places, sizes ? null : countedWithinMs);
  const runs = standings.map((standing, i): ListedRun => ({ ...standing, ...used[i]! }));
  if (json) printJson(runs, 2);
  else if (runs.length === 0) print('no runs yet');
  else for (const line of table(runs)) print(onOneLine(line));
  if (served === null && runs.length > 0 && !json)
    printAside('(no Temporal server runs here: read from the folders of the runs)');
}

function listedFromFolder({ note, ...stored }: StoredStanding, store: string): StandingRun {
  return { ...stored, workflowId: null, startedAt: null, waitingFor: note, store };
}

/** A run that has ended answers nothing: its folder says how many steps it was to make, and whether it made them. */
export function withFolder(run: StandingRun, stored: StoredStanding | undefined, here: string): StandingRun {
  if (stored === undefined) return run;
  return {
    ...run,
    state: run.state === 'stopped' && stored.state === 'finished' ? 'completed' : run.state,
    maxSteps: run.maxSteps ?? stored.maxSteps,
    store: run.store ?? here,
  };
}

function servedRuns(most: number): Promise<StandingRun[]> {
  return withTemporal(async (client) => {
    const found: ListedWorkflow[] = [];
    for await (const info of listWorkflows(client, "WorkflowType='trainRun'", most)) {
      // A run that continued as new, or was started again, is one run.
      if (!found.some(({ workflowId }) => workflowId === info.workflowId)) found.push(info);
      if (found.length === most) break;
    }
    return (await Promise.all(found.map((info) => listed(client, info)))).flatMap((one) => one ?? []);
  });
}

/** null for one of another program, or of another key. */
async function listed(client: Client, info: ListedWorkflow): Promise<StandingRun | null> {
  const { workflowId, status, startTime, typedSearchAttributes: attributes } = info;
  const memo = await memoOf(client, info.raw, (why) =>
    printAside(`(${workflowId} cannot be read, and is not shown: ${why})`),
  );
  if (memo === null) return null;
  const isRunning = status.name === 'RUNNING';
  const answer = isRunning
    ? await askStatus(client.workflow.getHandle(workflowId), answerWithinMs).catch(() => null)
    : null;
  const stuck =
    isRunning && !answer
      ? await whyStuck(client.workflow.getHandle(workflowId), workflowId).catch(() => null) // the server may be restarting
      : null;
  const noted = askedIn(memo);
  const pausedBecause = answer ? answer.pausedBecause : isRunning ? (noted?.pausedBecause ?? null) : null;
  const waiting = answer?.waitingOn.toSorted((a, b) => a.since.localeCompare(b.since))[0]?.what ?? null;
  return {
    run: attributes.get(runKey) ?? answer?.run ?? text(memo['run']) ?? workflowId,
    workflowId,
    state: answer?.phase ?? (pausedBecause === null ? stateName(status.name, noted) : 'paused'),
    step: answer?.step ?? attributes.get(stepKey) ?? number(memo['step']),
    maxSteps: answer?.maxSteps ?? null,
    reward: attributes.get(rewardKey) ?? number(memo['reward']),
    waitingFor: pausedBecause ?? waiting ?? (isRunning && !answer ? whatIsMissing(stuck) : null),
    startedAt: answer?.since ?? startTime.toISOString(),
    committedAt: null,
    store: answer?.storeUri ?? null,
  };
}

function whatIsMissing(stuck: Stuck | null): string {
  return stuck === null || stuck.is === 'nobody there'
    ? 'an orchestrator that answers'
    : `somebody's help: ${stuck.text}`;
}

/** A run that was asked to stop and has ended has not finished. */
function stateName(name: string, noted: AskedOfRun | undefined): string {
  if (name === 'COMPLETED' && noted?.overrides.stopAfter !== undefined) return 'stopped';
  return name.toLowerCase().replaceAll('_', ' ');
}

function table(runs: readonly ListedRun[]): string[] {
  const cells = runs.map(
    ({ run, state, step, maxSteps, reward, startedAt, committedAt, waitingFor, storage, cost }) => [
      run,
      state,
      step === null ? '' : `step ${step}${maxSteps === null ? '' : ` of ${maxSteps}`}`,
      reward === null ? '' : `reward ${reward.toFixed(3)}`,
      startedAt !== null
        ? `since ${startedAt.slice(0, 19)}`
        : committedAt === null
          ? ''
          : `last step ${committedAt.slice(0, 19)}`,
      storage === null ? '' : `${storage.isWhole ? '' : 'over '}${bytesText(storage.bytes)}`,
      cost === null || cost.money === null ? '' : moneyText(cost.money, cost.currency),
      waitingFor === null
        ? ''
        : `${state === 'paused' || startedAt === null ? '' : 'waiting for '}${waitingFor}`.slice(0, 100),
    ],
  );
  return inColumns(cells);
}

function text(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

function number(value: unknown): number | null {
  return typeof value === 'number' ? value : null;
}
