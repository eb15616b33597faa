import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import type { trainRun } from '../workflows/train-run.ts';
import { startTinkerStandIn, type Span } from '../test/stand-ins/tinker/server.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { committedAt, readCommits, withProject, withStack } from './run-project.ts';
import { round } from './statistics.ts';

/**
 * Overhead of a step on a Tinker server beyond the calls that it has to wait for. The server is the stand-in: real
 * arithmetic at toy size, each
 * call as long as on GPUs. Sampling for step n+1 continues while step n trains.
 *
 * - `overhead_ratio`, goal ≤ 1.1: wall time of the steps ÷ the time that the server was at work on their training calls, one after the other:
 *   forward_backward, optim_step, the two saves, and making the next model, which is loaded from the version before.
 */
export const tinkerOverhead = measurement(
  'tinker-overhead',
  'what a step on a Tinker server takes beyond its calls',
  measure,
)
  .option('--steps <n>', 'that count; one more comes before', Number, 4)
  .option('--forward-backward <ms>', 'of a batch', Number, 7_000)
  .option('--optim-step <ms>', 'an optimizer step', Number, 1_500)
  .option('--save <ms>', 'of each of the two checkpoints', Number, 1_000)
  .option('--sample <ms>', 'a turn', Number, 6_000)
  .addHelpText('after', '\nGoal: overhead_ratio ≤ 1.1.');

interface Options {
  readonly steps: number;
  readonly forwardBackward: number;
  readonly optimStep: number;
  readonly save: number;
  readonly sample: number;
}

const run = 'tinker-overhead';
const maxTokens = 8;

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const { steps, forwardBackward, optimStep, save, sample } = options;
  return withProject(bench, async (folder) => {
    const home = path.join(folder, 'server');
    await mkdir(home);
    const callMs = {
      forward_backward: forwardBackward,
      optim_step: optimStep,
      save_weights: save,
      save_weights_for_sampler: save,
    };
    const server = await startTinkerStandIn({
      folder: home,
      model: 'preset:reverse-text-0.2m',
      callMs,
      tokenMs: sample / maxTokens,
    });
    try {
      await writeFile(path.join(folder, `${run}.toml`), configOf(server.url, steps + 1));
      await withStack(bench, folder, async (client) => {
        bench.doing(`${steps + 1} steps`);
        const handle = await client.workflow.start<typeof trainRun>('trainRun', {
          workflowId: run,
          taskQueue: 'ratchet',
          args: [path.join(folder, `${run}.toml`)],
        });
        await handle.result();
      });
      const commits = await readCommits(folder, run, steps + 1);
      const [from, to] = [committedAt(commits[1]!), committedAt(commits.at(-1)!)];
      const busy = within(server.spans, from, to);
      return {
        overhead_ratio: round((to - from) / busy, 4),
        step_s: round((to - from) / 1000 / steps),
        calls_s: round(busy / 1000 / steps),
        steps,
      };
    } finally {
      await server.close();
    }
  });
}

function configOf(url: string, steps: number): string {
  return `
model = "preset:reverse-text-0.2m"
max_steps = ${steps}
batch_size = 32
rollouts_per_example = 4
learning_rate = 1e-3
max_async_level = 1
[sampling]
max_tokens = ${maxTokens}
[[env]]
id = "reverse-text"
[lora]
r = 4
[difficulty_filter]
enabled = true
min_reward_variance = 0
[trainer]
kind = "tinker"
url = "${url}"
[inference]
kind = "tinker"
[checkpoints]
interval = 100
`;
}

/** Milliseconds of the spans between two moments. They do not overlap: the server does one after the other. */
function within(spans: readonly Span[], from: number, to: number): number {
  return spans.reduce((sum, span) => sum + Math.max(0, Math.min(span.to, to) - Math.max(span.from, from)), 0);
}
