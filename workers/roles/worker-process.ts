import { parseArgs } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import { workerRoles, type WorkerRole } from '../../core/names.ts';
import { holdSecret } from '../../host/project-secret.ts';
import { takeCredentials } from '../temporal/credentials.ts';
import { readJoinedPool } from './joined-pool.ts';
import { runWorker } from './run-worker.ts';
import { openWorker } from './worker.ts';

/**
 * One worker process: `worker --role rollout`. TEMPORAL_ADDRESS and its companions (`temporal-settings.ts`) name
 * Temporal, RATCHET_POLICY_URL the policy server; the current folder is the project's. `--grace`: seconds for work
 * under way at shutdown. `--max-rollouts`: rollouts that a rollout worker generates at once. `--pool`, `--label`: the pool that it joins. `--take-over`: this is the
 * server's only orchestrator, so it takes over runs of other workflow code.
 */
// Without this a worker's heap grows for minutes, to several times its contents, before the first full collection.
setFlagsFromString('--heap-growing-percent=50');
// Same as in the command (`cli/ratchet.mjs`): files written here are closed to users outside the group.
process.umask(process.umask() | 0o007);

const { values } = parseArgs({
  options: {
    role: { type: 'string' },
    'take-over': { type: 'boolean' },
    grace: { type: 'string' },
    'max-rollouts': { type: 'string' },
    pool: { type: 'string' },
    label: { type: 'string', multiple: true },
  },
});
if (values.role === 'metrics') {
  const { followMetrics } = await import('../metrics/metrics-role.ts');
  await followMetrics({ ...takeCredentials(), say: (line) => void process.stdout.write(`${line}\n`) });
  process.exit(0);
}
if (!isRole(values.role)) {
  process.stderr.write(
    `--role: expected one of ${[...workerRoles, 'metrics'].join(', ')}, got ${values.role ?? 'nothing'}.\n`,
  );
  process.exit(2);
}
holdSecret(process.cwd());
const worker = await openWorker({
  role: values.role,
  ...takeCredentials(),
  projectFolder: process.cwd(),
  policyUrl: process.env['RATCHET_POLICY_URL'] ?? 'http://127.0.0.1:8420',
  vllmUrl: process.env['RATCHET_VLLM_URL'] ?? '',
  ...(values.grace === undefined ? {} : { graceMs: Number(values.grace) * 1000 }),
  ...(values['max-rollouts'] === undefined ? {} : { maxRollouts: Number(values['max-rollouts']) }),
  joined: readJoinedPool(values.pool, values.label),
  onTakeOver: values['take-over'] === true ? (line) => void process.stdout.write(`${line}\n`) : undefined,
});
const running = runWorker(worker, (line) => void process.stderr.write(`${line}\n`));
process.stdout.write(`${values.role} worker ready\n`);
await running;

function isRole(role: string | undefined): role is WorkerRole {
  return workerRoles.some((known) => known === role);
}
