import type { GenerateDependencies } from '../play/policy/asked-model.ts';
import { createGiveBackTrainer, createLeaseTrainer, type TrainerLeased } from './lease-trainer.ts';
import { createPublishVersion } from './publish-version.ts';
import { createRestoreVersion } from './restore-version.ts';
import { createRemakeVersion, createTrainBatch, type TrainDependencies } from './train-batch.ts';
import { createWarmUp } from './warm-up.ts';

/** Queue `ratchet-train`, and the GPU process's own for holding it again: the process is taken for a run. */
export const createLeaseActivities = (
  { lease, trainer }: TrainDependencies,
  tell: (workflowId: string, held: TrainerLeased) => Promise<void>,
) => ({ leaseTrainer: createLeaseTrainer(lease, tell, trainer) });
export type LeaseActivities = ReturnType<typeof createLeaseActivities>;

/** The process's own queue: one slot, one policy. */
export const createTrainActivities = (
  dependencies: TrainDependencies & { readonly tokenizer: GenerateDependencies['tokenizer'] },
) => ({
  warmUp: createWarmUp(dependencies, dependencies.tokenizer),
  trainBatch: createTrainBatch(dependencies),
  remakeVersion: createRemakeVersion(dependencies),
  restoreVersion: createRestoreVersion(dependencies),
  giveBackTrainer: createGiveBackTrainer(dependencies.lease),
});
export type TrainActivities = ReturnType<typeof createTrainActivities>;

/** Queue of the process for uploads, with a slot of its own: they continue while the next step trains. */
export const createUploadActivities = (dependencies: TrainDependencies) => ({
  publishVersion: createPublishVersion(dependencies),
});
export type UploadActivities = ReturnType<typeof createUploadActivities>;
