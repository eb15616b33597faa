import { Beside } from './beside/beside.ts';
import { OnlineEvals } from './beside/online-evals.ts';
import { PromptBranches } from './beside/prompt-branches.ts';
import { brokenLine, upgradedLine } from './control/lines.ts';
import { RunControl } from './control/run-control.ts';
import { opening } from './options.ts';
import type { RunContext } from './run-context.ts';
import type { OpenedStart } from './run-start.ts';
import { Checkpoints } from './step/checkpoints.ts';
import { Head } from './step/head.ts';
import { Publishing } from './step/publishing.ts';
import { Recoveries } from './step/recoveries.ts';
import { Rollouts } from './step/rollouts.ts';
import { type ServedOptions, ServedWeights } from './step/served-weights.ts';
import { ServingSchedule } from './step/serving-schedule.ts';
import { TrainerLease } from './step/trainer-lease.ts';
import { Training } from './step/training.ts';

/** The parts of a run. Each owns what it keeps from one step to the next. */
export interface RunParts extends RunContext {
  readonly head: Head;
  readonly lease: TrainerLease;
  readonly training: Training;
  readonly rollouts: Rollouts;
  readonly publishing: Publishing;
  readonly weights: ServedWeights;
  readonly serving: ServingSchedule;
  readonly checkpoints: Checkpoints;
  readonly evals: OnlineEvals;
  readonly branches: PromptBranches;
  readonly beside: Beside;
}

/** Assembles a run from what was opened, or from what the previous execution carried. */
export function assemble(opened: OpenedStart): RunParts {
  const { opened: found, start, carried, account } = opened;
  const { handle: run, spec, datasets } = found;
  const control = openControl(opened);
  const context: RunContext = { run, spec, datasets, control, account };

  const lease = new TrainerLease({ run, spec }, control, {
    preferred: carried?.trainer ?? null,
    turn: carried?.turn ?? null,
  });
  control.onQueueChange = () => lease.tellPool();
  control.onLongPause = () => lease.releaseWhenIdle();
  control.onStoodStill = (seconds) => account.stoodStill(seconds);
  lease.onLost = (epoch, seconds) => account.workerLost(epoch, seconds);

  const head = new Head(run, start);
  const recoveries = new Recoveries(context, head);
  lease.onTurnOver = () => recoveries.turnIsOver();
  const publishing = new Publishing(context, lease, recoveries);
  const serving = new ServingSchedule();
  const changesInFlight = (): boolean => rollouts.changesInFlight;
  const leaseWith: ServedOptions['leaseWith'] = (...given) => rollouts.leaseWith(...given);
  const weights = new ServedWeights(context, { head, publishing, serving, changesInFlight, leaseWith });
  const training = new Training(context, { head, lease, publishing, recoveries, weights });

  const beside = new Beside();
  const evals = new OnlineEvals({ ...context, publishing, serving, done: carried?.evals ?? [] });
  const served = () => weights.served;
  const branches = new PromptBranches({ ...context, publishing, serving, served, state: start?.state });
  const pinned = () => [head.state.reference.step, ...evals.pendingSteps, ...branches.pendingSteps];
  const checkpoints = new Checkpoints(context, { publishing, beside, pinned });

  const rollouts: Rollouts = new Rollouts(context, {
    recoveries,
    serving,
    ready: () => weights.ready,
    isReady: () => weights.isReady,
    waitsForTurn: (step) => lease.waitsForTurn(step),
    newestPolicy: () => weights.served ?? head.policy,
    prompts: () => branches.inUse,
    state: () => head.state,
    goesOn: start !== null,
    flows: carried?.rewind ? undefined : carried?.flows,
    playS: carried?.playS ?? null,
  });
  return {
    ...context,
    head,
    lease,
    training,
    rollouts,
    publishing,
    weights,
    serving,
    checkpoints,
    evals,
    branches,
    beside,
  };
}

function openControl({ opened, start, carried, account, ...before }: OpenedStart): RunControl {
  const { handle: run, spec, warnings, owner, hasSearchAttributes } = opened;
  const control = new RunControl({
    handle: run,
    spec,
    store: `${run.store.replace(/[?].*/, '')}${spec.name}/`, // without the options that only the client needs
    storeUri: run.store,
    warnings,
    ...(owner === undefined ? {} : { owner }),
    hasSearchAttributes,
    overrides: before.overrides,
    pausedBecause: before.pausedBecause,
    isPausedByPerson: before.isPausedByPerson,
    events: carried?.control.events ?? [],
    figures: before.figures,
    explained: carried?.control.explained,
    lost: () => account.total,
    setBudget: (limits) =>
      opening.setBudget.executeWithOptions({ summary: Object.keys(limits).join(', ') }, [{ run, limits }]),
    recordChange: (change) =>
      opening.recordChange.executeWithOptions({ summary: change.what }, [{ ...change, of: { ...run, kind: 'run' } }]),
    checkRewind: (step) => opening.checkRewind.executeWithOptions({ summary: `to step ${step}` }, [{ run, step }]),
  });
  const step = start?.state.step ?? 0;
  if (!carried) {
    control.publish(step, null);
    for (const warning of warnings) control.emit('warning', 0, warning);
    const { learningRate } = control.overrides;
    if (learningRate !== undefined) {
      control.emit('warning', 0, `learning rate ${learningRate} was set while the run was running, and stays`);
    }
  }
  const { takenOverAs, pausedBecause } = before;
  if (takenOverAs === 'upgraded') control.emit('upgraded', step, upgradedLine(spec.name, step, pausedBecause));
  if (takenOverAs === 'broken') control.emit('recovery', step, brokenLine(spec.name, step, pausedBecause));
  return control;
}
