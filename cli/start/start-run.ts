import { type Client, WorkflowExecutionAlreadyStartedError, type WorkflowHandle } from '@temporalio/client';
import type { TrainRunInput } from '../../activities/index.ts';
import { memoKeys, taskQueues } from '../../core/names.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import type { Audience } from '../follow/audience.ts';
import { refuseOtherRun } from '../../runs/run-identity.ts';
import { handedOver } from '../../workers/stack/take-over.ts';
import { askStatus } from '../../workers/temporal/ask-status.ts';
import {
  changeLines,
  changesSince,
  isForRestart,
  mayGoOnWith,
  otherSettings,
  processLine,
  withNewProcesses,
} from './changed-while-open.ts';
import { ownerInFolder, requireRole } from '../../workers/temporal/who-may.ts';
import { findRunning, temporalHere } from '../../workers/temporal/client.ts';
import { listWorkflows } from '../../workers/temporal/list-workflows.ts';
import { settingsOfOpenRun } from './open-run-settings.ts';
import type { RunWorkflow } from '../follow/watch-run.ts';

type TypedRun = Exclude<TrainRunInput, string> & { readonly run: string };

/** Checked before anything starts: a taken name must not leave a failed workflow under it. */
export async function refuseTakenName(spec: RunSpec, projectFolder: string): Promise<void> {
  if ((await temporalHere(projectFolder)) === null) await refuseOtherRun(spec);
}

interface Wanted {
  readonly spec: RunSpec;
  readonly resumeStep: number | null;
  readonly projectFolder: string;
  /** The command that was typed, to show it again. */
  readonly again: string;
  /** This command started the processes of the Temporal server, so no other worker was at work on the run. */
  readonly isAlone: boolean;
}

/**
 * Starts the run, or attaches to its open workflow. If the open run has other settings, the command is refused with the differences. An
 * interrupted run, which waits for this command's processes, continues with those changes that are allowed.
 */
export async function attachOrStart(
  client: Client,
  typed: TypedRun,
  wanted: Wanted,
  audience: Pick<Audience, 'say'>,
): Promise<{ readonly handle: RunWorkflow; readonly isAttached: boolean }> {
  for (;;) {
    const running = await findRunning(client, typed.run);
    if (running) return { handle: await attach(client, typed, running, wanted, audience), isAttached: true };
    await refuseOtherRun(wanted.spec);
    const handle = await start(client, typed, wanted.spec);
    if (handle) return { handle, isAttached: false };
  }
}

function tellOfRewind(run: string, step: number | null, audience: Pick<Audience, 'say'>): void {
  if (step === null || step < 0) return;
  audience.say(`to take the running run back to step ${step}: npx ratchet-rl rewind ${run} --step ${step}`);
}

/** Starts the workflow of a run; null if another command started it first. */
async function start(client: Client, input: TypedRun, spec: RunSpec): Promise<RunWorkflow | null> {
  const place = { name: spec.name, store: spec.store.uri };
  await requireRole('train', { of: 'run', run: spec.name, owner: ownerInFolder(place), isOrBegins: true });
  try {
    return await client.workflow.start<typeof trainRun>('trainRun', {
      ...startOptions(input, spec),
      workflowIdConflictPolicy: 'FAIL',
    });
  } catch (error) {
    if (error instanceof WorkflowExecutionAlreadyStartedError) return null;
    throw error;
  }
}

function startOptions(input: TypedRun, { model, environments, maxSteps }: RunSpec) {
  const steps = maxSteps === 0 ? 'supervised' : `${maxSteps} steps`;
  return {
    workflowId: input.run,
    taskQueue: taskQueues.orchestrator,
    args: [input] as [TypedRun],
    workflowIdReusePolicy: 'ALLOW_DUPLICATE',
    // A killed orchestrator's unfinished workflow task is waited for no longer than this.
    workflowTaskTimeout: '5s',
    staticSummary: `${[model, ...environments.map(({ name }) => name)].join(' · ')} · ${steps}`,
  } as const;
}

/**
 * Announces other running runs: interrupted ones continue once there are processes, and take turns on the one trainer.
 */
export async function tellOthers(client: Client, ours: string, clock: Pick<Audience, 'say'>): Promise<void> {
  const others: string[] = [];
  const query = "WorkflowType='trainRun' AND ExecutionStatus='Running'";
  for await (const { workflowId } of listWorkflows(client, query, 10)) {
    if (workflowId !== ours && others.length < 5) others.push(workflowId);
  }
  if (others.length === 0) return;
  clock.say(
    `also running here: ${others.join(', ')}   a GPU worker trains one run at a time; end one with: npx ratchet-rl stop ${others[0]}`,
  );
}

/** Finds the run's workflow, whether Ratchet started it or a user did under an id of their own. */
async function attach(
  client: Client,
  typed: TypedRun,
  running: WorkflowHandle,
  { spec, resumeStep, projectFolder, again, isAlone }: Wanted,
  audience: Pick<Audience, 'say'>,
): Promise<RunWorkflow> {
  const { run } = typed;
  const { workflowId } = running;
  if (workflowId !== run) audience.say(`the run ${run} is running as workflow ${workflowId}; attached to it`);
  const found = await changesSince(await settingsOfOpenRun(client, { workflowId, run, projectFolder }), spec);
  const changes = isAlone ? withNewProcesses(found) : found;
  const ofProcesses = isAlone ? null : processLine(run, changes);
  if (ofProcesses !== null) audience.say(ofProcesses);
  if (changes.ofRun.length > 0) {
    if (!isAlone || !mayGoOnWith(changes)) {
      const step = (await askStatus(running, statusPatienceMs))?.step ?? null;
      const underWay = step === null ? null : step + 1;
      throw otherSettings(changes, { run, file: typed.config, again, underWay, wasInterrupted: isAlone });
    }
    const says = isForRestart(changes) ? 'continues from its newest commit with what was changed since' : 'continues';
    for (const line of [`the run ${run} was interrupted and ${says}:`, ...changeLines(changes)]) audience.say(line);
    if (isForRestart(changes)) {
      const place = { name: spec.name, store: spec.store.uri };
      await requireRole('train', { of: 'run', run, owner: ownerInFolder(place) });
      const takesOver = await handedOver(client, workflowId);
      const options = { ...startOptions({ ...typed, takesOver }, spec), workflowId };
      // In one call: there is no moment at which the run is gone.
      return client.workflow.start<typeof trainRun>('trainRun', {
        ...options,
        workflowIdConflictPolicy: 'TERMINATE_EXISTING',
        ...(takesOver.asked && { memo: { [memoKeys.asked]: takesOver.asked } }),
      });
    }
  }
  tellOfRewind(run, resumeStep, audience);
  return running;
}

/** Short, because the answer is only used to name the settings that the run would take. */
const statusPatienceMs = 3_000;
