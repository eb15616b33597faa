import { isDeepStrictEqual } from 'node:util';
import type { Client } from '@temporalio/client';
import type { TrainRunInput } from '../activities/index.ts';
import { taskQueues } from '../core/names.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { trainRun } from '../workflows/train-run.ts';
import type { Audience } from './audience.ts';
import { refuseOtherRun } from '../runs/run-identity.ts';
import { findRunning, startedWith, temporalHere } from './connection.ts';
import type { RunWorkflow } from './watch-run.ts';

type TypedRun = Exclude<TrainRunInput, string> & { readonly run: string };

/** Asked before anything starts: a name that is taken must not leave a failed workflow under it. */
export async function refuseTakenName(spec: RunSpec, projectFolder: string): Promise<void> {
  if ((await temporalHere(projectFolder)) === null) await refuseOtherRun(spec);
}

export async function attachOrStart(
  client: Client,
  typed: TypedRun,
  { spec, resumeStep }: { readonly spec: RunSpec; readonly resumeStep: number | null },
  audience: Pick<Audience, 'say'>,
): Promise<{ readonly handle: RunWorkflow; readonly isAttached: boolean }> {
  const attached = await attach(client, typed.run, typed.overrides ?? {}, audience);
  if (attached) {
    tellOfRewind(typed.run, resumeStep, audience);
    return { handle: attached, isAttached: true };
  }
  await refuseOtherRun(spec);
  return { handle: await start(client, typed, spec), isAttached: false };
}

function tellOfRewind(run: string, step: number | null, audience: Pick<Audience, 'say'>): void {
  if (step === null || step < 0) return;
  audience.say(`to take the running run back to step ${step}: npx ratchet rewind ${run} --step ${step}`);
}

/** Starts the workflow of a run, or finds the one that goes on under its name. */
function start(client: Client, input: TypedRun, { model, environments, maxSteps }: RunSpec): Promise<RunWorkflow> {
  const steps = maxSteps === 0 ? 'supervised' : `${maxSteps} steps`;
  return client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: input.run,
    taskQueue: taskQueues.orchestrator,
    args: [input],
    workflowIdConflictPolicy: 'USE_EXISTING',
    workflowIdReusePolicy: 'ALLOW_DUPLICATE',
    // A killed orchestrator's unfinished workflow task is waited for no longer than this.
    workflowTaskTimeout: '5s',
    staticSummary: `${[model, ...environments.map(({ name }) => name)].join(' · ')} · ${steps}`,
  });
}

/** Runs that were interrupted go on as soon as there are processes again, and hold the one trainer in turn. */
export async function tellOthers(client: Client, ours: string, clock: Pick<Audience, 'say'>): Promise<void> {
  const others: string[] = [];
  const query = "WorkflowType='trainRun' AND ExecutionStatus='Running'";
  for await (const { workflowId } of client.workflow.list({ query, pageSize: 10 })) {
    if (workflowId !== ours && others.length < 5) others.push(workflowId);
  }
  if (others.length === 0) return;
  clock.say(
    `also running here: ${others.join(', ')}   a GPU worker trains one run at a time; end one with: npx ratchet stop ${others[0]}`,
  );
}

/** The run's workflow if it is running already, here or started by hand under an id of its own. */
async function attach(
  client: Client,
  run: string,
  overrides: Readonly<Record<string, string>>,
  clock: Pick<Audience, 'say'>,
): Promise<RunWorkflow | null> {
  const running = await findRunning(client, run);
  if (!running) return null;
  if (running.workflowId !== run)
    clock.say(`the run ${run} is running as workflow ${running.workflowId}; attached to it`);
  if (Object.keys(overrides).length > 0 && !isDeepStrictEqual(await startedWith(running), overrides)) {
    clock.say(
      `the run continues with the settings it was started with. To change some: npx ratchet set ${run} learning_rate=… (or stop_after=…), or end it with npx ratchet stop ${run} and train again`,
    );
  }
  return running;
}
