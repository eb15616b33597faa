import type { ObjectRef, PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import { isStored, type TrainDependencies } from './train-batch.ts';
import { requireNewestClaim } from './trainer-claims.ts';

/**
 * Uploads a committed version that is pending in this process, beside the next step. False when it is not here (the
 * process that made it is gone): then it is made again first. Idempotent.
 */
export const createPublishVersion =
  ({ pending, lease: { holder } }: Pick<TrainDependencies, 'pending' | 'lease'>) =>
  async (input: {
    readonly run: RunHandle;
    readonly policy: PolicyVersion;
    readonly optimizer: ObjectRef | null;
    readonly epoch: number;
  }): Promise<boolean> =>
    withHeartbeat(async () => {
      const { run, policy, optimizer, epoch } = input;
      if (await pending.publish(run, policy, () => requireNewestClaim(run, { epoch, holder }))) return true;
      return isStored(run, policy, optimizer);
    });
