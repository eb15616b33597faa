/**
 * `ratchet-rl/testing`: contracts of a trainer and an inference, as suites of `node:test` over a factory. Ours are run
 * by the same suites. docs/guide/adapters.md shows how.
 */
export type { CodeRef, LoraSpec, LossSettings, OptimizerSpec } from '../../config/run-spec.ts';
export { batchOf, type TrainBatch, type TrainSample } from '../../core/rl/learning/batch.ts';
export type { PolicyVersion, StepPlan } from '../../core/rl/run-state.ts';
export { type ErrorCode, RatchetError } from '../../core/errors.ts';
export type { HoldOutcome, Inference, Sample, SampleRequest, ScoreRequest } from '../inference/index.ts';
export type { ServedPolicy } from '../../core/rl/run-state.ts';
export type { SftOutcome, TrainedPart, Trainer, TrainOutcome } from '../trainer/index.ts';
export { inferenceContract, type InferencePromises, type InferenceUnderTest } from './inference-contract.ts';
export {
  type ContractLoss,
  contractLosses,
  engineLogprobs,
  lossOf,
  planOf,
  rowsOf,
  temporaryFolder,
  trainVersions,
  type VersionFolders,
  writePreset,
} from './material.ts';
export { trainerContract, type TrainerPromises, type TrainerUnderTest } from './trainer-contract.ts';
