/** Rows of runs that prime-rl's trainer trains. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { processesIn } from '../../backends/prime-rl/processes.mjs';
import type { Column } from './columns.ts';
import { pendingIn } from './prime-rl-run.ts';
import { kill } from './process-faults.ts';
import type { Row, Rows, Struck } from './row.ts';

/** Each death costs a start of the trainer. */
const limitMs = 600_000;

const because = 'no process of the trainer has anything under way there that the columns beside it lack';

const onRanks = (...only: readonly Column[]) =>
  ({ stage: 'prime-rl', action: 'hold', losesNothing: true, limitMs, columns: { only, because } }) as const satisfies Partial<Row>; // prettier-ignore

export const primeRlFaults = {
  'rank killed (prime-rl)': { ...onRanks('plan', 'rank_files', 'STABLE', 'train', 'trained', 'checkpoint'), strike: (struck) => killTrainer(struck, 'rank.ts') }, // prettier-ignore
  'torchrun killed (prime-rl)': { ...onRanks('plan', 'rank_files', 'STABLE', 'train', 'trained', 'checkpoint'), strike: (struck) => killTrainer(struck, 'program.mjs') }, // prettier-ignore
  'GPU worker killed (prime-rl)': { ...onRanks('plan', 'rank_files', 'STABLE', 'train', 'trained', 'checkpoint'), strike: killWorker }, // prettier-ignore
} satisfies Rows;

/** One of its processes, by what its command names. */
function killTrainer({ stage }: Struck, name: string): Promise<void> {
  const found = trainers(stage).filter((pid) => commandOf(pid).includes(name));
  assert.ok(found.length > 0, `the trainer has a process ${name}`);
  process.kill(found.at(-1)!, 'SIGKILL');
  return Promise.resolve();
}

async function killWorker({ stage }: Struck): Promise<void> {
  assert.ok(trainers(stage).length > 0, 'the GPU worker has a trainer');
  await kill(stage, 'train worker');
}

function trainers(stage: Struck['stage']): number[] {
  return processesIn(pendingIn(stage.folder));
}

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8');
  } catch {
    return ''; // it has ended
  }
}
