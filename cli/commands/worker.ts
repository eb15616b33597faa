import { Command, Option } from 'commander';
import { workerRoles, type WorkerRole } from '../../core/names.ts';

export const workerCommand = new Command('worker')
  .description(
    'one worker, or what hands metrics on, against a Temporal server elsewhere (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, …)',
  )
  .addOption(new Option('--role <role>', 'what it works on').choices([...workerRoles, 'metrics']).makeOptionMandatory())
  .option('--policy-url <url>', 'policy server of runs whose config names none', 'http://127.0.0.1:8420')
  .action(async ({ role, policyUrl }: { role: WorkerRole | 'metrics'; policyUrl: string }) => {
    if (role === 'metrics') return followHere();
    const { openWorker } = await import('../../workers/worker.ts'); // seconds of loading that --help should not wait for
    const { takeCredentials } = await import('../../workers/credentials.ts');
    const credentials = takeCredentials();
    const worker = await openWorker({ role, ...credentials, projectFolder: process.cwd(), policyUrl });
    const { address, namespace } = credentials.temporal;
    process.stdout.write(`${role} worker ready at ${address}, namespace ${namespace}\n`);
    await worker.run();
  });

/** TensorBoard's files, W&B and /metrics of all runs there: one for each Temporal namespace. */
async function followHere(): Promise<void> {
  const { takeCredentials } = await import('../../workers/credentials.ts');
  const { followMetrics } = await import('../../workers/metrics-role.ts');
  await followMetrics({ ...takeCredentials(), say: (line) => void process.stdout.write(`${line}\n`) });
}
