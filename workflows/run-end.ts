import { ApplicationFailure, condition, continueAsNew, isCancellation, TemporalFailure } from '@temporalio/workflow';
import type { EvaluationSummary } from '../activities/index.ts';
import type { Effectiveness } from '../core/rl/effectiveness.ts';
import { unlessRewind } from './beside/beside.ts';
import { present } from '../core/present.ts';
import { endOf, finishedLine, finishedValues, unsoundLine } from './control/lines.ts';
import { lookup, orchestratorFor } from './options.ts';
import type { RunParts } from './run-parts.ts';
import type { OpenedStart } from './run-start.ts';
import { withoutBranches } from './step/run-states.ts';
import type { trainRun } from './train-run.ts';

/** Labels of waits at the end of an execution; docs/internals/waiting.md has them. */
const inPlayHandedOver = 'hand over the groups in play';
const inPlayGivenUp = 'give up the groups in play';
const requestsAnswered = 'answer the requests that have come';
const nothingReported = 'a moment without reports of groups';

const quietMs = 1_000;
const quietTriesMax = 100;

/** The newest evaluations, for the summary. */
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
  /** Effectiveness of the lineage that the run ended in. */
  readonly effectiveness: Effectiveness;
  readonly evals: readonly EvaluationSummary[];
}

/**
 * Continues as a new execution. Drains everything beside the loop first: a child or an activity in flight would not
 * survive.
 */
export async function continueRun(parts: RunParts, { opened, typed }: OpenedStart): Promise<never> {
  const { spec, head, rollouts, weights, beside, control, account, evals, branches, lease } = parts;
  // Groups in flight must finish with their weights: they end before such servers get the next version, for which the
  // next execution would not wait.
  const isHeldUp = spec.inflightUpdates === 'never' && weights.holdsOne && control.rewind === null;
  if (isHeldUp) await weights.ready.catch(unlessRewind);
  const { flows, playS } = await control.waitFor(inPlayHandedOver, rollouts.drain());
  if (control.rewind !== null) await control.waitFor(inPlayGivenUp, rollouts.leave());
  await weights.ready.catch(unlessRewind); // a version that is left behind need not be served
  await beside.finish();
  await control.waitFor(
    requestsAnswered,
    condition(() => control.changes.areDone),
  );
  if (rollouts.heard > 0)
    await control.waitFor(
      nothingReported,
      quiet(() => rollouts.heard),
    );
  const { rewind } = control;
  if (rewind !== null) await Promise.all([evals.leaveBehind(rewind.step), branches.leave('rewind')]);
  const { handle, datasets, warnings, owner, hasSearchAttributes } = opened;
  return continueAsNew<typeof trainRun>({
    continued: {
      ...(rewind === null ? {} : { rewind }),
      typed,
      opened: { handle, datasets, warnings, hasSearchAttributes, weightsAreGone: false, ...present({ owner }) },
      state: { ...withoutBranches(head.state), ...branches.toCommit(), overrides: control.overrides },
      parent: head.parent,
      control: control.carry(),
      account: account.carry(),
      evals: evals.done.slice(-evalsCarried),
      evaluating: evals.carry(),
      trainer: lease.carry(),
      ...present({ turn: lease.carryTurn() ?? undefined }),
      playS,
      ...(Object.keys(flows).length === 0 || rewind !== null ? {} : { flows }),
    },
  });
}

/**
 * Waits for a quiet moment, right after a signal, since workers send theirs at intervals. The server rejects the end of
 * an execution from a task during which a new event arrived: the task repeats with the whole history, and more has
 * arrived by its end.
 */
async function quiet(heard: () => number): Promise<void> {
  for (let tries = 0; tries < quietTriesMax; tries++) {
    const before = heard();
    await condition(() => heard() !== before, quietMs);
    if (heard() - before <= 1) return;
  }
}

/**
 * Ends the run after the last step: waits for work beside it, and audits the record. Null when the run continues after
 * all, from an earlier step.
 */
export async function finish(parts: RunParts): Promise<RunSummary | null> {
  const { run, spec, head, rollouts, weights, beside, control, evals, branches, lease } = parts;
  const { step, policy } = head;
  control.at('finishing', step, policy);
  await control.waitFor(inPlayGivenUp, rollouts.leave());
  await weights.ready;
  await branches.leave('end');
  lease.releaseWhenIdle(); // evaluations under way need none
  await beside.finish();
  const evaluated = Promise.race([evals.finish(), condition(() => control.rewind !== null)]);
  await control.waitFor('the evaluations that are under way', evaluated);
  if (control.rewind !== null) return null;
  const { effectiveness, ...ledger } = await control.waitFor(
    'the audit of the ledger',
    orchestratorFor(spec).auditRun.executeWithOptions({ summary: `${step} steps` }, [{ run }]),
  );
  if (!ledger.isSound) control.emit('warning', step, unsoundLine(ledger));
  if (lease.takesTurns) await control.waitFor('the pool to hear that the run ends', lease.leave());
  await weights.leave();
  const end = endOf(step, control.maxSteps);
  control.at(end, step, head.policy);
  control.emit(end, step, finishedLine(step, control.maxSteps, effectiveness), finishedValues(effectiveness));
  await control.waitFor(
    requestsAnswered,
    condition(() => control.changes.areDone),
  );
  if (control.rewind !== null) return null;
  return {
    run: spec.name,
    step,
    policyDigest: head.policy.digest,
    weights: head.policy.weights,
    ledger,
    effectiveness,
    evals: evals.done,
  };
}

/**
 * Why a run fails. After a reset, or with an older server database, the run's state is behind its store, and objects
 * that it needs may be removed there. That is then the reason, not the missing object.
 */
export async function whyItFails(
  error: unknown,
  { run, head, control }: Pick<RunParts, 'run' | 'head' | 'control'>,
): Promise<unknown> {
  const isOurs = error instanceof TemporalFailure && !isCancellation(error); // else it is a bug, and the workflow waits until it is fixed
  if (!isOurs || isConflict(error)) return error;
  try {
    const checking = lookup.checkBehind({ run, step: head.isCommitted ? head.step + 1 : 0 });
    await control.waitFor('compare the newest commit with the store', checking);
    return error;
  } catch (found) {
    return isConflict(found) ? found : error;
  }
}

function isConflict(error: unknown): boolean {
  for (let one = error; one instanceof Error; one = one.cause)
    if (one instanceof ApplicationFailure && one.type === 'CommitConflict') return true;
  return false;
}
