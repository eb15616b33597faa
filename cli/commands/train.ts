import { randomBytes } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { WorkflowFailedError, type WorkflowHandle } from '@temporalio/client';
import { Command } from 'commander';
import { RatchetError } from '../../core/errors.ts';
import { taskQueues } from '../../core/names.ts';
import type { RunSpec } from '../../core/spec/run-spec.ts';
import { checkModel } from '../../backends/configs/check-model.ts';
import { loadRunConfig } from '../../backends/configs/load-run-config.ts';
import { waitForRunningStack } from '../../workers/project-lock.ts';
import { choosePolicyPort, localRoles, policyUrlAt } from '../../workers/roles.ts';
import { ensureTemporalCli, type TemporalCli } from '../../workers/temporal-cli.ts';
import { startStack, type Stack } from '../../workers/supervisor.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { connect, hasWorkers } from '../connection.ts';
import { followRun, printRest } from '../follow-run.ts';
import { readOverrides } from '../overrides.ts';
import { startClock, type Clock } from '../clock.ts';

export const trainCommand = new Command('train')
  .description('train with a run file; goes on where the run stands, or attaches to it if it is running')
  .argument('<file>', 'run file (TOML)')
  .argument('[overrides...]', 'any setting of the file: --max-steps 5 --sampling.temperature 0.7')
  .option('--name <run>', "the run's name; default: the file's name")
  .option('--fresh', 'start over under a new name')
  .allowUnknownOption()
  .action(async (file: string, rest: string[], options: { name?: string; fresh?: boolean }) => {
    process.exitCode = await train(file, readOverrides(rest), options);
  });

async function train(
  file: string,
  overrides: Record<string, string>,
  options: { name?: string; fresh?: boolean },
): Promise<number> {
  const clock = startClock();
  const projectFolder = process.cwd();
  const named = await loadRunConfig(file, { projectFolder, overrides, ...(options.name ? { run: options.name } : {}) });
  const run = options.fresh ? `${named.spec.name}-${randomBytes(2).toString('hex')}` : named.spec.name;
  const { spec } = await loadRunConfig(file, { projectFolder, overrides, run });
  await checkModel(spec.model);

  const interrupted = new AbortController();
  const onSignal = (): void => interrupted.abort();
  process.on('SIGINT', onSignal).on('SIGTERM', onSignal);
  const place = await openPlace(spec, projectFolder, clock, interrupted.signal);
  if (!place) return stopped(run, file, clock);
  const { stack, address, uiUrl } = place;
  const { client, close } = await connect({ address, namespace: process.env['TEMPORAL_NAMESPACE'] ?? 'default' });
  try {
    const handle = await client.workflow.start<typeof trainRun>('trainRun', {
      workflowId: run,
      taskQueue: taskQueues.orchestrator,
      args: [{ config: file, overrides, run }],
      workflowIdConflictPolicy: 'USE_EXISTING',
      workflowIdReusePolicy: 'ALLOW_DUPLICATE',
      staticSummary: `${spec.model} · ${spec.environments.map(({ name }) => name).join(', ')} · ${spec.maxSteps} steps`,
    });
    if (uiUrl)
      clock.say(
        `Temporal UI  ${uiUrl}/namespaces/default/workflows/${encodeURIComponent(run)}      kill any process and watch`,
      );
    return await watch(handle, { run, file, spec, stack, clock, interrupted: interrupted.signal });
  } finally {
    process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
    await close();
    await stack?.stop();
  }
}

interface Watch {
  readonly run: string;
  readonly file: string;
  readonly spec: RunSpec;
  readonly stack: Stack | null;
  readonly clock: Clock;
  readonly interrupted: AbortSignal;
}

async function watch(handle: WorkflowHandle<typeof trainRun>, options: Watch): Promise<number> {
  const { run, file, spec, stack, clock, interrupted } = options;
  const ended = new AbortController();
  const following = followRun({
    handle,
    print: clock.say,
    signal: AbortSignal.any([ended.signal, interrupted]),
  });
  try {
    const result = await handle.client.withAbortSignal(interrupted, () => handle.result());
    ended.abort();
    await printRest(handle, await following, clock.say);
    summarize(result, spec, stack, clock);
    sayNext(run, file, spec, clock);
    return result.ledger.isSound ? 0 : 1;
  } catch (error) {
    ended.abort();
    await following;
    if (interrupted.aborted) return stack ? stopped(run, file, clock) : detached(run, file, clock);
    if (!(error instanceof WorkflowFailedError)) throw error;
    const reason = rootMessage(error);
    clock.say(`the run stopped: ${reason}`);
    clock.say(
      `nothing that was committed is lost. When that is mended:  npx ratchet train ${file} goes on from the last step`,
    );
    return 1;
  }
}

/** Attaches to the stack of this folder, or starts one. null when interrupted meanwhile. */
async function openPlace(
  spec: RunSpec,
  projectFolder: string,
  clock: Clock,
  signal: AbortSignal,
): Promise<{ stack: Stack | null; address: string; uiUrl: string | null } | null> {
  const running = await waitForRunningStack(projectFolder, 60_000);
  if (running?.temporalAddress) {
    clock.say(`attached to the processes of \`ratchet dev\` (process ${running.pid})`);
    return { stack: null, address: running.temporalAddress, uiUrl: running.uiUrl };
  }
  const elsewhere = process.env['TEMPORAL_ADDRESS'];
  if (elsewhere && (await hasWorkers(elsewhere))) {
    clock.say(`attached to the workers at ${elsewhere}`);
    return { stack: null, address: elsewhere, uiUrl: null };
  }
  const weightRoot = fileURLToPath(spec.store.uri);
  await mkdir(weightRoot, { recursive: true });
  const policyPort = await choosePolicyPort();
  try {
    const cli = process.env['TEMPORAL_ADDRESS'] ? null : await findServer(clock);
    clock.say(`${clock.part(3)}starting ${cli ? 'server, ' : ''}1 trainer, 1 rollout worker, policy server`);
    const stack = await startStack({
      projectFolder,
      policyUrl: policyUrlAt(policyPort),
      roles: (place) => localRoles(place, { weightRoots: [weightRoot], policyPort }),
      log: clock.say,
      signal,
      ...(cli ? { temporalCli: async () => cli } : {}),
    });
    return { stack, address: stack.temporalAddress, uiUrl: stack.uiUrl };
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
  { step, policyDigest, ledger, run }: RunSummary,
  spec: RunSpec,
  stack: Stack | null,
  clock: Clock,
): void {
  const restarts = Object.values(stack?.restarts() ?? {}).reduce((sum, count) => sum + count, 0);
  const parts = Object.entries(ledger.counts).map(([state, count]) => `${count} ${state}`);
  if (ledger.pending > 0) parts.push(`${ledger.pending} pending`);
  clock.say(
    `done: step ${step} of ${spec.maxSteps} · ${restarts} processes restarted · ledger ${ledger.issued} groups issued = ${parts.join(' + ')} ${ledger.isSound ? '✓' : '✗ NOT SOUND'}`,
  );
  clock.say(`policy  ${fileURLToPath(spec.store.uri)}${run}/weights/step_${step}   (${policyDigest.slice(0, 12)})`);
}

function sayNext(run: string, file: string, spec: RunSpec, clock: Clock): void {
  const command = `npx ratchet train ${file}`;
  clock.say(
    `next    further: ${command}${nameOption(run, file)} --max-steps ${spec.maxSteps * 2}      afresh: ${command} --fresh`,
  );
}

function stopped(run: string, file: string, clock: Clock): number {
  clock.say(
    `stopped. The run ${run} is not lost: npx ratchet train ${file}${nameOption(run, file)} goes on where it is`,
  );
  return 130;
}

function detached(run: string, file: string, clock: Clock): number {
  clock.say(`detached. The run ${run} goes on; npx ratchet train ${file}${nameOption(run, file)} attaches again`);
  return 0;
}

function nameOption(run: string, file: string): string {
  return path.basename(file, '.toml') === run ? '' : ` --name ${run}`;
}

/** The message at the bottom of a chain of failures: what went wrong, without what it was wrapped in. */
function rootMessage(error: Error): string {
  let current: Error = error;
  while (current.cause instanceof Error && !(current instanceof RatchetError)) {
    if (current.cause.message === '') break;
    current = current.cause;
  }
  return current.message;
}
