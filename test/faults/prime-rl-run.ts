/** Runs of cells that prime-rl's trainer trains, as a stand-in on two ranks; the embedded engine samples. */
import path from 'node:path';
import { writeStandInPrimeRl } from '../stand-ins/prime-rl/python.ts';
import { heartbeatTimeoutMs, type RunOptions } from './fake-run.ts';
import type { StageKind } from './stage-kinds.ts';

/** Supervised steps before the first of a run: they pass its failpoints as well. */
export const warmUpSteps = 4;

export const primeRlOnTwoRanks: StageKind = {
  engine: 'prime-rl',
  run: primeRlRun,
  surround: (folder) =>
    Promise.resolve({
      environment: { RATCHET_PENDING: pendingIn(folder) },
      overrides: { 'trainer.program': writeStandInPrimeRl(folder) },
    }),
};

/** Below it are the folders that its trainers work in. */
export function pendingIn(folder: string): string {
  return path.join(folder, 'pending');
}

function primeRlRun({ steps }: RunOptions): string {
  return `
model = "preset:reverse-text-0.2m"
max_steps = ${steps}
seq_len = 64
batch_size = 32
rollouts_per_example = 4
learning_rate = 1e-3
max_async_level = 0
heartbeat_timeout = ${heartbeatTimeoutMs / 1000}
[sampling]
max_tokens = 10
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 4 }
[sft]
steps = ${warmUpSteps}
batch_size = 16
learning_rate = 3e-3
[trainer]
kind = "prime-rl"
program = "python3"
ranks = 2
rank_timeout = 20
advantage = "std_normalized"
[trainer.loss]
type = "dppo"
[checkpoints]
interval = 2
keep_last = 2
`;
}
