import type { RunSpec } from './run-spec.ts';

/** Estimates how much a run samples, trains and stores, before it begins. */

export interface RunPlan {
  readonly steps: number;
  readonly groupsPerStep: number;
  readonly rolloutsPerStep: number;
  /** Rollouts of a step's first sampling round; filters may require more rounds. */
  readonly sampledPerStep: number;
  readonly evaluations: number;
  /** Rollouts of one evaluation; null if the number of held-out examples is unknown. */
  readonly evalRollouts: number | null;
  /** Upper bounds: every turn as long as it may be. A rollout of several turns may have as many times more. */
  readonly tokens: { readonly perTurn: number; readonly perStep: number; readonly perRun: number };
  readonly disk: DiskPlan;
}

/** Bytes in the store when the run has ended. */
interface DiskPlan {
  /** null where the size of the model is not known. */
  readonly checkpoints: number | null;
  readonly checkpointCount: number;
  readonly rollouts: number;
  readonly batches: number;
}

export interface ModelCounts {
  readonly parameterCount: number;
  /** null if all weights are trained. */
  readonly adapterCount: number | null;
}

export interface PlanInput {
  /** null if unknown. */
  readonly model: ModelCounts | null;
  /** Held-out examples by evaluation environment, in the order of the spec; null if unknown. */
  readonly heldOut: readonly (number | null)[];
}

/**
 * A rollout's bytes in the store, as JSON: ids, logprobs with nine digits and the text, once as sampled and once with
 * its reward. A batch repeats it without the text.
 */
const rolloutBytes = { each: 300, perToken: 24, copies: 2 };
const batchBytes = { each: 200, perToken: 22 };

export function planRun(spec: RunSpec, { model, heldOut }: PlanInput): RunPlan {
  const { maxSteps: steps, batchSize, rolloutsPerExample, oversamplingFactor, sampling, data } = spec;
  const groupsPerStep = batchSize / rolloutsPerExample;
  const isSampled = steps > 0 && !data;
  const sampledPerStep = !isSampled ? 0 : Math.ceil(groupsPerStep * oversamplingFactor) * rolloutsPerExample;
  const perStep = sampledPerStep * sampling.maxTokens;
  const evaluations = evaluationCount(spec);
  const checkpointCount = checkpointsKept(spec);
  return {
    steps,
    groupsPerStep: isSampled ? groupsPerStep : 0,
    rolloutsPerStep: isSampled ? batchSize : 0,
    sampledPerStep,
    evaluations,
    evalRollouts: rolloutsOfEvaluation(spec, heldOut),
    tokens: { perTurn: sampling.maxTokens, perStep, perRun: steps * perStep },
    disk: {
      checkpoints: model && checkpointCount * checkpointBytes(model) + baseBytes(model),
      checkpointCount,
      rollouts:
        steps * sampledPerStep * rolloutBytes.copies * (rolloutBytes.each + rolloutBytes.perToken * sampling.maxTokens),
      batches: steps * bytesOfBatch(spec),
    },
  };
}

/** Upper bound. */
function bytesOfBatch({ batchSize, sampling, data }: RunSpec): number {
  if (data) return data.batchSize * batchBytes.perToken * data.seqLen;
  return batchSize * (batchBytes.each + batchBytes.perToken * sampling.maxTokens);
}

/** At step 0 unless skipped, at every multiple of the interval, and after the last step. */
function evaluationCount({ eval: evaluation, maxSteps }: RunSpec): number {
  if (evaluation === null) return 0;
  const { interval, skipFirstStep } = evaluation;
  const last = maxSteps % interval === 0 ? 0 : 1;
  return (skipFirstStep ? 0 : 1) + Math.floor(maxSteps / interval) + last;
}

function rolloutsOfEvaluation({ eval: evaluation }: RunSpec, heldOut: readonly (number | null)[]): number | null {
  let total = 0;
  for (const [i, { numExamples, rolloutsPerExample }] of (evaluation?.environments ?? []).entries()) {
    const there = heldOut[i] ?? null;
    if (numExamples === -1 && there === null) return null;
    const count = numExamples === -1 ? there! : Math.min(numExamples, there ?? numExamples);
    total += count * rolloutsPerExample;
  }
  return total;
}

/** Step 0, the newest ones, and the permanent ones. */
function checkpointsKept({ checkpoints, maxSteps }: RunSpec): number {
  const { interval, keepLast, keepInterval } = checkpoints;
  const made = new Set([0, maxSteps]);
  for (let step = interval; step < maxSteps; step += interval) made.add(step);
  const steps = [...made].sort((a, b) => a - b);
  const kept = steps.filter(
    (step, i) => step === 0 || i >= steps.length - keepLast || (keepInterval !== null && step % keepInterval === 0),
  );
  return kept.length;
}

/** Trained weights or adapters in float32, and Adam's two moments. */
function checkpointBytes({ parameterCount, adapterCount }: ModelCounts): number {
  return (adapterCount ?? parameterCount) * (4 + 8);
}

/** Adapters are stored with their base, once. */
function baseBytes({ parameterCount, adapterCount }: ModelCounts): number {
  return adapterCount === null ? 0 : parameterCount * 4;
}
