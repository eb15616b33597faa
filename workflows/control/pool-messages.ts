import { defineQuery, defineSignal, defineUpdate } from '@temporalio/workflow';
import type {
  KnownTrainer,
  PoolStatus,
  RunStanding,
  TrainerStanding,
  TurnNotice,
} from '../../core/fleet/pool-types.ts';
import type { RunChange } from '../../core/rl/changes.ts';
import {
  poolChangesQueryName,
  poolHolderQueryName,
  poolSharesQueryName,
  poolStatusQueryName,
  poolWhyQueryName,
  runStandingSignalName,
  trainerStandingSignalName,
  turnSignalName,
} from '../../core/names.ts';

/** Messages between a pool, its runs and its GPU workers. */

/** From a run to its pool. */
export const runStandingSignal = defineSignal<[RunStanding], typeof runStandingSignalName>(runStandingSignalName);
/** From a GPU worker to its pool. */
export const trainerStandingSignal = defineSignal<[TrainerStanding], typeof trainerStandingSignalName>(
  trainerStandingSignalName,
);
/** From a pool to a run. */
export const turnSignal = defineSignal<[TurnNotice], typeof turnSignalName>(turnSignalName);

export const poolStatusQuery = defineQuery<PoolStatus>(poolStatusQueryName);
/** Maps each team to the share that each of its runs has in the pool's rollout workers, relative to other runs. */
export const poolSharesQuery = defineQuery<Readonly<Record<string, number>>>(poolSharesQueryName);
export const poolWhyQuery = defineQuery<string | null, [run: string]>(poolWhyQueryName);
export const poolHolderQuery = defineQuery<KnownTrainer | null, [trainer: string]>(poolHolderQueryName);
/** The newest changes that people made, oldest first. */
export const poolChangesQuery = defineQuery<readonly RunChange[]>(poolChangesQueryName);
/** Changes settings of the pool; returns them in words. */
export const poolSetUpdate = defineUpdate<string, [settings: Readonly<Record<string, number | null>>]>('set');
