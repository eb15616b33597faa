import { parseArgs } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import { workerRoles, type WorkerRole } from '../core/names.ts';
import { holdSecret } from '../engine/project-secret.ts';
import { takeCredentials } from './credentials.ts';
import { runWorker } from './run-worker.ts';
import { openWorker } from './worker.ts';

/**
 * One worker process: `worker --role rollout`. Where Temporal is comes from TEMPORAL_ADDRESS and
 * its companions (`temporal-settings.ts`), the policy server from RATCHET_POLICY_URL, the project's folder is the current one.
 * `--grace`: seconds for what is under way when it is told to end. `--max-rollouts`: what a rollout worker plays at once. `--take-over`: nobody else orchestrates on that server, so runs of other workflow code are this one's.
 */
// Left to itself the heap of a worker grows for minutes, to several times of what it holds, before it is first looked through.
setFlagsFromString('--heap-growing-percent=50');
// As the command does (`cli/ratchet.mjs`): whoever started this process, what it writes is nobody's outside of the group.
process.umask(process.umask() | 0o007);

const { values } = parseArgs({
  options: {
    role: { type: 'string' },
    'take-over': { type: 'boolean' },
    grace: { type: 'string' },
    'max-rollouts': { type: 'string' },
  },
});
if (values.role === 'metrics') {
  const { followMetrics } = await import('./metrics-role.ts');
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
  onTakeOver: values['take-over'] === true ? (line) => void process.stdout.write(`${line}\n`) : undefined,
});
const running = runWorker(worker, (line) => void process.stderr.write(`${line}\n`));
process.stdout.write(`${values.role} worker ready\n`);
await running;

function isRole(role: string | undefined): role is WorkerRole {
  return workerRoles.some((known) => known === role);
}
