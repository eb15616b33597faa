import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { installService, planService, uninstallService } from '../../workers/stack/service.ts';
import { argumentsOfPool, readJoinedPool } from '../../workers/roles/joined-pool.ts';
import { print } from '../output/print.ts';

export interface DevOptions {
  readonly weights: string[];
  readonly gpuWorkers: number;
  readonly rolloutWorkers: number;
  readonly metricsPort?: number;
  readonly serve?: string;
  readonly pool?: string;
  readonly label?: string[];
  readonly grace?: number;
  readonly page?: boolean;
  readonly installService?: boolean;
  readonly uninstallService?: boolean;
}

/** Writes or removes this folder's service, and prints the remaining steps. */
export function tellService(projectFolder: string, options: DevOptions, installs: boolean): void {
  const { weights, gpuWorkers, rolloutWorkers } = options;
  const ratchet = fileURLToPath(new URL('../ratchet.mjs', import.meta.url));
  const { metricsPort } = options;
  const workers = [
    '--gpu-workers',
    String(gpuWorkers),
    '--rollout-workers',
    String(rolloutWorkers),
    ...(metricsPort === undefined ? [] : ['--metrics-port', String(metricsPort)]),
    ...(options.page === false ? ['--no-page'] : []),
    ...(options.grace === undefined ? [] : ['--grace', String(options.grace)]),
    ...argumentsOfPool(readJoinedPool(options.pool, options.label)),
    ...(options.serve === undefined ? [] : ['--serve', path.resolve(projectFolder, options.serve)]),
  ];
  const command = [process.execPath, ratchet, 'dev', ...workers, '--weights', ...weights];
  const plan = planService({ projectFolder, command, graceSeconds: options.grace });
  const say = print;
  if (installs) {
    say(`${plan.file}: ${installService(plan)}. It is not enabled yet:`);
    for (const line of [...plan.toEnable, '', ...plan.notes]) say(line === '' ? '' : `  ${line}`);
    say(
      'Runs that are open when the machine goes down continue when it is back. To end it for good: npx ratchet-rl dev --uninstall-service',
    );
    return;
  }
  if (!uninstallService(plan)) return say(`There is no service for ${projectFolder}: ${plan.file} does not exist.`);
  say(`${plan.file}: removed. If it is running, end it:`);
  for (const line of plan.toDisable) say(`  ${line}`);
}
