import { RatchetError } from '../core/errors.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import { withHeartbeat } from './heartbeat.ts';
import type { PolicyTrainer, Recovery } from './policy-trainer.ts';

/**
 * Makes the weights of a committed version again, when retention has removed them: from the newest checkpoint before it
 * and the stored batches. The same bytes as they were, or it refuses; twice is once.
 */
export const createRestoreVersion =
  (trainer: PolicyTrainer) =>
  async (input: { readonly run: RunHandle; readonly policy: PolicyVersion }): Promise<Recovery | null> =>
    withHeartbeat(async () => {
      const { run, policy } = input;
      const recovery = await trainer.bringTo(run, policy);
      const made = await trainer.exportTo(run, policy.weights);
      if (made.sha256 === policy.file.sha256) return recovery;
      throw new RatchetError(
        'CheckpointDamaged',
        `${made.key} made again from stored batches has sha256 ${made.sha256.slice(0, 12)}…, its commit says ${policy.file.sha256.slice(0, 12)}…. Choose a step that has a checkpoint: ratchet checkpoints ${run.name}`,
      );
    });
