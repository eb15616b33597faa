/** Runs of cells that PyTorch trains, on two ranks of the processor; the embedded engine samples. */
import { ensureTorch } from '../engines/torch-cpu.ts';
import { heartbeatTimeoutMs, type RunOptions } from './fake-run.ts';
import type { StageKind, Surroundings } from './stage-kinds.ts';
import { StageUnavailable } from './stage-unavailable.ts';

/** Time after which ranks give one of them up, in place of ten minutes. A step of theirs takes far less. */
export const rankTimeoutS = 5;

export const torchOnTwoRanks: StageKind = { engine: 'torch', run: torchRun, surround: findTorch };

function torchRun({ steps }: RunOptions): string {
  return `
model = "preset:reverse-text-0.2m"
max_steps = ${steps}
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
steps = 10
batch_size = 16
learning_rate = 3e-3
[trainer]
kind = "torch"
ranks = 2
rank_timeout = ${rankTimeoutS}
advantage = "std_normalized"
[checkpoints]
interval = 2
keep_last = 2
`;
}

async function findTorch(): Promise<Surroundings> {
  const found = await ensureTorch();
  if ('missing' in found) throw new StageUnavailable(`no PyTorch here: ${found.missing}`);
  return { overrides: { 'trainer.program': found.python } };
}
