import {
  condition,
  continueAsNew,
  getExternalWorkflowHandle,
  isCancellation,
  log,
  setCurrentDetails,
  setHandler,
  upsertMemo,
} from '@temporalio/workflow';
import { Pool, withPoolSettings } from '../core/fleet/pool.ts';
import type { PoolSettings, PoolState, TurnNotice } from '../core/fleet/pool-types.ts';
import { memoKeys } from '../core/names.ts';
import { plainMarkdown } from '../core/markdown.ts';
import { onSignal } from './control/listen.ts';
import {
  poolChangesQuery,
  poolHolderQuery,
  poolSetUpdate,
  poolSharesQuery,
  poolStatusQuery,
  poolWhyQuery,
  runStandingSignal,
  trainerStandingSignal,
  turnSignal,
} from './control/pool-messages.ts';
import { type CarriedPoolRecord, PoolRecord } from './control/pool-record.ts';
import { refusal } from './control/refusal.ts';
import { isHistoryLong } from './history-length.ts';
import { readPoolInput } from './inputs.ts';

export interface PoolInput {
  readonly name: string;
  /** Of an execution by other code, which this one takes over. */
  readonly settings?: PoolSettings;
  /** Of the execution before this one. */
  readonly state?: PoolState;
  readonly record?: CarriedPoolRecord;
}

/**
 * Gives the trainers of a pool to runs, for as long as there is a pool: it begins with the first run or GPU worker that
 * names it, and does not end. What it decides, and why, is in `core/fleet/`.
 */
export async function pool(...given: [PoolInput]): Promise<never> {
  const { name, settings, state, record: carried } = readPoolInput(given);
  const own = new Pool(name, state ?? (settings === undefined ? {} : { settings }), Date.now());
  const record = new PoolRecord(name, carried);
  let hasNews = true;
  const hears = (said: () => void): void => {
    said();
    hasNews = true;
  };
  const ignore = (problem: string): void => log.warn(problem);
  onSignal(
    runStandingSignal,
    (standing) => {
      record.hears(standing.store);
      hears(() => own.run(standing, Date.now()));
    },
    ignore,
  );
  onSignal(
    trainerStandingSignal,
    (standing) => {
      const before = own.settings;
      hears(() => own.trainer(standing, Date.now()));
      if (own.settings !== before) upsertMemo({ [memoKeys.poolSettings]: own.settings });
    },
    ignore,
  );
  setHandler(poolStatusQuery, () => own.status(Date.now()));
  setHandler(poolSharesQuery, () => own.shares());
  setHandler(poolWhyQuery, (run) => own.whyWaits(run, Date.now()));
  setHandler(poolHolderQuery, (trainer) => own.whoHas(trainer));
  setHandler(poolChangesQuery, () => record.changes);
  record.asked.on(
    poolSetUpdate,
    (asked) => {
      const changed = withPoolSettings(own.settings, asked);
      if (typeof changed === 'string') throw refusal(changed);
      hears(() => own.set(changed, Date.now()));
      upsertMemo({ [memoKeys.poolSettings]: changed });
      return describeSettings(changed);
    },
    (asked) => {
      const changed = withPoolSettings(own.settings, asked);
      if (typeof changed === 'string') throw refusal(changed);
    },
  );

  for (;;) {
    hasNews = false;
    const { notices, wakeAt } = own.decide(Date.now());
    await Promise.all(
      [...notices].map(async ([run, notice]) => {
        if (!(await hasHeard(run, notice))) hears(() => own.forget(run, Date.now()));
      }),
    );
    setCurrentDetails(details(own));
    if (isHistoryLong()) {
      await condition(() => record.asked.areDone);
      return continueAsNew<typeof pool>({ name, state: own.carry(), record: record.carry() });
    }
    if (wakeAt === null) await condition(() => hasNews);
    else await condition(() => hasNews, Math.max(1, wakeAt - Date.now()));
  }
}

/** False for a run that is over. */
async function hasHeard(run: string, notice: TurnNotice): Promise<boolean> {
  try {
    await getExternalWorkflowHandle(run).signal(turnSignal, notice);
    return true;
  } catch (error) {
    if (isCancellation(error)) throw error;
    return false;
  }
}

function describeSettings({ slice, aging, teams }: PoolSettings): string {
  const ofTeams = Object.entries(teams).map(
    ([team, { quota, weight }]) => `${team}.quota=${quota ?? 'none'} ${team}.weight=${weight}`,
  );
  return [`slice=${slice}`, `aging=${aging}`, ...ofTeams].join(' ');
}

/** For the Temporal UI. */
function details(own: Pool): string {
  const { trainers, waiting } = own.status(Date.now());
  const lines = [
    ...trainers.map(({ trainer, run }) => `${trainer}: ${run ?? 'free'}`),
    ...waiting.map(({ run, why }) => `${run} waits: ${why}`),
  ];
  const more = lines.length > linesShown ? [`and ${lines.length - linesShown} more: npx ratchet-rl queue`] : [];
  return [...lines.slice(0, linesShown), ...more].map((line) => `- ${plainMarkdown(line)}`).join('\n');
}

const linesShown = 40;
