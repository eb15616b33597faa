/** The run of cells on a Tinker server, and that server: the stand-in, a process beside the stage. Its arithmetic is our own engine's. */
import path from 'node:path';
import { StandInProcess } from '../stand-ins/tinker/process.ts';
import type { StandInOptions } from '../stand-ins/tinker/options.ts';
import { heartbeatTimeoutMs, type RunOptions } from './fake-run.ts';
import type { Surroundings } from './stage-kinds.ts';

const model = 'preset:reverse-text-0.2m';

/** Longer than the time between two heartbeats of a session, and soon enough that workers which were killed leave room. */
const sessionTimeoutMs = 15_000;

/** Few turns at once, so that a part of a chunk is stored while others are sampled. The warm-up is the server's, too. */
export function tinkerRun({ steps }: RunOptions): string {
  return `
model = "${model}"
max_steps = ${steps}
batch_size = 32
rollouts_per_example = 4
learning_rate = 1e-2
max_async_level = 0
heartbeat_timeout = ${heartbeatTimeoutMs / 1000}
[sampling]
max_tokens = 6
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 4 }
[sft]
steps = 4
batch_size = 16
[lora]
r = 4
[trainer]
kind = "tinker"
url = "http://127.0.0.1:9"
advantage = "std_normalized"
[inference]
kind = "tinker"
max_concurrent = 4
[checkpoints]
interval = 2
keep_last = 2
`;
}

/** Like SkyRL's FSDP backend, with what it ignores heeded: compared are the weights of equal settings. */
export function startOneModelServer(folder: string): Promise<Surroundings> {
  return startTinkerServer(folder, { holdsOne: true, heedsOptimizer: true });
}

export async function startTinkerServer(folder: string, more: Partial<StandInOptions> = {}): Promise<Surroundings> {
  const sampledLog = path.join(folder, 'sampled');
  const tinker = await StandInProcess.start({
    folder: path.join(folder, 'tinker'),
    model,
    maxAdapters: 32,
    sessionTimeoutMs,
    callMs: { forward_backward: 50, optim_step: 20 },
    // A step samples for more than a second: parts of it are stored every half second.
    tokenMs: 25,
    sampledLog,
    ...more,
  });
  return { tinker, sampledLog, overrides: { 'trainer.url': tinker.url }, close: () => tinker.kill() };
}
