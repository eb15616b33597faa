/** Rows in which a process is killed. */
import { setTimeout as delay } from 'node:timers/promises';
import type { Row, Rows, Struck } from './row.ts';

const killed = (role: string): Row => ({ stage: 'fake', action: 'hold', strike: (struck) => kill(struck, role) });

export const processFaults = {
  'orchestrator worker killed': killed('orchestrator worker'),
  'rollout worker killed': killed('rollout worker'),
  'GPU worker killed': killed('train worker'),
  'Temporal server killed': killed('Temporal server'),
} satisfies Rows;

/** Returns when the supervisor has noticed. */
async function kill({ stage }: Struck, role: string): Promise<void> {
  const restartsBefore = stage.stack.restarts()[role] ?? 0;
  process.kill(stage.pid(role), 'SIGKILL');
  while ((stage.stack.restarts()[role] ?? 0) === restartsBefore) await delay(20);
}
