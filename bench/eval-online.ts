import { judgedRows } from '../activities/evaluation/judge-evaluation.ts';
import { layout } from '../runs/layout.ts';
import { startFakeRun } from './fake-run.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { startMockServer } from './mock-model-server.ts';
import { readCommits, runFolder, stepSeconds, withProject, withStack } from './run-project.ts';
import { median, round } from './statistics.ts';

/**
 * Cost of evaluations beside training: two servers that answer after a simulated latency, so that the cores of this machine do not
 * decide it, and a trainer that waits. The same run without and with an evaluation, of so many examples, under way in every step; in turn, and
 * which is first changes, so that a machine that gets slower or faster decides nothing.
 *
 * - `step_time_ratio`, goal < 1.02: median wall time of a step with evaluations ÷ without.
 * - `evaluations`: how many there were, each of `examples` rollouts sampled and as many greedy.
 */
export const evalOnline = measurement('eval-online', 'what evaluations beside the training cost a step', measure)
  .option('--steps <n>', 'of each run', Number, 7)
  .option('--rounds <n>', 'runs of each kind', Number, 3)
  .option('--examples <n>', 'of an evaluation', Number, 256)
  .option('--latency <ms>', 'of the slowest answer', Number, 2_000)
  .option('--train <ms>', 'a gradient step', Number, 1_000)
  .addHelpText('after', '\nGoal: step_time_ratio < 1.02.');

interface Options {
  readonly steps: number;
  readonly rounds: number;
  readonly examples: number;
  readonly latency: number;
  readonly train: number;
}

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const { steps, rounds, examples, latency, train } = options;
  const servers = await Promise.all([1, 2].map(() => startMockServer({ delayMs: latency, bySeed: true })));
  try {
    return await withProject(bench, (folder) =>
      withStack(bench, folder, async (client) => {
        const inference = `[inference]\nkind = "openai"\nurl = ${JSON.stringify(servers.map(({ url }) => url))}`;
        const run = async (name: string, evaluation: string): Promise<number[]> => {
          bench.doing(`${steps} steps ${name}`);
          const { handle } = await startFakeRun(client, folder, {
            name,
            steps,
            batchSize: 64,
            rolloutsPerExample: 8,
            asyncLevel: 0,
            sampleMs: 0,
            stepMs: train,
            checkpointInterval: steps,
            inference,
            evaluation,
          });
          await handle.result();
          // The first step has caches to fill; what comes after the last one is no step.
          return stepSeconds(await readCommits(folder, name, steps)).slice(1);
        };
        const evaluation = `[eval]\ninterval = 2\nnum_examples = ${examples}`;
        await run('first', ''); // what is compiled and loaded meanwhile slows no step that counts
        const kinds = { without: '', beside: evaluation } as const;
        const seconds: Record<keyof typeof kinds, number[]> = { without: [], beside: [] };
        for (let turn = 0; turn < rounds; turn++) {
          const order = ['without', 'beside'] as const;
          for (const kind of turn % 2 === 0 ? order : order.toReversed()) {
            seconds[kind].push(...(await run(`${kind}-${turn}`, kinds[kind])));
          }
        }
        const { without, beside } = seconds;
        const store = `file://${runFolder(folder, '')}`;
        const prefix = layout.evaluation('main', 'reverse-text', 'beside-0', 2);
        const rows = await judgedRows({ store, name: 'beside-0', prefix });
        if (rows.length !== examples) throw new Error(`the evaluation of v2 has ${rows.length} rows of ${examples}`);
        return {
          step_time_ratio: round(median(beside) / median(without), 4),
          step_without_s: round(median(without)),
          step_beside_s: round(median(beside)),
          evaluations: rounds * (1 + Math.ceil(steps / 2)),
          examples,
          details: { without: without.map((value) => round(value)), beside: beside.map((value) => round(value)) },
        };
      }),
    );
  } finally {
    await Promise.all(servers.map((server) => server.close()));
  }
}
