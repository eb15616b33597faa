/** The run of most cells: real processes, store and workflow; a trainer and an inference that cost nothing. */
import { fileURLToPath } from 'node:url';

const here = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

/** The shortest that a run may have, so that a dead worker is detected soon. */
export const heartbeatTimeoutMs = 2_000;

export interface RunOptions {
  readonly steps: number;
  /** Log of the inference's answers. */
  readonly log: string;
  /** The longest answer; others take a part of it. */
  readonly sampleMs?: number;
}

export interface FakeRunOptions extends RunOptions {
  readonly batchSize?: number;
  readonly rolloutsPerExample?: number;
  readonly asyncLevel?: number;
  /** Limit for rollouts in flight; none when missing. */
  readonly maxConcurrent?: number;
  readonly stepMs?: number;
  readonly heartbeatTimeoutS?: number;
  readonly checkpointInterval?: number;
  /** In place of the inference of a few lines: `[inference]`. */
  readonly inference?: string;
  /** In place of short words to be written backwards: `model`, and `[[env]]`. */
  readonly model?: string;
  readonly environment?: string;
  /** `[eval]`; none when missing. */
  readonly evaluation?: string;
  /** `[queue]`; none when missing. */
  readonly queue?: string;
  readonly seed?: number;
  /** Log of the trainer's steps. */
  readonly trained?: string;
}

/** Takes seconds at full speed by default: 8 groups of 4 a step, a checkpoint every other step. */
export function fakeRun(options: FakeRunOptions): string {
  const { steps, log, sampleMs = 20, batchSize = 32, rolloutsPerExample = 4, asyncLevel = 0 } = options;
  const {
    stepMs = 100,
    heartbeatTimeoutS = heartbeatTimeoutMs / 1000,
    checkpointInterval = 2,
    maxConcurrent,
  } = options;
  const inference = `[inference]
kind = "module"
import = ${JSON.stringify(here('fake-inference.ts'))}
options = { log = ${JSON.stringify(log)}, sampleMs = ${sampleMs} }`;
  const environment = `[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 5 }`;
  return `
model = ${JSON.stringify(options.model ?? 'preset:reverse-text-0.2m')}
max_steps = ${steps}
seed = ${options.seed ?? 0}
batch_size = ${batchSize}
rollouts_per_example = ${rolloutsPerExample}
max_async_level = ${asyncLevel}
${maxConcurrent === undefined ? '' : `max_concurrent = ${maxConcurrent}`}
heartbeat_timeout = ${heartbeatTimeoutS}
[sampling]
max_tokens = 10
${options.environment ?? environment}
[trainer]
kind = "module"
import = ${JSON.stringify(here('fake-trainer.ts'))}
options = { stepMs = ${stepMs}${options.trained === undefined ? '' : `, log = ${JSON.stringify(options.trained)}`} }
${options.inference ?? inference}
${options.evaluation ?? ''}
${options.queue ?? ''}
[checkpoints]
interval = ${checkpointInterval}
keep_last = 2
`;
}
