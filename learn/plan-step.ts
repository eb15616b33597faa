import { hash32 } from '../core/random.ts';
import { learningRateOf } from '../core/rl/sampling/schedule.ts';
import { RatchetError } from '../core/errors.ts';
import type { ObjectRef, Overrides, PolicyVersion, RunHandle, StepPlan, TaughtBatch } from '../core/rl/run-state.ts';
import { sha256 } from '../store/file-store.ts';
import { isRecord, type Shape } from '../store/objects.ts';
import { layout } from '../runs/layout.ts';
import { refuseBehind } from '../runs/lineages/lineages.ts';
import { isRef, isVersion } from '../runs/forms/record-shapes.ts';
import { decodeStored, encodeStored } from '../runs/forms/stored-forms.ts';
import { readPacked } from '../runs/rollouts/batches.ts';
import { specOf, storeOf } from '../runs/run-access.ts';
import { trainedTokens } from '../core/rl/metrics.ts';

/** A step as the workflow asks for it. */
export interface StepToPlan {
  readonly run: RunHandle;
  readonly step: number;
  /** From 1: batches of the step that were refused are planned before it. */
  readonly attempt: number;
  readonly from: PolicyVersion;
  readonly reference: PolicyVersion;
  readonly klBeta: number;
  readonly overrides: Overrides;
  readonly packed: ObjectRef;
  readonly taught?: TaughtBatch | undefined;
  /** In place of the config's: the step ran out of memory. */
  readonly halvedTo?: number | undefined;
  /** The version gets its optimizer's state whatever the interval says: another run has the trainer after this step. */
  readonly seals?: true;
}

/** Part of a plan that the run continues with. */
export interface PlannedStep {
  readonly plan: ObjectRef;
  readonly learningRate: number;
  /** Whether the optimizer's state is stored with the version. */
  readonly snapshot: boolean;
}

/** Fixes everything that decides the step's bits. A plan that is already stored for these groups stands. */
export async function planStep(input: StepToPlan): Promise<PlannedStep> {
  const { run, step, attempt, from, reference, klBeta, overrides } = input;
  await refuseBehind(run, step);
  const spec = await specOf(run);
  const store = storeOf(run);
  const { metrics, prompts } = await readPacked(run, input.packed);
  if (metrics[trainedTokens] === 0) {
    throw new RatchetError(
      'Unsupported',
      `Step ${step} was asked to train ${input.packed.key}, in which no token counts in the loss: there is nothing to learn from it.`,
    );
  }
  const maxSteps = overrides.maxSteps ?? spec.maxSteps;
  const interval = overrides.checkpointInterval ?? spec.checkpoints.interval;
  const proposal: StepPlan = {
    lineage: run.lineage,
    step,
    attempt,
    from,
    packed: input.packed,
    ...(prompts ? { prompts } : {}),
    ...(input.taught ? { taught: { logprobs: input.taught.logprobs, teacher: input.taught.teacher } } : {}),
    learningRate: learningRateOf(step, spec, overrides),
    temperature: spec.sampling.temperature,
    klBeta,
    reference,
    loss: spec.loss,
    ...(spec.distillation ? { distillation: spec.distillation } : {}),
    optimizer: { ...spec.optimizer, maxGradNorm: overrides.maxGradNorm ?? spec.optimizer.maxGradNorm },
    numIterations: spec.numIterations,
    ...(spec.numMiniBatches === 1 ? {} : { numMiniBatches: spec.numMiniBatches }),
    microBatchSize: input.halvedTo ?? spec.microBatchSize,
    ...(input.halvedTo === undefined ? {} : { isHalved: true }),
    ...(spec.lora === null ? {} : { dropoutSeed: hash32('dropout', spec.seed, run.lineage, step) }),
    snapshot: step % interval === 0 || step === maxSteps || step === overrides.stopAfter || input.seals === true,
  };
  const key = layout.plan(run.lineage, step, attempt, input.packed.sha256, from.replay);
  const { bytes } = await store.putIfAbsent(key, encodeStored(key, proposal));
  const plan = decodeStored<StepPlan>(bytes, key, planShape);
  const ref = { key, sha256: sha256(bytes), bytes: bytes.byteLength };
  return { plan: ref, learningRate: plan.learningRate, snapshot: plan.snapshot };
}

const planShape: Shape = ({ step, from, packed, learningRate, reference, loss, optimizer, snapshot }) => ({
  'a step': Number.isSafeInteger(step),
  'the versions it is trained from and compared with': isVersion(from) && isVersion(reference),
  'its batch': isRef(packed),
  'a learning rate, a loss and an optimizer':
    typeof learningRate === 'number' && isRecord(loss) && isRecord(optimizer) && typeof snapshot === 'boolean',
});
