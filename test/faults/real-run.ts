/** The run of cells on the embedded engine: its bits are compared, so it is one that promises equal bits. */
import { heartbeatTimeoutMs, type RunOptions } from './fake-run.ts';

/** Seconds on two cores: 8 groups of 4 a step, a warm-up of one segment that only just learns to speak. */
export function realRun({ steps }: RunOptions): string {
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
steps = 40
batch_size = 16
learning_rate = 3e-3
[trainer]
advantage = "std_normalized"
[checkpoints]
interval = 2
keep_last = 2
`;
}
