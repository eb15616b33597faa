import { setFlagsFromString } from 'node:v8';
import { Command, Option } from '@commander-js/extra-typings';
import { type KindOnNodes, kindsOnNodes } from '../../../backends/nodes/node-link.ts';
import { workerRoles, type WorkerRole } from '../../../core/names.ts';
import { RatchetError } from '../../../core/errors.ts';
import { present } from '../../../core/present.ts';
import { type HostAndPort, readHostAndPort } from '../../typed/read-host-and-port.ts';
import { readCount } from '../../typed/read-count.ts';
import { readShare } from '../../typed/read-share.ts';
import { graceSecondsDefault, readGrace } from '../../typed/read-grace.ts';
import { print, printAside } from '../../output/print.ts';

interface WorkerOptions {
  readonly role: WorkerRole | 'metrics' | 'trainer-node';
  readonly policyUrl: string;
  readonly grace?: number;
  readonly maxRollouts?: number;
  readonly targetCpu?: number;
  readonly targetMemory?: number;
  readonly pool?: string;
  readonly label?: string[];
  readonly program?: string;
  readonly trainer?: KindOnNodes;
  readonly health?: HostAndPort;
  readonly drainFile?: string;
  readonly drainHook?: string;
}

export const workerCommand = new Command('worker')
  .description(
    'one worker, or what hands metrics on, against a Temporal server elsewhere (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, …)',
  )
  .addOption(
    new Option('--role <role>', 'the kind of work that it does')
      .choices([...workerRoles, 'metrics', 'trainer-node'])
      .makeOptionMandatory(),
  )
  .option('--policy-url <url>', 'policy server of runs whose config names none', 'http://127.0.0.1:8420')
  .option(
    '--grace <seconds>',
    'how long work under way has to finish after SIGTERM: a GPU worker finishes its step and uploads it. Default: 20, of a rollout worker 0.5, as another one continues with its rollouts',
    readGrace,
  )
  .option(
    '--max-rollouts <n>',
    'rollouts that a rollout worker plays at once; it asks for more when it has room',
    (text) => readCount('--max-rollouts', text),
  )
  .option(
    '--target-cpu <share>',
    'of an orchestrator or rollout worker: it asks for more work while less than this share of the CPUs is in use, such as 0.9',
    (text) => readShare('--target-cpu', text),
  )
  .option('--target-memory <share>', 'the same of memory, of the machine or of its container', (text) =>
    readShare('--target-memory', text),
  )
  .option(
    '--pool <name>',
    'the pool that a GPU worker or rollout worker joins: it works for the runs whose [queue] names it',
  )
  .option(
    '--label <name=value...>',
    'labels of a GPU worker of a pool, such as gpu=h100, which [queue] labels may ask for',
  )
  .option(
    '--program <program>',
    'of a trainer-node: as [trainer] program, the Python with PyTorch (default: looked for), or the checkout of prime-rl',
  )
  .addOption(
    new Option('--trainer <kind>', 'of a trainer-node: as [trainer] kind (default: "torch")').choices(kindsOnNodes),
  )
  .option(
    '--health <host:port>',
    'where it answers GET /health and /ready, without a key, for probes: 0.0.0.0:8425 in a pod',
    readHostAndPort,
  )
  .option(
    '--drain-file <file>',
    'when this file appears, the worker ends as after SIGTERM; none begins while it is there',
  )
  .option(
    '--drain-hook <command>',
    'asked every 5 seconds; when it exits with 0, the worker ends as after SIGTERM (workers/cloud-notice.mjs asks a cloud)',
  )
  .action(async (options) => {
    try {
      await work(options);
    } catch (error) {
      setTimeout(() => process.exit(), lastWordMs).unref();
      throw error;
    }
  });

/**
 * Time for the failure message of a worker that could not be opened; its open connection would otherwise keep the
 * process alive.
 */
const lastWordMs = 2_000;

async function work(options: WorkerOptions): Promise<void> {
  const { role, policyUrl, grace, maxRollouts, program, trainer, pool, label, health, drainFile, drainHook } = options;
  const { targetCpu: cpu, targetMemory: memory } = options;
  if ((cpu ?? memory) !== undefined && role !== 'rollout' && role !== 'orchestrator')
    throw new RatchetError(
      'ConfigInvalid',
      `--target-cpu and --target-memory are of --role rollout and orchestrator; this worker is --role ${role}.`,
    );
  const loadTarget = (cpu ?? memory) === undefined ? undefined : present({ cpu, memory });
  if (maxRollouts !== undefined && role !== 'rollout')
    throw new RatchetError('ConfigInvalid', `--max-rollouts is of --role rollout; this worker is --role ${role}.`);
  for (const [name, value] of Object.entries({ program, trainer }))
    if (value !== undefined && role !== 'trainer-node')
      throw new RatchetError('ConfigInvalid', `--${name} is of --role trainer-node; this worker is --role ${role}.`);
  if ((pool !== undefined || label !== undefined) && role !== 'rollout' && role !== 'train')
    throw new RatchetError(
      'ConfigInvalid',
      `--pool and --label are of --role train and rollout; this worker is --role ${role}.`,
    );
  const { readJoinedPool } = await import('../../../workers/roles/joined-pool.ts');
  const joined = readJoinedPool(pool, label);
  if (role === 'metrics' || role === 'trainer-node')
    for (const [name, value] of Object.entries({
      ...(role === 'metrics' ? { health } : {}),
      'drain-file': drainFile,
      'drain-hook': drainHook,
    }))
      if (value !== undefined)
        throw new RatchetError('ConfigInvalid', `--${name} is of workers that hold work; this is --role ${role}.`);
  if (role === 'metrics') return followHere();
  let whyNotReady = (): string | null => 'it begins';
  if (health !== undefined) {
    const { addressOf, startHealthServer } = await import('../../../workers/roles/health-server.ts');
    const server = await startHealthServer({ ...health, whyNotReady: () => whyNotReady() });
    print(`health and readiness at ${addressOf(server)}`);
  }
  if (role === 'trainer-node') {
    const { runTrainerNode } = await import('../../start/trainer-node.ts');
    const onReady = (): void => void (whyNotReady = () => null);
    return runTrainerNode({ kind: trainer ?? 'torch', program: program ?? null, endsWithRun: false, onReady });
  }
  // the same flag as in workers/main.ts
  setFlagsFromString('--heap-growing-percent=50');
  const { openWorker } = await import('../../../workers/roles/worker.ts'); // seconds of loading that --help should not wait for
  const { runWorker } = await import('../../../workers/roles/run-worker.ts');
  const { takeCredentials } = await import('../../../workers/temporal/credentials.ts');
  const { untilNoFile } = await import('../../../workers/roles/announced-end.ts');
  const credentials = takeCredentials();
  await untilNoFile(drainFile, { say: printAside });
  if (role === 'train') {
    const { ensureEngineLibrary } = await import('../../../workers/install/engine-library.ts');
    await ensureEngineLibrary(printAside);
  }
  const projectFolder = process.cwd();
  const worker = await openWorker({
    role,
    ...credentials,
    projectFolder,
    policyUrl,
    graceMs: (grace ?? graceSecondsDefault[role]) * 1000,
    ...present({ maxRollouts, joined, loadTarget }),
  });
  const { address, namespace } = credentials.temporal;
  whyNotReady = () => worker.whyNotReady();
  const running = runWorker(worker, (line) => printAside(line), { file: drainFile, hook: drainHook });
  print(`${role} worker ready at ${address}, namespace ${namespace}${joined ? `, pool ${joined.pool}` : ''}`);
  await running;
}

/** TensorBoard's files, W&B and /metrics of all runs there: one for each Temporal namespace. */
async function followHere(): Promise<never> {
  const { takeCredentials } = await import('../../../workers/temporal/credentials.ts');
  const { followMetrics } = await import('../../../workers/metrics/metrics-role.ts');
  await followMetrics({ ...takeCredentials(), say: print });
  process.exit(0);
}
