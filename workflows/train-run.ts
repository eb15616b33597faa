import { CancellationScope, ContinueAsNew, isCancellation } from '@temporalio/workflow';
import type { TrainRunInput } from '../activities/index.ts';
import { rewoundLine, stepLine } from './control/lines.ts';
import { RewindAsked } from './control/run-control.ts';
import { recordingItsCancel } from './beside/recorded.ts';
import { readTrainRunInput } from './inputs.ts';
import { isHistoryLong } from './history-length.ts';
import { eager } from './options.ts';
import { continueRun, finish, type RunSummary, whyItFails } from './run-end.ts';
import { assemble, type RunParts } from './run-parts.ts';
import { openOrContinue, type ContinuedRun, type OpenedStart } from './run-start.ts';
import { firstState, stateAfter } from './step/run-states.ts';
import { committedMetrics, trainFigures } from './step/step-metrics.ts';
import { stepOutcomes } from './step/step-outcomes.ts';
import type { TrainedStep } from './step/training.ts';

export type { RunSummary } from './run-end.ts';

/**
 * One RL run. Each turn of the loop is one optimizer step; every await is durable. A step has happened once its commit
 * is in the store: a starting run finds the newest one and continues from there, whatever happened to Temporal's state.
 */
export async function trainRun(...given: [TrainRunInput | ContinuedRun]): Promise<RunSummary> {
  const opened = await openOrContinue(readTrainRunInput(given));
  const parts = assemble(opened);
  const { control, head, rollouts, training, weights, checkpoints, evals, branches, beside, lease } = parts;
  const of = { ...parts.run, kind: 'run' } as const;
  const untilItsEnd = (work: () => Promise<RunSummary>) => recordingItsCancel(of, () => branches.endingWith(work));
  return untilItsEnd(async () => {
    try {
      if (!head.isCommitted) await makeFirstVersion(parts);
      await takeUp(parts, opened);
      while (head.step < control.lastStep) {
        await control.untilResumed();
        beside.throwIfFailed();
        if (isHistoryLong() && rollouts.mayBeLeft) return await continueRun(parts, opened);
        const step = head.step + 1;
        const startedAt = Date.now();
        const batch = await rollouts.collect(step);
        const waitedS = (Date.now() - startedAt) / 1000;
        rollouts.sampleAhead(step);

        if (lease.takesTurns) await lease.beginStep(step);
        const trained = await training.train(step, batch, rollouts);
        const isEvalDue = evals.isDue(step);
        const stepS = (Date.now() - startedAt) / 1000;
        const { isPublished } = await commit(parts, trained, { waitedS, stepS, isEvalDue });
        weights.serve(head.policy, trained.optimizer, isPublished);
        if (lease.takesTurns) lease.endStep(parts.publishing.allBefore(), trained.snapshot);
        tellStep(parts, trained, stepS);

        if (trained.snapshot) checkpoints.seal(step, head.parent);
        if (isEvalDue) evals.evaluate(step);
        branches.begin(step);
      }
      return (await finish(parts)) ?? (await continueRun(parts, opened));
    } catch (error) {
      if (error instanceof RewindAsked) return continueRun(parts, opened);
      if (isCancellation(error)) await evals.leaveAll();
      if (!(error instanceof ContinueAsNew)) await CancellationScope.nonCancellable(() => rollouts.leave());
      if (!(error instanceof ContinueAsNew) && lease.takesTurns)
        await CancellationScope.nonCancellable(() => lease.leave());
      if (!(error instanceof ContinueAsNew)) await CancellationScope.nonCancellable(() => weights.leave());
      throw await whyItFails(error, parts);
    }
  });
}

/** v0: committed and sealed before anything is sampled from it. */
async function makeFirstVersion({
  run,
  spec,
  control,
  head,
  training,
  checkpoints,
  evals,
  branches,
  account,
  lease,
  publishing,
}: RunParts) {
  if (lease.takesTurns) await lease.beginStep(0);
  const { policy, loss } = await training.warmUp();
  const state = firstState({
    run,
    spec,
    policy,
    overrides: control.overrides,
    pendingEvals: evals.isDue(0) ? [0] : [],
    branches: branches.toCommit(0),
  });
  const metrics = { ...(loss === null ? {} : { 'sft/loss': loss }), ...account.take() };
  const committing = head.commit(state, { plan: null, optimizer: null, outcomes: stepOutcomes(0, []), metrics });
  await control.waitFor('commit step 0', committing);
  await checkpoints.sealFirst();
  if (lease.takesTurns) lease.endStep(publishing.allBefore(), true);
}

/** Resumes what is due at the newest commit before the next step: weights at the servers, evaluations, branches. */
async function takeUp(parts: RunParts, { opened, start, carried }: OpenedStart): Promise<void> {
  const { run, control, head, training, weights, evals, branches } = parts;
  const { step } = head;
  control.at('training', step, head.policy);
  if (carried?.rewindRefused !== undefined) control.emit('warning', step, carried.rewindRefused);
  if (start?.begins) {
    control.publish(step, null);
    control.emit('rewound', step, rewoundLine(run.lineage, step));
  }
  // If this lineage made the step itself, only its upload was interrupted, which is repeated next.
  if (opened.weightsAreGone && start?.begins) await training.restore();
  if (start && !carried) await publishWhatWasCutOff(parts);
  evals.resume(carried?.evaluating ?? []);
  weights.begin(head.policy);
  if (!carried || carried.rewind) for (const due of head.state.pendingEvals) evals.evaluate(due);
  branches.goOn(head.state.pendingBranches ?? []);
}

/** The run ended before these versions were in the store: they are made again from stored batches. */
async function publishWhatWasCutOff({ run, spec, control, head, publishing }: RunParts): Promise<void> {
  const { step, pendingEvals, pendingBranches = [] } = head.state;
  // A step's groups are collected once a version this near is served: older ones were in the store, and may be gone.
  const oldest = step - spec.maxAsyncLevel - 1;
  const due = [...pendingEvals, ...pendingBranches.map((branch) => branch.step)];
  const pending = [...new Set(due)].filter((one) => one >= oldest && one < step);
  const steps = [...pending.toSorted((a, b) => a - b), step];
  const finding = eager.findUnpublished({ run, steps });
  for (const policy of await control.waitFor('find the versions whose upload was cut off', finding)) {
    head.replace(policy, await publishing.publish(policy, null));
  }
}

/** The commit is the fence: before it the step has not happened, after it no worker trains it again. */
async function commit(
  { spec, control, head, serving, evals, branches, account, weights }: RunParts,
  trained: TrainedStep,
  { waitedS, stepS, isEvalDue }: { readonly waitedS: number; readonly stepS: number; readonly isEvalDue: boolean },
): Promise<{ isPublished: boolean }> {
  const { attempts, policy, plan, optimizer, pendingAt, engine, metrics } = trained;
  const collected = attempts.at(-1)!;
  for (const { lost } of attempts) account.add(lost);
  const state = stateAfter(head.state, {
    spec,
    policy,
    collected,
    metrics,
    overrides: control.overrides,
    pendingEvals: isEvalDue ? [...evals.pendingSteps, policy.step] : evals.pendingSteps,
    branches: branches.toCommit(policy.step),
  });
  const committing = head.commit(state, {
    plan,
    optimizer,
    pendingAt,
    engine,
    outcomes: stepOutcomes(policy.step, attempts),
    metrics: committedMetrics({
      collected,
      trained,
      klBeta: state.klBeta,
      waitedS,
      evalWaitS: serving.takeWaitedS(),
      stepS,
      account: { ...account.take(), ...weights.figures() },
    }),
  });
  return control.waitFor(`commit step ${policy.step}`, committing);
}

function tellStep({ control, head }: RunParts, trained: TrainedStep, stepS: number): void {
  const collected = trained.attempts.at(-1)!;
  const figures = { ...collected.figures, ...trainFigures(trained), train_s: trained.seconds, step_s: stepS };
  control.at('training', head.step, head.policy);
  control.publish(head.step, collected.figures['reward'] ?? null);
  control.emit('step', head.step, stepLine(head.step, control.maxSteps, figures), figures);
}
