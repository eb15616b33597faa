import { RatchetError } from '../core/errors.ts';
import { costMetrics, moneyPer, usedByStep, usedIn } from '../core/rl/cost.ts';
import { timeMetrics } from '../core/rl/effectiveness.ts';
import { lostOf } from '../core/rl/lost-work.ts';
import { layout } from '../runs/layout.ts';
import { runStateBytesMax } from '../core/limits.ts';
import type { ObjectRef, PackedBatch, RunHandle, RunState, StepCommit, StepPlan } from '../core/rl/run-state.ts';
import { encodeJson } from '../store/objects.ts';
import { encodeStored } from '../runs/forms/stored-forms.ts';
import { sha256 } from '../store/file-store.ts';
import { readPacked } from '../runs/rollouts/batches.ts';
import { refuseBehind } from '../runs/lineages/lineages.ts';
import { recordCommit } from '../runs/metrics/record-metrics.ts';
import { commitIn } from '../runs/forms/record-shapes.ts';
import { isLastStep, readCommit, readJson, specOf, storeOf } from '../runs/run-access.ts';
import { settleVersion } from '../runs/lineages/settle-version.ts';

export interface CommitInput {
  readonly run: RunHandle;
  /** sha256 of the parent commit; null for v0. */
  readonly parent: string | null;
  readonly plan: ObjectRef | null;
  readonly optimizer: ObjectRef | null;
  /** Place where the version waits for this commit, in the run's own folder. */
  readonly pendingAt?: string | null;
  readonly engine?: string | null;
  readonly outcomes: StepCommit['outcomes'];
  /** Metrics known only to the workflow; the batch's are added from its plan. */
  readonly metrics: Readonly<Record<string, number>>;
  readonly state: RunState;
}

/**
 * Writes the fence. An existing commit with the same plan and weights is adopted; a different or later one means that
 * another process continued, and this run stops rather than overwrite it. Afterwards a pending version is moved to its
 * place, and its row joins the metrics.
 */
export const createCommitStep = (codeVersion: string) => {
  /** Commits that this process made or adopted: the newest of each lineage, by sha256. */
  const ours = new Map<string, string>();
  return async (input: CommitInput): Promise<{ sha256: string; adopted: boolean; isPublished: boolean }> => {
    const { run, parent, plan, optimizer, outcomes, state } = input;
    const stateBytes = encodeJson(state).byteLength;
    if (stateBytes > runStateBytesMax) {
      throw new RatchetError(
        'Unsupported',
        `The run's state is ${stateBytes} bytes, over the limit of ${runStateBytesMax}.`,
      );
    }
    const planned = plan && (await readJson<StepPlan>(run, plan));
    const packed = planned && (await readPacked(run, planned.packed));
    const commit: StepCommit = {
      schemaVersion: 1,
      codeVersion,
      run: run.name,
      lineage: run.lineage,
      step: state.step,
      spec: run.spec,
      parent,
      plan,
      policy: state.policy,
      ...(planned?.from.replay ? { from: planned.from } : {}),
      ...(input.engine ? { engine: input.engine } : {}),
      optimizer,
      outcomes,
      metrics: {
        ...packed?.metrics,
        ...input.metrics,
        ...(planned && packed ? await costOfStep(input, planned, packed) : {}),
        ...(await restartsSince(input, ours)),
      },
      state,
      committedAt: new Date().toISOString(),
    };
    await refuseBehind(run, state.step + 1);
    const key = layout.commit(run.lineage, state.step);
    const { stored, bytes } = await storeOf(run).putIfAbsent(key, encodeStored(key, commit));
    const found = commitIn(bytes, storeOf(run).uri + key);
    const isSame =
      found.parent === parent && found.policy.digest === state.policy.digest && found.plan?.sha256 === plan?.sha256;
    if (!isSame) {
      throw new RatchetError(
        'CommitConflict',
        `${key} in ${storeOf(run).uri} was committed by someone else: policy ${found.policy.digest.slice(0, 12)}… of ${found.committedAt}, not ${state.policy.digest.slice(0, 12)}…. Temporal's state of this run is behind its store. Nothing is lost: npx ratchet-rl train FILE continues from the newest commit, and npx ratchet-rl rewind ${run.name} --step ${Math.max(0, state.step - 1)} from the one before this.`,
      );
    }
    ours.set(nameOf(run), sha256(bytes));
    const isPublished = input.pendingAt ? await settleVersion(run, input.pendingAt, found) : false;
    await recordCommit(run, found);
    return { sha256: sha256(bytes), adopted: !stored, isPublished };
  };
};

function nameOf({ store, name, lineage }: RunHandle): string {
  return `${store}${name}/${lineage}`;
}

/** Cost of the step, including what faults lost of it, since that was paid as well. */
async function costOfStep(
  { run, metrics }: CommitInput,
  { numIterations, taught }: StepPlan,
  { rows, metrics: ofBatch }: PackedBatch,
): Promise<Record<string, number>> {
  const { cost } = await specOf(run);
  const { prompt = 0, completion = 0 } = usedIn(ofBatch);
  const sampled = { prompt, completion: completion + lostOf(metrics).tokens };
  const seconds = metrics[timeMetrics.step] ?? 0;
  const use = { rows, passes: numIterations, isTaught: taught !== undefined, seconds };
  const metricsOfCost = costMetrics(usedByStep(sampled, use, cost), cost);
  return { ...metricsOfCost, ...moneyPer(ofBatch, metricsOfCost['cost/money']) };
}

/** Whether this process was started after the commit before: the run stood still meanwhile. */
async function restartsSince(
  { run, parent, state }: CommitInput,
  ours: ReadonlyMap<string, string>,
): Promise<Record<string, number>> {
  if (parent === null || ours.get(nameOf(run)) === parent) return {};
  const before = await readCommit(run, state.step - 1);
  const isRestarted = before !== null && Date.parse(before.commit.committedAt) < performance.timeOrigin;
  if (!isRestarted || (await isLastStep(storeOf(run), before.commit))) return {}; // a run that had ended continues
  return { [timeMetrics.restarts]: 1 };
}
