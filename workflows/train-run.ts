import { allHandlersFinished, condition, continueAsNew, workflowInfo } from '@temporalio/workflow';
import { historyEventsMax, refusedAttemptsMax } from '../core/limits.ts';
import { versionName } from '../core/names.ts';
import type { Effectiveness } from '../core/rl/effectiveness.ts';
import type { ObjectRef, PolicyVersion, RunState } from '../core/rl/run-state.ts';
import type { EvaluationSummary, Recovery, TrainRunInput, WarmUpState } from '../activities/index.ts';
import { local, opening, orchestratorFor } from './activity-options.ts';
import { awaitedLater, Beside, unlessRewind } from './beside.ts';
import { collectStep, type CollectedStep } from './collect-step.ts';
import {
  endOf,
  finishedLine,
  finishedValues,
  halvedLine,
  recoveryLines,
  rewoundLine,
  segmentAfter,
  stepLine,
  unsoundLine,
  upgradedLine,
} from './lines.ts';
import { OnlineEvals } from './online-evals.ts';
import { PromptBranches } from './prompt-branches.ts';
import { Publishing } from './publishing.ts';
import { RewindAsked, RunDesk } from './run-desk.ts';
import { openOrContinue, type ContinuedRun } from './run-start.ts';
import { ServedWeights } from './served-weights.ts';
import { ServerTurns } from './server-turns.ts';
import { committedMetrics, trainFigures } from './step-metrics.ts';
import { firstState, stateAfter, withoutBranches } from './run-states.ts';
import { stepOutcomes } from './step-outcomes.ts';
import { TrainerHold } from './trainer-hold.ts';

const evalsCarried = 10;

export interface RunSummary {
  readonly run: string;
  readonly step: number;
  readonly policyDigest: string;
  /** Folder of its weights, relative to the run's. */
  readonly weights: string;
  readonly ledger: {
    readonly issued: number;
    readonly pending: number;
    readonly counts: Readonly<Record<string, number>>;
    readonly isSound: boolean;
  };
  /** Of the lineage that the run ended in. */
  readonly effectiveness: Effectiveness;
  readonly evals: readonly EvaluationSummary[];
}

/**
 * One RL run. Each turn of the loop is one optimizer step; every await is durable. A step has happened when its commit
 * is in the store: a run that starts finds the newest one and goes on from there, whatever became of Temporal's state.
 */
export async function trainRun(input: TrainRunInput | ContinuedRun): Promise<RunSummary> {
  const { opened, start, carried, account, ...before } = await openOrContinue(input);
  const { handle: run, spec, datasets } = opened;
  const orchestrator = orchestratorFor(spec);
  const desk = new RunDesk({
    handle: run,
    spec,
    store: `${run.store.replace(/[?].*/, '')}${spec.name}/`, // without the options that only the client needs
    storeUri: run.store,
    warnings: opened.warnings,
    hasSearchAttributes: opened.hasSearchAttributes,
    overrides: before.overrides,
    pausedBecause: before.pausedBecause,
    isPausedByPerson: before.isPausedByPerson,
    events: carried?.desk.events ?? [],
    figures: before.figures,
    lost: () => account.total,
    checkRewind: (step) => opening.checkRewind.executeWithOptions({ summary: `to step ${step}` }, [{ run, step }]),
  });
  if (!carried) {
    desk.publish(start?.state.step ?? 0, null);
    for (const warning of opened.warnings) desk.tell('warning', 0, warning);
    const { learningRate } = desk.overrides;
    if (learningRate !== undefined) {
      desk.tell('warning', 0, `learning rate ${learningRate} was set while the run was running, and stays`);
    }
  }

  if (before.isTakenOver) {
    desk.tell(
      'upgraded',
      start?.state.step ?? 0,
      upgradedLine(spec.name, start?.state.step ?? 0, before.pausedBecause),
    );
  }

  const hold = new TrainerHold({ run, spec }, desk, carried?.trainer ?? null);
  desk.onLongPause = () => hold.releaseWhenIdle();
  desk.onStoodStill = (seconds) => account.stoodStill(seconds);
  hold.onLost = (epoch, seconds) => account.workerLost(epoch, seconds);
  const publishing = new Publishing(run, desk, hold, tellRecovery);
  const turns = new ServerTurns();
  const evals = new OnlineEvals({ run, spec, desk, publishing, turns, done: carried?.evals ?? [] });
  const branches = new PromptBranches({ run, spec, desk, publishing, turns, state: start?.state });
  const weights = new ServedWeights({
    run,
    spec,
    desk,
    turns,
    onServed: (policy) => (served = branches.served = policy),
  });
  /** The step in training, and rollouts asked for it meanwhile: a recovery needs none. */
  let inTraining = 0;
  let regenerated = 0;

  let { state, parent } = start ?? (await makeFirstVersion());
  desk.at('training', state.step, state.policy);
  if (carried?.rewindRefused !== undefined) desk.tell('warning', state.step, carried.rewindRefused);
  if (start?.begins) {
    desk.publish(state.step, null);
    desk.tell('rewound', state.step, rewoundLine(run.lineage, state.step));
  }
  const beside = new Beside();
  let sealing = Promise.resolve();
  let collecting: Promise<CollectedStep> | null = null;

  let served = state.policy;
  let broadcast = Promise.resolve();
  // Of a step that this lineage made itself it is the upload that was cut off: see below.
  if (opened.weightsAreGone && start?.begins) await restoreWeights().catch(orRewind);
  if (start && !carried) await publishWhatWasCutOff().catch(orRewind);
  evals.resume(carried?.evaluating ?? []);
  broadcast = awaitedLater(weights.bring(state.policy));
  if (!carried || carried.rewind) for (const step of state.pendingEvals) evals.evaluate(step);
  branches.goOn(state.pendingBranches ?? []);

  return branches.endingWith(async () => {
    while (state.step < desk.lastStep) {
      await desk.untilResumed().catch(orRewind);
      beside.throwIfFailed();
      if (isHistoryLong() && collecting === null) await continueRun();
      const step = state.step + 1;
      const startedAt = Date.now();
      let collected: CollectedStep = await (collecting ?? collect(step, state)).catch(orRewind);
      const waitedS = (Date.now() - startedAt) / 1000;
      collecting = mayPrefetch(step) ? collect(step + 1, collected) : null;

      const attempts: CollectedStep[] = [collected];
      let trained = await train(step, 1, collected).catch(orRewind);
      while (trained.policy === null) {
        desk.tell('refused', step, `step ${step}: batch refused (${trained.reason}); its groups are set aside`);
        if (attempts.length >= refusedAttemptsMax) {
          desk.pause(
            `${attempts.length} batches for step ${step} were refused in a row: ${trained.reason}. Lower the learning rate (set-learning-rate), then resume.`,
          );
          await desk.untilResumed().catch(orRewind);
        }
        collected = await (collecting ?? collect(step, collected)).catch(orRewind);
        collecting = null;
        attempts.push(collected);
        trained = await train(step, attempts.length, collected).catch(orRewind);
      }

      const stepS = (Date.now() - startedAt) / 1000;
      const figures = { ...collected.figures, ...trainFigures(trained), train_s: trained.seconds, step_s: stepS };
      for (const { lost } of attempts) account.add(lost);
      const isEvalDue = evals.isDue(step);
      state = stateAfter(state, {
        spec,
        policy: trained.policy,
        collected,
        metrics: trained.metrics,
        overrides: desk.overrides,
        pendingEvals: isEvalDue ? [...evals.pendingSteps, step] : evals.pendingSteps,
        branches: branches.toCommit(step),
      });
      const committed = await local.commitStep({
        run,
        parent,
        plan: trained.plan,
        optimizer: trained.optimizer,
        staged: trained.staged,
        engine: trained.engine,
        outcomes: stepOutcomes(step, attempts),
        metrics: committedMetrics({
          collected,
          trained,
          klBeta: state.klBeta,
          waitedS,
          evalWaitS: turns.takeWaitedS(),
          stepS,
          account: { ...account.take(), ...weights.figures() },
        }),
        state,
      });
      parent = committed.sha256;
      desk.at('training', step, state.policy);
      serve(state.policy, trained.optimizer, committed.isPublished);
      desk.publish(step, collected.figures['reward'] ?? null);
      desk.tell('step', step, stepLine(step, desk.maxSteps, figures), figures);
      if (trained.snapshot) sealing = sealInTurn(step);
      if (isEvalDue) evals.evaluate(step);
      branches.begin(step);
    }
    return finish();
  });

  /** Level 0 collects after the newest version is served; level 1 beside the training of the step before. */
  function collect(step: number, from: Pick<CollectedStep, 'curriculum' | 'surplus'>): Promise<CollectedStep> {
    const { curriculum, surplus } = from;
    if (step <= inTraining) regenerated += spec.batchSize;
    const newestPolicy = () => served;
    return awaitedLater(
      broadcast.then(() => {
        const prompts = branches.inUse;
        return collectStep(desk, { run, spec, datasets, step, curriculum, surplus, newestPolicy, turns, prompts });
      }),
    );
  }

  function mayPrefetch(step: number): boolean {
    const goesOn = !desk.isPaused && desk.rewind === null && !isHistoryLong();
    return spec.maxAsyncLevel > 0 && step < desk.lastStep && goesOn;
  }

  async function train(step: number, attempt: number, collected: CollectedStep) {
    await publishing.of(state.reference.step); // the trainer reads it from the store
    let halvedTo: number | undefined;
    for (;;) {
      const { policy: from, reference, klBeta } = state;
      const { packed, taught } = collected;
      const halved = halvedTo === undefined ? { attempt } : { attempt: attempt + 1, halvedTo };
      const asked = { run, step, from, reference, klBeta, overrides: desk.overrides, packed, ...halved };
      const planned = await local.planStep(taught ? { ...asked, taught } : asked);
      const { plan } = planned;
      const summary = `step ${step}: ${collected.rows} rows onto ${versionName(from)}, learning rate ${planned.learningRate.toExponential(1)}`;
      inTraining = desk.planned = step;
      desk.progress.trains({ step, from, rows: collected.rows });
      const result = await desk.waitFor(
        `train ${summary}`,
        hold.use(({ steps, epoch }) => steps.trainStep.executeWithOptions({ summary }, [{ run, plan, epoch }])),
      );
      inTraining = 0;
      desk.progress.trains(null);
      if (result.policy === null) desk.planned = 0; // what is asked for now can still reach this step
      if (result.lost) account.attemptsLost(result.lost);
      if (result.recovery) tellRecovery(step, result.recovery);
      halvedTo = result.halvedTo ?? halvedTo;
      if (result.halvedTo !== undefined) desk.tell('warning', step, halvedLine(step, result));
      else if (result.replay === null) return { ...result, ...planned };
      else takeReplay(result.replay);
    }
  }

  function tellRecovery(step: number, recovery: Recovery): void {
    const isFirstLoad = recovery.replayedSteps === 0 && recovery.restoredFrom === state.step;
    const isExpected = isFirstLoad && step === (start?.state.step ?? 0) + 1;
    if (!isExpected) account.restored(recovery.seconds);
    for (const { kind, text, values } of recoveryLines(step, recovery, regenerated, isExpected)) {
      desk.tell(kind, step, text, values);
    }
  }

  /** Training up to a committed step again gave other weights: from here on they are that version. */
  function takeReplay(replay: PolicyVersion): void {
    if (state.policy.digest === replay.digest) return;
    replaceVersion(state.policy, replay);
    serve(replay, null, false);
  }

  function replaceVersion(lost: PolicyVersion, replay: PolicyVersion): void {
    if (lost.digest === replay.digest) return;
    const { policy, reference } = state;
    state = {
      ...state,
      policy: policy.digest === lost.digest ? replay : policy,
      reference: reference.digest === lost.digest ? replay : reference,
    };
  }

  /** Brings the servers to a committed version, once it is in the store; to one after another. */
  function serve(policy: PolicyVersion, optimizer: ObjectRef | null, isPublished: boolean): void {
    const before = awaitedLater(Promise.all([broadcast, publishing.allBefore()]));
    const stored = isPublished ? Promise.resolve(policy) : publishing.publish(policy, optimizer);
    broadcast = awaitedLater(
      stored.then(async (version) => {
        replaceVersion(policy, version);
        await before;
        await weights.bring(version);
      }),
    );
  }

  /** The run ended before these were in the store: they are made again from stored batches. */
  async function publishWhatWasCutOff(): Promise<void> {
    // Groups of a step are collected once a version this near is served: older ones were in the store, and may be gone.
    const oldest = state.step - spec.maxAsyncLevel - 1;
    const due = [...state.pendingEvals, ...(state.pendingBranches ?? []).map(({ step }) => step)];
    const pending = [...new Set(due)].filter((step) => step >= oldest && step < state.step);
    const steps = [...pending.toSorted((a, b) => a - b), state.step];
    for (const policy of await local.findUnpublished({ run, steps })) {
      replaceVersion(policy, await publishing.publish(policy, null));
    }
  }

  /** One after another: retention looks at what is sealed. */
  function sealInTurn(step: number): Promise<void> {
    const before = sealing;
    return beside.start(async () => {
      await before;
      const replaced = await publishing.of(step);
      if (replaced?.replay) {
        return desk.tell(
          'warning',
          step,
          `checkpoint ${step} is left out: its parts were lost before their upload, and ${versionName(replaced)} took its place`,
        );
      }
      await saveCheckpoint(step);
    });
  }

  async function saveCheckpoint(step: number): Promise<void> {
    const pinned = [state.reference.step, ...evals.pendingSteps, ...branches.pendingSteps];
    const { kept } = await orchestrator.saveCheckpoint.executeWithOptions({ summary: `step ${step}` }, [
      { run, step, pinned, ...(desk.rewind === null ? {} : { keepsAll: true }) },
    ]);
    desk.tell('checkpoint', step, `checkpoint ${step} sealed (kept: ${kept.join(', ')})`);
  }

  async function makeFirstVersion(): Promise<{ state: RunState; parent: string }> {
    const total = spec.sft?.steps ?? 0;
    let warm: WarmUpState | null = null;
    do {
      const summary: string = warm === null ? `base model ${spec.model}` : segmentAfter(warm.step, total);
      warm = await desk.waitFor(
        `warm-up: ${summary}`,
        hold.use(({ steps, epoch }) => steps.warmUp.executeWithOptions({ summary }, [{ run, from: warm, epoch }])),
      );
      if (warm.loss !== null) {
        desk.tell('warm-up', 0, `warm-up (supervised) ${warm.step} of ${total}  loss ${warm.loss.toFixed(2)}`, {
          sft_step: warm.step,
          loss: warm.loss,
        });
      }
    } while (warm.step < total);

    const first = firstState({
      run,
      spec,
      policy: warm.policy,
      overrides: desk.overrides,
      pendingEvals: evals.isDue(0) ? [0] : [],
      branches: branches.toCommit(0),
    });
    const metrics = { ...(warm.loss === null ? {} : { 'sft/loss': warm.loss }), ...account.take() };
    const outcomes = stepOutcomes(0, []);
    const committed = await local.commitStep({
      run,
      parent: null,
      plan: null,
      optimizer: null,
      outcomes,
      metrics,
      state: first,
    });
    await orchestrator.saveCheckpoint.executeWithOptions({ summary: 'step 0 (v0)' }, [{ run, step: 0, pinned: [] }]);
    return { state: first, parent: committed.sha256 };
  }

  /** Takes the place of a failure: a step that was paused when somebody asked for a rewind is given up. */
  async function orRewind(reason: unknown): Promise<never> {
    if (reason instanceof RewindAsked) return continueRun();
    throw reason;
  }

  /** Retention removed them, and the run was taken back to where stored batches lead to. */
  async function restoreWeights(): Promise<void> {
    const { policy } = state;
    const summary = `the weights of ${versionName(policy)} again, from a checkpoint and stored batches`;
    await desk.waitFor(
      `make ${summary}`,
      hold.use(({ steps, epoch }) => steps.restoreVersion.executeWithOptions({ summary }, [{ run, policy, epoch }])),
    );
  }

  /** Everything beside the loop is drained first: a child or an activity in flight would not survive. */
  async function continueRun(): Promise<never> {
    await collecting?.catch(() => undefined); // for a step that will not be made
    await broadcast.catch(unlessRewind); // a version that is left behind need not be served
    await beside.finish();
    await condition(allHandlersFinished);
    const { rewind } = desk;
    if (rewind !== null) await Promise.all([evals.leaveBehind(rewind.step), branches.leave('rewind')]);
    const { handle, datasets, warnings, hasSearchAttributes } = opened;
    return continueAsNew<typeof trainRun>({
      continued: {
        ...(rewind === null ? {} : { rewind }),
        typed: before.typed,
        opened: { handle, datasets, warnings, hasSearchAttributes, weightsAreGone: false },
        state: { ...withoutBranches(state), ...branches.toCommit(), overrides: desk.overrides },
        parent,
        desk: desk.carry(),
        account: account.carry(),
        evals: evals.done.slice(-evalsCarried),
        evaluating: evals.carry(),
        trainer: hold.carry(),
      },
    });
  }

  async function finish(): Promise<RunSummary> {
    desk.at('finishing', state.step, state.policy);
    await broadcast.catch(orRewind);
    await branches.leave('end');
    hold.releaseWhenIdle(); // evaluations under way need none
    await beside.finish();
    await Promise.race([evals.finish(), condition(() => desk.rewind !== null)]);
    if (desk.rewind !== null) return continueRun();
    const { effectiveness, ...ledger } = await desk.waitFor(
      'the audit of the ledger',
      orchestrator.auditRun.executeWithOptions({ summary: `${state.step} steps` }, [{ run }]),
    );
    if (!ledger.isSound) desk.tell('warning', state.step, unsoundLine(ledger));
    const end = endOf(state.step, desk.maxSteps);
    desk.at(end, state.step, state.policy);
    const line = finishedLine(state.step, desk.maxSteps, effectiveness);
    desk.tell(end, state.step, line, finishedValues(effectiveness));
    await condition(allHandlersFinished);
    if (desk.rewind !== null) return continueRun();
    return {
      run: spec.name,
      step: state.step,
      policyDigest: state.policy.digest,
      weights: state.policy.weights,
      ledger,
      effectiveness,
      evals: evals.done,
    };
  }
}

function isHistoryLong(): boolean {
  const { continueAsNewSuggested, historyLength } = workflowInfo();
  return continueAsNewSuggested || historyLength > historyEventsMax;
}
