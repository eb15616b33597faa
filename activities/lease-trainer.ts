import { Context } from '@temporalio/activity';
import { RatchetError } from '../core/errors.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import { claimTrainer } from './trainer-claims.ts';
import type { PolicyTrainer } from '../learn/policy-trainer.ts';
import type { ProcessLease } from './around/process-lease.ts';

/** Signal to a run that a GPU worker now holds it. */
export interface TrainerLeased {
  readonly epoch: number;
  /** Names the queues of the process: `trainerQueues(holder)`. */
  readonly holder: string;
}

interface LeaseTrainerInput {
  readonly run: RunHandle;
  readonly workflowId: string;
  readonly epoch: number;
}

/**
 * Holds this process for a run for as long as it heartbeats: its failure, or a missed heartbeat, means that the host is
 * lost. If two processes have one epoch, one holds and the other fails. Its end leaves nothing with the trainer that another
 * process would wait for.
 */
export const createLeaseTrainer =
  (
    lease: ProcessLease,
    tell: (workflowId: string, held: TrainerLeased) => Promise<void>,
    trainer: Pick<PolicyTrainer, 'rest'>,
  ) =>
  async ({ run, workflowId, epoch }: LeaseTrainerInput): Promise<void> =>
    withHeartbeat(async () => {
      const { cancelled } = Context.current();
      const { ousted, leave } = lease.take(run, { workflowId, epoch });
      try {
        const { holder } = lease;
        await claimTrainer(run, { epoch, holder });
        await tell(workflowId, { epoch, holder });
        const end = new Promise<void>((resolve) => ousted.addEventListener('abort', () => resolve(), { once: true }));
        await Promise.race([end, cancelled]);
        if (ousted.reason instanceof RatchetError) throw ousted.reason;
      } finally {
        leave();
        if (lease.isFree) trainer.rest();
      }
    });

/**
 * Ends a hold at once. Its cancellation reaches the process with a heartbeat, which may be half a minute away, and the next
 * run of the pool waits for it. A second time, or under a later epoch, it ends nothing.
 */
export const createGiveBackTrainer =
  (lease: Pick<ProcessLease, 'giveBack'>) =>
  ({ run, epoch }: Pick<LeaseTrainerInput, 'run' | 'epoch'>): Promise<void> => {
    lease.giveBack(run, epoch);
    return Promise.resolve();
  };
