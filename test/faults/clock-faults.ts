/** Rows in which processes stop for a while and then continue as if nothing had happened. */
import { setTimeout as delay } from 'node:timers/promises';
import type { Rows, Struck } from './row.ts';
import { heartbeatTimeoutMs } from './fake-run.ts';

export const clockFaults = {
  'zombie: suspended, and continued when another has its work': {
    stage: 'fake',
    action: 'hold',
    strike: zombie,
  },
  'machine asleep': {
    stage: 'fake',
    action: 'hold',
    strike: async ({ stage, release, harmEnds }) => {
      const pids = Object.values(stage.stack.pids()).filter((pid) => pid !== null);
      for (const pid of pids) process.kill(pid, 'SIGSTOP');
      release();
      await delay(10 * heartbeatTimeoutMs);
      for (const pid of pids) process.kill(pid, 'SIGCONT');
      harmEnds();
    },
    columns: {
      only: ['generate', 'train'],
      because: 'ten heartbeats are long, and asleep all processes are alike: two columns say it',
    },
  },
} satisfies Rows;

export async function zombie({ fired, release }: Struck): Promise<void> {
  process.kill(fired.pid, 'SIGSTOP');
  release();
  await delay(2 * heartbeatTimeoutMs);
  process.kill(fired.pid, 'SIGCONT');
}
