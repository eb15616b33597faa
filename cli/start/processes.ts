import { mkdir } from 'node:fs/promises';
import type { Client } from '@temporalio/client';
import { RatchetError } from '../../core/errors.ts';
import { trainerGpusOf } from '../../config/gpu-settings.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { variablesOfWorkers } from '../../backends/environments/variables.ts';
import { keyVariables } from '../../backends/inference/index.ts';
import { allCopies, localRoot } from '../../store/index.ts';
import { type RunningStack, StackAlreadyRunning, waitForRunningStack } from '../../workers/stack/project-lock.ts';
import { choosePolicyPort, localRoles, policyUrlAt } from '../../workers/stack/roles.ts';
import { startStack, type Stack } from '../../workers/stack/supervisor.ts';
import { ensureTemporalCli, type TemporalCli } from '../../workers/temporal/temporal-cli.ts';
import { remoteTemporal } from '../../workers/temporal/temporal-settings.ts';
import type { JoinedPool } from '../../workers/roles/joined-pool.ts';
import { vllmRole } from '../../workers/stack/vllm-role.ts';
import type { Clock } from '../output/clock.ts';
import { connect, hasWorkers, temporalOf } from '../../workers/temporal/client.ts';
import { watchStack, whenLeft } from '../follow/watch-run.ts';

type Reporter = Pick<Clock, 'say' | 'part'>;

/** Connections that a command uses while the processes run. */
interface AtWork {
  readonly client: Client;
  /** Null when the processes are another command's. */
  readonly stack: Stack | null;
  readonly uiUrl: string | null;
  readonly interrupted: AbortController;
  /** Aborted when the other command's processes have ended. */
  readonly gone: AbortSignal;
}

/**
 * Does `work` with the processes of this folder: the running ones, or new ones that are stopped afterwards. null when
 * interrupted before they were ready.
 */
export async function withProcesses<T>(
  needs: ProcessesNeeds,
  reporter: Reporter,
  work: (at: AtWork) => Promise<T>,
  { interrupted, stop: stopListening } = whenLeft(),
): Promise<T | null> {
  const projectFolder = process.cwd();
  const processes = await openProcesses(needs, projectFolder, reporter, interrupted.signal);
  if (!processes) return null;
  const { stack, pid, address, uiUrl } = processes;
  const { client, close } = await connect(temporalOf(processes, address));
  const watched = watchStack(projectFolder, pid);
  try {
    return await work({ client, stack, uiUrl, interrupted, gone: watched.gone });
  } finally {
    watched.stop();
    stopListening();
    await close();
    await stack?.stop();
  }
}

/** Line with the workflow's address in Temporal's UI. */
export function uiLine(uiUrl: string, { workflowId }: { readonly workflowId: string }): string {
  return `Temporal UI  ${uiUrl}/namespaces/default/workflows/${encodeURIComponent(workflowId)}`;
}

interface Processes {
  /** Null when the processes are another command's. */
  readonly stack: Stack | null;
  /** That command, when it runs in this folder. */
  readonly pid: number | null;
  readonly address: string;
  readonly uiUrl: string | null;
}

interface ProcessesNeeds {
  /** Absolute URI of the folder of runs: the policy server loads weights from it. */
  readonly storeUri: string;
  /** Variables (keys) that workers see besides the default ones, by name. */
  readonly workersSee: readonly string[];
  /** Folders of further weights that the policy server loads: a teacher's. */
  readonly weightsAt?: readonly string[];
  /** Environments that are played or scored. If workers are started here, their variables must be set here, and the keys of agents. */
  readonly environments?: Parameters<typeof variablesOfWorkers>[0];
  /** The run, which may need servers of its own. */
  readonly spec?: RunSpec;
  /** Nothing is trained, and other servers have the model. */
  readonly playsOnly?: boolean;
  /** The pool that an evaluation or a search plays in; a run names its own. */
  readonly pool?: string;
}

export function needsOf(spec: RunSpec): ProcessesNeeds {
  const environments = [...spec.environments, ...(spec.eval?.environments ?? [])];
  const reflectionKey = spec.gepa?.apiKeyVar ?? null;
  const workersSee = [
    ...keyVariables(spec),
    ...('apiKeyVar' in spec.trainer ? [spec.trainer.apiKeyVar ?? []].flat() : []),
    ...(reflectionKey === null ? [] : [reflectionKey]),
  ];
  const teacher = spec.teacher?.folder;
  const weightsAt = teacher == null ? {} : { weightsAt: [teacher] };
  return { storeUri: spec.store.uri, workersSee, environments, spec, ...weightsAt };
}

/**
 * Attaches to this folder's stack, or starts one. null when interrupted. Throws `ConfigInvalid` when a variable that
 * environments need is not set.
 */
export async function openProcesses(
  needs: ProcessesNeeds,
  projectFolder: string,
  clock: Reporter,
  signal: AbortSignal,
): Promise<Processes | null> {
  for (;;) {
    const here = await attachHere(needs, projectFolder, clock, signal);
    if (signal.aborted) return null;
    if (here) return here;
    try {
      return await startHere(needs, projectFolder, clock, signal);
    } catch (error) {
      if (signal.aborted) return null;
      // Another command was typed in the same seconds.
      if (!(error instanceof StackAlreadyRunning) || error.running.state === 'not answering') throw error;
      clock.say(`process ${error.running.pid} starts the processes of this folder; waiting until they are ready`);
    }
  }
}

/** How long the processes of another command may take to start. */
const otherStartMs = 60_000;

async function attachHere(
  { playsOnly = false }: ProcessesNeeds,
  projectFolder: string,
  clock: Reporter,
  signal: AbortSignal,
): Promise<Processes | null> {
  const running = await waitForRunningStack(projectFolder, otherStartMs, signal);
  if (!running?.temporalAddress) return null;
  if (running.playsOnly && !playsOnly) throw new RatchetError('Unsupported', onlyPlays(running));
  clock.say(`attached to the processes that run here (process ${running.pid})`);
  return { stack: null, pid: running.pid, address: running.temporalAddress, uiUrl: running.uiUrl };
}

/** Starts a stack, unless workers elsewhere are used. Throws `StackAlreadyRunning` when another command was faster. */
async function startHere(
  { storeUri, workersSee, environments = [], weightsAt = [], spec, playsOnly = false, pool }: ProcessesNeeds,
  projectFolder: string,
  clock: Reporter,
  signal: AbortSignal,
): Promise<Processes> {
  const elsewhere = process.env['TEMPORAL_ADDRESS'];
  if (elsewhere && (await hasWorkers(remoteTemporal(elsewhere)))) {
    clock.say(`attached to the workers at ${elsewhere}`);
    return { stack: null, pid: null, address: elsewhere, uiUrl: null };
  }
  // Other runs may join these processes, even with weights copied from S3.
  const ownRoots = [localRoot(storeUri), allCopies()];
  for (const root of ownRoots) await mkdir(root, { recursive: true });
  const weightRoots = [...new Set([...ownRoots, ...weightsAt])];
  const workersAlsoSee = variablesOfWorkers(environments); // reports what is missing before anything starts
  const policyPort = await choosePolicyPort();
  const cli = elsewhere ? null : await findServer(clock, projectFolder);
  const vllm = spec ? await vllmRole(spec, projectFolder) : null;
  const servers = vllm ? `policy server, vLLM (${vllm.url}, .ratchet/logs/vllm-server.log)` : 'policy server';
  const roles = playsOnly ? '1 rollout worker' : `1 trainer, 1 rollout worker, ${servers}`;
  const stack = await startStack({
    projectFolder,
    onHold: () => clock.say(`${clock.part(3)}starting ${cli ? 'server, ' : ''}${roles}`),
    ...(playsOnly ? { playsOnly } : { policyUrl: policyUrlAt(policyPort) }),
    roles: localRoles({
      weightRoots,
      policyPort,
      vllm,
      trainerGpus: spec ? trainerGpusOf(spec) : null,
      workersSee: [...workersSee, ...workersAlsoSee],
      playsOnly,
      joined: joinedBy(spec, pool),
    }),
    log: clock.say,
    signal,
    ...(cli ? { temporalCli: async () => cli } : {}),
  });
  return { stack, pid: null, address: stack.temporalAddress, uiUrl: stack.uiUrl };
}

function joinedBy(spec: RunSpec | undefined, pool: string | undefined): JoinedPool | undefined {
  if (spec?.queue) return { pool: spec.queue.pool, labels: spec.queue.labels };
  return pool === undefined ? undefined : { pool, labels: {} };
}

function onlyPlays({ projectFolder, pid }: RunningStack): string {
  return `An evaluation or a prompt search is at work in ${projectFolder} (process ${pid}), with neither a GPU worker nor a policy server beside it. Wait until it has ended, or leave it with Ctrl-C: the same command continues with it. Then type this again.`;
}

async function findServer(clock: Reporter, projectFolder: string): Promise<TemporalCli> {
  const cli = await ensureTemporalCli({ projectFolder, log: (line) => clock.say(`${clock.part(2)}${line}`) });
  clock.say(`${clock.part(2)}Temporal server: ${cli.serverVersion} (${cli.source})`);
  return cli;
}
