import { hash32 } from '../random.ts';
import type { Overrides } from '../rl/run-state.ts';

/*
 * Rollout workers take work from the queue of their pool when they have room for it. Who comes next is decided by the
 * Temporal server, by the priority of each piece of work: first by key, and among those of one key by fair queueing.
 */

/** The `Priority` of Temporal. A server that orders by arrival ignores it. */
export interface RolloutPriority {
  /** From 1, which comes first, to 5. */
  readonly priorityKey: number;
  /** All work with this key together has one share. */
  readonly fairnessKey: string;
  /** Cost of this piece of work, the other way round: one of half the weight counts twice. */
  readonly fairnessWeight: number;
}

/** Temporal's default, of five. */
const priorityKeyUsual = 3;
/** Bytes of a key; the server refuses the workflow task that has a longer one. */
const keyBytesMax = 64;
/** Bounds of Temporal. */
const [weightMin, weightMax] = [0.001, 1_000];
/** Rollouts of a piece of work that has the weight 1: a weight is then within bounds for 1 to 32,000 rollouts. */
const rolloutsOfWeight1 = 32;

/**
 * The priority of a piece of generation. `of`: id of the workflow whose share it counts for. `priority`: the run's,
 * of any size; 0 when missing. `share`: relative to other workflows; 1 when missing. `rollouts`: what it costs.
 */
export function rolloutPriority(work: {
  readonly of: string;
  readonly priority?: number | undefined;
  readonly share?: number | undefined;
  readonly rollouts: number;
}): RolloutPriority {
  const { of, priority = 0, share = 1, rollouts } = work;
  return {
    priorityKey: Math.min(2 * priorityKeyUsual - 1, Math.max(1, priorityKeyUsual - priority)),
    fairnessKey: keyOf(of),
    fairnessWeight: Math.min(weightMax, Math.max(weightMin, (rolloutsOfWeight1 * share) / Math.max(1, rollouts))),
  };
}

/**
 * Share of a run that waits for a trainer, relative to what it has with one. It samples for the beginning of its turn, and
 * meanwhile a trainer of another run may have nothing to train on.
 */
export const shareWhileWaiting = 1 / 4;

/** Printable ASCII as it is. Two ids of one key would share a turn, and nothing worse. */
function keyOf(workflowId: string): string {
  if (/^[ -~]*$/.test(workflowId) && workflowId.length <= keyBytesMax) return workflowId;
  const digits = hash32(workflowId).toString(16).padStart(8, '0');
  return `${workflowId.replaceAll(/[^ -~]/g, '?').slice(0, keyBytesMax - 1 - digits.length)}~${digits}`;
}

/** The priority of a run in its pool by now; 0 for one of no pool. */
export function queuePriorityOf(
  queue: { readonly priority: number } | undefined,
  overrides: Pick<Overrides, 'queuePriority'>,
): number {
  return queue === undefined ? 0 : (overrides.queuePriority ?? queue.priority);
}
