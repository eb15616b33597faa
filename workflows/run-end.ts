import {
  allHandlersFinished,
  ApplicationFailure,
  condition,
  continueAsNew,
  isCancellation,
  patched,
  TemporalFailure,
} from '@temporalio/workflow';
import type { EvaluationSummary } from '../activities/index.ts';
import type { Effectiveness } from '../core/rl/effectiveness.ts';
import { unlessRewind } from './beside/beside.ts';
import { endOf, finishedLine, finishedValues, unsoundLine } from './control/lines.ts';
import { lookup, orchestratorFor } from './options.ts';
import type { RunParts } from './run-parts.ts';
import type { OpenedStart } from './run-start.ts';
import { withoutBranches } from './step/run-states.ts';
import type { trainRun } from './train-run.ts';

const quietMs = 1_000;
const quietTriesMax = 100;

/** The newest ones, for the summary. */
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

/** Goes on as another execution. Everything beside the loop is drained first: a child or an activity in flight would not survive. */
export async function continueRun(parts: RunParts, { opened, typed }: OpenedStart): Promise<never> {
  const { spec, head, rollouts, weights, beside, control, account, evals, branches, lease } = parts;
  // What is in play may have no other weights than it began with: it ends before such servers are given the next version, and the next
  // execution would not wait for it.
  const isHeldUp = spec.inflightUpdates === 'never' && weights.holdsOne && control.rewind === null;
  if (isHeldUp) await weights.ready.catch(unlessRewind);
  const flows = await rollouts.drain();
  if (control.rewind !== null) await rollouts.leave();
  await weights.ready.catch(unlessRewind); // a version that is left behind need not be served
  await beside.finish();
  await condition(allHandlersFinished);
  if (rollouts.heard > 0) await quiet(() => rollouts.heard);
  const { rewind } = control;
  if (rewind !== null) await Promise.all([evals.leaveBehind(rewind.step), branches.leave('rewind')]);
  const { handle, datasets, warnings, hasSearchAttributes } = opened;
  return continueAsNew<typeof trainRun>({
    continued: {
      ...(rewind === null ? {} : { rewind }),
      typed,
      opened: { handle, datasets, warnings, hasSearchAttributes, weightsAreGone: false },
      state: { ...withoutBranches(head.state), ...branches.toCommit(), overrides: control.overrides },
      parent: head.parent,
      control: control.carry(),
      account: account.carry(),
      evals: evals.done.slice(-evalsCarried),
      evaluating: evals.carry(),
      trainer: lease.carry(),
      ...(Object.keys(flows).length === 0 || rewind !== null ? {} : { flows }),
    },
  });
}

/**
 * Waits for a moment in which nothing is heard: right after something was, as workers tell of groups in intervals. The server takes no end of an
 * execution from a task during which something new came: the task begins anew with the whole history, and more has come by its end.
 */
async function quiet(heard: () => number): Promise<void> {
  for (let tries = 0; tries < quietTriesMax; tries++) {
    const before = heard();
    await condition(() => heard() !== before, quietMs);
    if (heard() - before <= 1) return;
  }
}

/** After the last step: what is under way beside it is waited for, and the record is audited. Null where the run goes on after all, from an earlier step. */
export async function finish(parts: RunParts): Promise<RunSummary | null> {
  const { run, spec, head, rollouts, weights, beside, control, evals, branches, lease } = parts;
  const { step, policy } = head;
  control.at('finishing', step, policy);
  await rollouts.leave();
  await weights.ready;
  await branches.leave('end');
  lease.releaseWhenIdle(); // evaluations under way need none
  await beside.finish();
  await Promise.race([evals.finish(), condition(() => control.rewind !== null)]);
  if (control.rewind !== null) return null;
  const { effectiveness, ...ledger } = await control.waitFor(
    'the audit of the ledger',
    orchestratorFor(spec).auditRun.executeWithOptions({ summary: `${step} steps` }, [{ run }]),
  );
  if (!ledger.isSound) control.tell('warning', step, unsoundLine(ledger));
  const end = endOf(step, control.maxSteps);
  control.at(end, step, head.policy);
  control.tell(end, step, finishedLine(step, control.maxSteps, effectiveness), finishedValues(effectiveness));
  await condition(allHandlersFinished);
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
 * Returns why a run fails. After a reset or with an older server database, the run's state is behind its store, and what it needs may be
 * removed there. That is then the reason, not the missing object.
 */
export async function whyItFails(error: unknown, { run, head }: Pick<RunParts, 'run' | 'head'>): Promise<unknown> {
  const isOurs = error instanceof TemporalFailure && !isCancellation(error); // else it is a bug, and the workflow waits until it is fixed
  if (!isOurs || isConflict(error) || !patched('behind-first')) return error;
  try {
    await lookup.checkBehind({ run, step: head.isCommitted ? head.step + 1 : 0 });
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
