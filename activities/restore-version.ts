import { RatchetError } from '../core/errors.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import { versionName } from '../core/names.ts';
import { EngineFailures } from '../core/rl/engine-failures.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import type { Recovery } from '../learn/policy-trainer.ts';
import type { TrainDependencies } from './train-batch.ts';
import { goingOn } from './trainer-claims.ts';

/**
 * Makes the weights of a committed version again, when retention has removed them: from the newest checkpoint before it
 * and the stored batches. The same bytes as they were, or it refuses; twice is once.
 */
export const createRestoreVersion = ({ trainer, lease }: Pick<TrainDependencies, 'trainer' | 'lease'>) => {
  const failures = new EngineFailures();
  return async (input: {
    readonly run: RunHandle;
    readonly policy: PolicyVersion;
    readonly epoch: number;
  }): Promise<Recovery | null> => {
    const { run, policy } = input;
    const work = `${run.store}${run.name}/${policy.digest}`;
    return withHeartbeat(
      () => failures.during(work, `making ${versionName(policy)} again`, attempt),
      () => ({ waitsFor: trainer.waitsFor() }),
    );

    async function attempt(): Promise<Recovery | null> {
      const mayGoOn = goingOn(run, input.epoch, lease);
      await mayGoOn();
      const recovery = await trainer.bringTo(run, policy, mayGoOn);
      // Compared before anything is written: other weights must not be stored under the commit's key.
      if (recovery?.differs) throw notTheSame(run, policy, recovery.differs.digest);
      await mayGoOn();
      const made = await trainer.exportTo(run, policy.weights);
      if (made.sums.sha256 === policy.sums.sha256) return recovery;
      throw notTheSame(run, policy, made.file.sha256);
    }
  };
};

function notTheSame(run: RunHandle, { file, digest }: PolicyVersion, got: string): RatchetError {
  return new RatchetError(
    'CheckpointDamaged',
    `${file.key} made again from stored batches is ${got.slice(0, 12)}…, its commit says ${digest.slice(0, 12)}… (file ${file.sha256.slice(0, 12)}…). Choose a step that has a checkpoint: npx ratchet-rl checkpoints ${run.name}`,
  );
}
