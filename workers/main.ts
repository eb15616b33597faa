import { parseArgs } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import { setTimeout as delay } from 'node:timers/promises';
import { closeProcesses } from '../backends/processes-open.ts';
import { workerRoles, type WorkerRole } from '../core/names.ts';
import { takeCredentials } from './credentials.ts';
import { openWorker } from './worker.ts';

/**
 * One worker process: `workers/main.ts --role rollout`. Where Temporal is comes from TEMPORAL_ADDRESS and
 * its companions (`temporal-settings.ts`), the policy server from RATCHET_POLICY_URL, the project's folder is the current one.
 * `--take-over`: nobody else orchestrates on that server, so runs of other workflow code are this one's.
 */
// Left to itself the heap of a worker grows for minutes, to several times of what it holds, before it is first looked through.
setFlagsFromString('--heap-growing-percent=50');

/** A supervisor waits a little longer before it ends us. */
const closeMsMax = 1_000;

const { values } = parseArgs({ options: { role: { type: 'string' }, 'take-over': { type: 'boolean' } } });
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
const worker = await openWorker({
  role: values.role,
  ...takeCredentials(),
  projectFolder: process.cwd(),
  policyUrl: process.env['RATCHET_POLICY_URL'] ?? 'http://127.0.0.1:8420',
  vllmUrl: process.env['RATCHET_VLLM_URL'] ?? '',
  onTakeOver: values['take-over'] === true ? (line) => void process.stdout.write(`${line}\n`) : undefined,
});
process.stdout.write(`${values.role} worker ready\n`);
await worker.run();
// Python ends by itself when we do; asked to, it lets environments close what they have open.
await Promise.race([closeProcesses(), delay(closeMsMax)]);
process.exit(0);

function isRole(role: string | undefined): role is WorkerRole {
  return workerRoles.some((known) => known === role);
}
