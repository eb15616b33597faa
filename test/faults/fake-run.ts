/** The run of most cells: real processes, store and workflow; a trainer and an inference that cost nothing. */
import { fileURLToPath } from 'node:url';

const here = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

/** As short as a run may have it, so that a dead worker is soon found out. */
export const heartbeatTimeoutMs = 2_000;

export interface RunOptions {
  readonly steps: number;
  /** Where the inference notes its answers. */
  readonly log: string;
  /** The longest answer; others take a part of it. */
  readonly sampleMs?: number;
}

/** Seconds at full speed: 8 groups of 4 a step, a checkpoint every other step. */
export function fakeRun({ steps, log, sampleMs = 20 }: RunOptions): string {
  return `
model = "preset:reverse-text-0.2m"
max_steps = ${steps}
batch_size = 32
rollouts_per_example = 4
max_async_level = 0
heartbeat_timeout = ${heartbeatTimeoutMs / 1000}
[sampling]
max_tokens = 10
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 5 }
[trainer]
kind = "module"
import = ${JSON.stringify(here('fake-trainer.ts'))}
options = { stepMs = 100 }
[inference]
kind = "module"
import = ${JSON.stringify(here('fake-inference.ts'))}
options = { log = ${JSON.stringify(log)}, sampleMs = ${sampleMs} }
[checkpoints]
interval = 2
keep_last = 2
`;
}
