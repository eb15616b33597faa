import { Context } from '@temporalio/activity';
import type { RunStanding } from '../core/fleet/pool-types.ts';
import { poolWhyQueryName, runStandingSignalName } from '../core/names.ts';
import { askOpenPool, tellPool } from './around/tell-pool.ts';
import { outsideOfActivities } from './around/tell-workflow.ts';

/** Tells a pool how a run stands, and begins the pool's workflow if there is none. Idempotent: a standing has a number. */
export async function tellStanding({
  pool,
  standing,
}: {
  readonly pool: string;
  readonly standing: RunStanding;
}): Promise<void> {
  const { client } = Context.current();
  await outsideOfActivities(() => tellPool(client, pool, runStandingSignalName, standing));
}

/** Why a run waits, in the pool's words; null when the pool does not know that it waits. */
export async function describeTurn({
  pool,
  run,
}: {
  readonly pool: string;
  readonly run: string;
}): Promise<string | null> {
  const { client } = Context.current();
  return askOpenPool<string, [string]>(client, pool, poolWhyQueryName, run);
}
