import type { RunOwner } from '../../core/roles.ts';
import { describeSink } from '../../runs/metrics/sink-states.ts';
import type { SinkStates } from '../../core/rl/metric-rows.ts';
import { moneyText, partName, type RunCost, usedLines } from '../../core/rl/cost.ts';
import { environmentRewards, timeoutsIn } from '../../core/rl/metrics.ts';
import { describePools } from '../../core/rl/sampling/pools.ts';
import type { Curves } from '../../runs/metrics/curves.ts';
import type { StoredNotice } from '../../core/rl/notices.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import { describePrompts } from './prompts.ts';
import type { BranchFigures } from '../../core/gepa/prompt-search.ts';
import { describeFigures } from './figures.ts';
import { describeInPlay } from './in-play.ts';
import { joinedCurves } from '../follow/joined-curves.ts';
import type { StoredRun } from '../stored/stored-runs.ts';

/** Output of `ratchet status RUN --json`. */
export interface StatusReport {
  readonly run: string;
  /**
   * Temporal's status of the workflow, in lower case (`running`, `completed`, `failed`, …); null when Temporal does not
   * answer.
   */
  readonly workflow: string | null;
  /** The workflow's own status; null when no worker can answer for it. */
  readonly status: RunStatus | null;
  /** Retried activities, with the last failure of each. */
  readonly retries: readonly string[];
  /** One line, with advice, for each polling worker of a different version. */
  readonly otherVersions: readonly string[];
  /** Why the workflow failed; null when it did not. */
  readonly stoppedBecause: string | null;
  /** Read from the run's folder only when the workflow does not run, since it takes longer. */
  readonly committed: StoredRun | null;
  /** Why Temporal could not be asked; null when it could. */
  readonly temporalError: string | null;
  /** Describes processes that run here although their Temporal server does not answer; missing or null if there are none. */
  readonly silent?: string | null;
  /** Progress of its branches for better prompts, by workflow; only those that answer. */
  readonly branches: BranchFigures;
  /** Shown without a status: which process does not answer. */
  readonly waiting: string | null;
  /** Trackers that receive its metrics, and how far each is; empty when that cannot be read from here. */
  readonly sinks: SinkStates;
  /** Notes by people and notices by the run, oldest first; empty when they cannot be read from here. */
  readonly notices: readonly StoredNotice[];
  /** Why some notices cannot be read. */
  readonly damagedNotices: readonly string[];
  /** Why its webhook accepts no notices at present; null when it does, or there is none. */
  readonly webhook: string | null;
  /** Cost so far; null when nothing was counted, or it cannot be read from here. */
  readonly cost: RunCost | null;
  /** Used of each limit of its budget, in words; absent when it cannot be read from here. */
  readonly budget?: readonly string[];
  /** All stored steps and evaluations; `status` has only the newest. null when they cannot be read from here. */
  readonly curves: Curves | null;
  /** Why neither could be read; null when they could. */
  readonly sinksError: string | null;
}

export async function describe(report: StatusReport): Promise<string[]> {
  const { run, workflow, status, committed, stoppedBecause, temporalError, silent, waiting } = report;
  const lines = status ? describeStatus(status, workflow!, report) : [`${run}: ${standing(report)}`];
  if (stoppedBecause) lines.push(`failed because: ${stoppedBecause}`);
  if (waiting) lines.push(waiting);
  lines.push(...report.otherVersions);
  if (silent) lines.push(silent);
  if (temporalError) lines.push(temporalError);
  if (committed) lines.push(...(await describeStored(committed, status === null)));
  if (report.cost) lines.push(...describeCost(report.cost));
  lines.push(...(report.budget ?? []).map((line) => `budget        ${line}`));
  lines.push(...describeNotices(report.notices), ...report.damagedNotices.map((why) => `notice not read: ${why}`));
  if (report.webhook) lines.push(`webhook: ${report.webhook}`);
  lines.push(...Object.entries(report.sinks).flatMap(([sink, state]) => describeSink(sink, state) ?? []));
  if (report.sinksError) lines.push(`metrics elsewhere: not known, ${report.sinksError}`);
  if (committed && !silent) lines.push(...(await import('../stored/stored-runs.ts')).describeGoOn(committed));
  return lines;
}

/** Lists the parts when there are several. */
function describeCost({ currency, money, parts }: RunCost): string[] {
  const sum = money === null ? [] : [`cost          ${moneyText(money, currency)}`];
  const each = parts.map((part) => {
    const own = part.money === null || parts.length === 1 ? '' : ` ${moneyText(part.money, currency)}:`;
    return `used          ${partName(part)}${own} ${usedLines(part.used).join(' · ')}`;
  });
  return [...sum, ...each];
}

const noticesShown = 5;

/** Prints the newest notices only. */
function describeNotices(notices: readonly StoredNotice[]): string[] {
  const shown = notices.slice(-noticesShown).map(({ kind, step, time, text }) => {
    return `${kind.padEnd(13)} step ${step}, ${time.slice(0, 16).replace('T', ' ')}: ${text.replaceAll('\n', ' ')}`;
  });
  const more = notices.length - shown.length;
  return [...(more > 0 ? [`notices       the newest ${shown.length} of ${notices.length}`] : []), ...shown];
}

/** `isAll`: the folder is the only source of the report. */
async function describeStored(stored: StoredRun, isAll: boolean): Promise<string[]> {
  const { describeEffectiveness } = await import('../../core/rl/effectiveness.ts');
  const { showStoreUri } = await import('../../store/index.ts');
  return [
    ...(isAll
      ? [
          ...describeFigures(stored, false),
          `policy        ${showStoreUri(stored.store)}${stored.weights.replace(/\/$/, '')}   (${stored.policyDigest.slice(0, 12)})`,
        ]
      : []),
    ...describeEnvironments(stored.metrics),
    describeEffectiveness(stored.effectiveness),
  ];
}

function ownerText({ who, team }: RunOwner): string {
  return team === null ? who : `${who}, team ${team}`;
}

function standing({ workflow, committed, temporalError, silent }: StatusReport): string {
  if (!committed) return `workflow ${workflow}`;
  const { step, maxSteps, lineage, committedAt, state } = committed;
  const place = `step ${step} of ${maxSteps}, lineage ${lineage}, committed at ${committedAt}`;
  if (workflow !== null) return `workflow ${workflow}; ${place}`;
  if (silent) return `${place} (its folder says this)`;
  return `${state}, ${place}${temporalError === null ? ' (no Temporal server runs here; its folder says this)' : ''}`;
}

/** Lines for a run with several environments, or with pools. */
function describeEnvironments(figures: Readonly<Record<string, number | string>>): string[] {
  const rewards = environmentRewards(figures).map(([name, reward]) => `${name} ${reward.toFixed(3)}`);
  const pools = describePools(figures);
  const late = Object.entries(timeoutsIn(figures)).map(([name, count]) => `${name} ${count}`);
  return [
    ...(rewards.length > 0 ? [`rewards       ${rewards.join(' · ')}`] : []),
    ...(late.length > 0 ? [`out of time   ${late.join(' · ')} rollouts of the newest step (on_timeout)`] : []),
    ...(pools.length > 0 ? [`pools         ${pools.join(' · ')}`] : []),
  ];
}

function describeStatus(
  status: RunStatus,
  workflow: string,
  { retries, branches, curves }: Pick<StatusReport, 'retries' | 'branches' | 'curves'>,
): string[] {
  const waiting = [
    ...status.waitingOn.map(({ what, since }) => `  ${what}, since ${since}`),
    ...retries.map((retry) => `  ${retry}`),
  ];
  // A terminated workflow could not update its phase itself.
  const phase = workflow === 'running' || status.phase === 'finished' ? status.phase : 'stopped';
  return [
    `${status.run}: ${phase} (workflow ${workflow}), step ${status.step} of ${status.maxSteps}, lineage ${status.lineage}`,
    ...(status.pausedBecause
      ? [`paused because: ${status.pausedBecause}`, `continue with npx ratchet-rl resume ${status.run}`]
      : []),
    ...describeFigures(
      { ...status, ...(curves && joinedCurves(curves, status)) },
      status.phase === 'training' && workflow === 'running',
    ),
    `policy        ${status.policyDigest?.slice(0, 12) ?? 'none yet'}`,
    `learning rate ${status.learningRate} (peak)`,
    `files         ${status.store}`,
    ...(status.owner === undefined ? [] : [`owner         ${ownerText(status.owner)}`]),
    ...(workflow === 'running' ? describeEnvironments(status.latest) : []),
    ...Object.values(status.regressions).map(({ text }) => text),
    ...(status.progress.quarantinedServers ?? []).map(
      (server) => `canary: ${server} is quarantined, and asked for nothing`,
    ),
    ...(workflow === 'running' ? (status.workersAway ?? []) : []).map(
      ({ since, why }) => `passed over   since ${since}: ${why}`,
    ),
    ...describePrompts(status, branches, workflow === 'running'),
    ...(workflow === 'running' ? describeInPlay(status.progress) : []),
    ...(workflow === 'running' && waiting.length > 0 ? ['waiting on:', ...waiting] : []),
  ];
}
