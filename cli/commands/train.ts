import { randomBytes } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import {
  type Client,
  isGrpcServiceError,
  ServiceError,
  WorkflowFailedError,
  type WorkflowHandle,
  WorkflowNotFoundError,
} from '@temporalio/client';
import { Command } from 'commander';
import { taskQueues } from '../../core/names.ts';
import { describeEffectiveness } from '../../core/rl/effectiveness.ts';
import type { RunSpec } from '../../core/spec/run-spec.ts';
import { checkModel } from '../../backends/configs/check-model.ts';
import { loadRunConfig } from '../../backends/configs/load-run-config.ts';
import { readSinkStates } from '../../backends/metrics/run-sinks.ts';
import { allCopies, localRoot, openRunStore, showStoreUri } from '../../backends/store/index.ts';
import { readRunningStack, waitForRunningStack } from '../../workers/project-lock.ts';
import { choosePolicyPort, localRoles, policyUrlAt } from '../../workers/roles.ts';
import { ensureTemporalCli, type TemporalCli } from '../../workers/temporal-cli.ts';
import { startStack, type Stack } from '../../workers/supervisor.ts';
import { remoteTemporal } from '../../workers/temporal-settings.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { connect, findRunning, hasWorkers, startedWith, temporalOf } from '../connection.ts';
import { followRun, isTakenOver, printRest } from '../follow-run.ts';
import { readOverrides } from '../overrides.ts';
import { rootMessage } from '../root-message.ts';
import { trainAgain, type TypedCommand, withMaxSteps } from '../typed-command.ts';
import { startClock, type Clock } from '../clock.ts';

const resumeHelp = `
A run goes on where it stands. To go on from another committed step, in a new lineage: --resume.step 50
(also --ckpt.resume-step 50, --trainer.ckpt.resume-step 50, and [ckpt] resume_step in the file; -1 = the latest).
`;

export const trainCommand = new Command('train')
  .description('train with a run file; goes on where the run stands, or attaches to it if it is running')
  .argument('<file>', 'run file (TOML)')
  .argument('[overrides...]', 'any setting of the file: --max-steps 5 --sampling.temperature 0.7')
  .option('--name <run>', "the run's name; default: the file's name")
  .option('--fresh', 'start over under a new name')
  .addHelpText('after', resumeHelp)
  .allowUnknownOption()
  .action(async (file: string, rest: string[], options: { name?: string; fresh?: boolean }) => {
    process.exitCode = await train(file, readOverrides(rest), options);
  });

/** Trains or attaches until the run ends; the exit code. `rewind`: in a new lineage from this step on. */
export async function train(
  file: string,
  overrides: Readonly<Record<string, string>>,
  options: { readonly name?: string; readonly fresh?: boolean; readonly rewind?: number },
): Promise<number> {
  const clock = startClock();
  const projectFolder = process.cwd();
  const { name: usualName } = (await loadRunConfig(file, { projectFolder, overrides })).spec;
  const given = options.name ?? usualName;
  const run = options.fresh ? `${given}-${randomBytes(2).toString('hex')}` : given;
  const { spec, resumeStep } = await loadRunConfig(file, { projectFolder, overrides, run });
  await checkModel(spec);
  const command = { file, name: run === usualName ? null : run, overrides };

  const interrupted = new AbortController();
  const onSignal = (): void => interrupted.abort();
  process.on('SIGINT', onSignal).on('SIGTERM', onSignal);
  const place = await openPlace(spec, projectFolder, clock, interrupted.signal);
  if (!place) return stopped(run, command, clock);
  const { stack, pid, address, uiUrl } = place;
  const { client, close } = await connect(temporalOf(place, address));
  const watched = watchStack(projectFolder, pid);
  try {
    const attached = await attach(client, run, overrides, clock);
    if (attached && resumeStep !== null && resumeStep >= 0) {
      clock.say(`to take the running run back to step ${resumeStep}: npx ratchet rewind ${run} --step ${resumeStep}`);
    }
    const handle = attached ?? (await start());
    if (uiUrl)
      clock.say(
        `Temporal UI  ${uiUrl}/namespaces/default/workflows/${encodeURIComponent(handle.workflowId)}      kill any process and watch`,
      );
    await tellOthers(client, handle.workflowId, clock);
    const { gone } = watched;
    return await watch(handle, { run, command, spec, stack, clock, interrupted: interrupted.signal, gone });
  } finally {
    watched.stop();
    process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
    await close();
    await stack?.stop();
  }

  function start(): Promise<RunHandle> {
    return client.workflow.start<typeof trainRun>('trainRun', {
      workflowId: run,
      taskQueue: taskQueues.orchestrator,
      args: [{ config: file, overrides, run, ...(options.rewind === undefined ? {} : { rewind: options.rewind }) }],
      workflowIdConflictPolicy: 'USE_EXISTING',
      workflowIdReusePolicy: 'ALLOW_DUPLICATE',
      // A killed orchestrator's unfinished workflow task is waited for no longer than this.
      workflowTaskTimeout: '5s',
      staticSummary: `${[spec.model, ...spec.environments.map(({ name }) => name)].join(' · ')} · ${spec.maxSteps === 0 ? 'supervised' : `${spec.maxSteps} steps`}`,
    });
  }
}

type RunHandle = WorkflowHandle<typeof trainRun>;

/** Runs that were interrupted go on as soon as there are processes again, and hold the one trainer in turn. */
async function tellOthers(client: Client, ours: string, clock: Clock): Promise<void> {
  const others: string[] = [];
  const query = "WorkflowType='trainRun' AND ExecutionStatus='Running'";
  for await (const { workflowId } of client.workflow.list({ query, pageSize: 10 })) {
    if (workflowId !== ours && others.length < 5) others.push(workflowId);
  }
  if (others.length === 0) return;
  clock.say(
    `also going on here: ${others.join(', ')}   the trainer works for one run at a time; end one with: npx ratchet temporal workflow cancel -w ${others[0]}`,
  );
}

/** The run's workflow if it is running already, here or started by hand under an id of its own. */
async function attach(
  client: Client,
  run: string,
  overrides: Readonly<Record<string, string>>,
  clock: Clock,
): Promise<RunHandle | null> {
  const running = await findRunning(client, run);
  if (!running) return null;
  if (running.workflowId !== run)
    clock.say(`the run ${run} is running as workflow ${running.workflowId}; attached to it`);
  if (Object.keys(overrides).length > 0 && !isDeepStrictEqual(await startedWith(running), overrides)) {
    clock.say(
      `the run goes on with the settings it was started with. To change some: npx ratchet set ${run} learning_rate=… (or stop_after=…), or end it with npx ratchet temporal workflow cancel -w ${running.workflowId} and train again`,
    );
  }
  return running;
}

interface Watch {
  readonly run: string;
  readonly command: TypedCommand;
  readonly spec: RunSpec;
  readonly stack: Stack | null;
  readonly clock: Clock;
  readonly interrupted: AbortSignal;
  /** Aborted when the processes of another command, to which this one is attached, have ended. */
  readonly gone: AbortSignal;
}

/** An upgrade ends the run's workflow and starts it anew: then the new one is watched. */
async function watch(handle: RunHandle, options: Watch): Promise<number> {
  for (let watched = handle; ;) {
    const code = await watchExecution(watched, options);
    if (code !== 'taken over') return code;
    watched = handle.client.getHandle<typeof trainRun>(handle.workflowId);
  }
}

async function watchExecution(handle: RunHandle, options: Watch): Promise<number | 'taken over'> {
  const { run, command, spec, stack, clock, interrupted, gone } = options;
  const ended = new AbortController();
  const left = AbortSignal.any([interrupted, gone]);
  const following = followRun({ handle, print: clock.say, signal: AbortSignal.any([ended.signal, left]) });
  try {
    const result = await resultOf(handle, left);
    ended.abort();
    const isTold = await printRest(handle, await following, clock.say);
    if (!isTold) clock.say(describeEffectiveness(result.effectiveness)); // what else happened stands in the log
    summarize(result, spec, stack, clock);
    if (stack) await untilSent(spec, clock, interrupted);
    sayNext(command, spec, clock);
    return result.ledger.isSound ? 0 : 1;
  } catch (error) {
    ended.abort();
    const seen = await following;
    if (interrupted.aborted) return stack ? stopped(run, command, clock) : detached(run, command, clock);
    if (gone.aborted) {
      clock.say(
        `the processes this run used have ended; the run is not lost: ${trainAgain(command)} goes on where it is`,
      );
      return 1;
    }
    if (error instanceof WorkflowNotFoundError) {
      clock.say(
        `this Temporal server does not know the run ${run} (any more); its files are kept: ${trainAgain(command)}`,
      );
      return 1;
    }
    if (!(error instanceof WorkflowFailedError)) throw error;
    if (await isTakenOver(handle, error)) return 'taken over';
    await printRest(handle, seen, clock.say);
    clock.say(`the run stopped: ${rootMessage(error)}`);
    clock.say(`when that is mended: ${trainAgain(command)}   (goes on from the last committed step, if there is one)`);
    return 1;
  }
}

/** How long a server that did not answer is left alone. */
const serverPauseMs = 1_000;

/** Waits for the end of a run, however often its server is restarted meanwhile. */
async function resultOf(handle: RunHandle, left: AbortSignal): Promise<RunSummary> {
  for (;;) {
    try {
      return await handle.client.withAbortSignal(left, () => handle.result());
    } catch (error) {
      if (left.aborted || !(error instanceof ServiceError || isGrpcServiceError(error))) throw error;
      await delay(serverPauseMs, undefined, { signal: left });
    }
  }
}

/** How often one looks how far W&B is. */
const sinkPollMs = 250;

/** How often one looks whether another command's processes are still there. */
const stackPollMs = 1_000;

/** Watches the processes of another command; none when they are ours or elsewhere. */
function watchStack(projectFolder: string, pid: number | null): { gone: AbortSignal; stop: () => void } {
  const gone = new AbortController();
  const stopping = new AbortController();
  if (pid !== null) void look(pid);
  return { gone: gone.signal, stop: () => stopping.abort() };

  async function look(expected: number): Promise<void> {
    while (!stopping.signal.aborted) {
      const running = await readRunningStack(projectFolder).catch(() => null); // The folder itself is gone.
      if (running?.pid !== expected) return gone.abort();
      await delay(stackPollMs, undefined, { signal: stopping.signal }).catch(() => undefined); // stopped: the loop ends
    }
  }
}

interface Place {
  /** Null when the processes are another command's. */
  readonly stack: Stack | null;
  /** That command, when it runs in this folder. */
  readonly pid: number | null;
  readonly address: string;
  readonly uiUrl: string | null;
}

/** Attaches to the stack of this folder, or starts one. null when interrupted meanwhile. */
async function openPlace(
  spec: RunSpec,
  projectFolder: string,
  clock: Clock,
  signal: AbortSignal,
): Promise<Place | null> {
  const running = await waitForRunningStack(projectFolder, 60_000);
  if (running?.temporalAddress) {
    clock.say(`attached to the processes that run here (process ${running.pid})`);
    return { stack: null, pid: running.pid, address: running.temporalAddress, uiUrl: running.uiUrl };
  }
  const elsewhere = process.env['TEMPORAL_ADDRESS'];
  if (elsewhere && (await hasWorkers(remoteTemporal(elsewhere)))) {
    clock.say(`attached to the workers at ${elsewhere}`);
    return { stack: null, pid: null, address: elsewhere, uiUrl: null };
  }
  // Other runs may join these processes, also such whose weights are copied from S3.
  const weightRoots = [...new Set([localRoot(spec.store.uri), allCopies()])];
  for (const root of weightRoots) await mkdir(root, { recursive: true });
  const policyPort = await choosePolicyPort();
  try {
    const cli = elsewhere ? null : await findServer(clock);
    clock.say(`${clock.part(3)}starting ${cli ? 'server, ' : ''}1 trainer, 1 rollout worker, policy server`);
    const stack = await startStack({
      projectFolder,
      policyUrl: policyUrlAt(policyPort),
      roles: localRoles({ weightRoots, policyPort }),
      log: clock.say,
      signal,
      ...(cli ? { temporalCli: async () => cli } : {}),
    });
    return { stack, pid: null, address: stack.temporalAddress, uiUrl: stack.uiUrl };
  } catch (error) {
    if (signal.aborted) return null;
    throw error;
  }
}

async function findServer(clock: Clock): Promise<TemporalCli> {
  const cli = await ensureTemporalCli({ log: (line) => clock.say(`${clock.part(2)}${line}`) });
  clock.say(`${clock.part(2)}Temporal server: ${cli.serverVersion} (${cli.source})`);
  return cli;
}

function summarize(
  { step, policyDigest, weights, ledger, run }: RunSummary,
  spec: RunSpec,
  stack: Stack | null,
  clock: Clock,
): void {
  const restarts = Object.values(stack?.restarts() ?? {}).reduce((sum, count) => sum + count, 0);
  const counts = Object.entries(ledger.counts).map(([state, count]) => `${count} ${state}`);
  if (ledger.pending > 0) counts.push(`${ledger.pending} pending`);
  const parts = [
    spec.maxSteps === 0 ? 'done: supervised training' : `done: step ${step} of ${spec.maxSteps}`,
    ...(stack ? [`${restarts} processes restarted`] : []),
    `ledger ${ledger.issued} groups issued${counts.map((count, i) => (i === 0 ? ` = ${count}` : ` + ${count}`)).join('')} ${ledger.isSound ? '✓' : '✗ NOT SOUND'}`,
  ];
  clock.say(parts.join(' · '));
  clock.say(
    `policy  ${showStoreUri(spec.store.uri)}${run}/${weights.replace(/\/$/, '')}   (${policyDigest.slice(0, 12)})`,
  );
}

/** How long the end of our processes waits for W&B to have everything; what it lacks then it gets when they start again. */
const sinkPatienceMs = 60_000;

async function untilSent(spec: RunSpec, clock: Clock, interrupted: AbortSignal): Promise<void> {
  if (!spec.wandb || spec.wandb.mode === 'disabled') return;
  const store = openRunStore(spec.store.uri, spec.name);
  const until = performance.now() + sinkPatienceMs;
  for (;;) {
    const { wandb } = await readSinkStates(store);
    const isOver = performance.now() > until || interrupted.aborted;
    if (wandb?.isDone) return clock.say(`W&B     ${wandb.place ?? ''}`);
    if (wandb?.failing || isOver) {
      const why = wandb?.failing ?? 'it was not waited for any longer';
      return clock.say(
        `W&B     ${wandb?.next ?? 0} of ${wandb?.rows ?? '?'} rows sent: ${why}. The rest is sent when processes run here again (npx ratchet dev).`,
      );
    }
    await delay(sinkPollMs, undefined, { signal: interrupted }).catch(() => undefined); // interrupted: said above
  }
}

function sayNext(command: TypedCommand, spec: RunSpec, clock: Clock): void {
  if (spec.maxSteps === 0) return clock.say(`next    afresh: ${trainAgain(command)} --fresh`);
  const further = trainAgain(withMaxSteps(command, spec.maxSteps * 2));
  clock.say(`next    further: ${further}      afresh: ${trainAgain(command)} --fresh`);
}

function stopped(run: string, command: TypedCommand, clock: Clock): number {
  clock.say(`stopped. The run ${run} is not lost: ${trainAgain(command)} goes on where it is`);
  return 130;
}

function detached(run: string, command: TypedCommand, clock: Clock): number {
  clock.say(`detached. The run ${run} goes on; ${trainAgain(command)} attaches again`);
  return 0;
}
