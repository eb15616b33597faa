import { Command, Option } from 'commander';
import { workerRoles, type WorkerRole } from '../../core/names.ts';

export const workerCommand = new Command('worker')
  .description('one worker against a Temporal server elsewhere (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE)')
  .addOption(new Option('--role <role>', 'what it works on').choices(workerRoles).makeOptionMandatory())
  .option('--policy-url <url>', 'policy server of runs whose config names none', 'http://127.0.0.1:8420')
  .action(async ({ role, policyUrl }: { role: WorkerRole; policyUrl: string }) => {
    const address = process.env['TEMPORAL_ADDRESS'] ?? '127.0.0.1:7233';
    const namespace = process.env['TEMPORAL_NAMESPACE'] ?? 'default';
    const { openWorker } = await import('../../workers/worker.ts'); // seconds of loading that --help should not wait for
    const worker = await openWorker({ role, address, namespace, projectFolder: process.cwd(), policyUrl });
    process.stdout.write(`${role} worker ready at ${address}, namespace ${namespace}\n`);
    await worker.run();
  });
