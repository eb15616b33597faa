import { execFile } from 'node:child_process';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { taskQueues } from '../core/names.ts';
import type { trainRun } from '../workflows/train-run.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { demoConfig, newestStep, withProject, withStack } from './run-project.ts';
import { median, round } from './statistics.ts';

/**
 * How long `ratchet status RUN` takes as one types it, the start of Node and all modules included.
 *
 * - `status_s`, goal ≤ 0.5: median wall time, of a run that is paused (so that it does not compete for the CPU).
 * - `status_running_s`: the same while it trains.
 * - `node_s`: of a Node that does nothing, beside it: what no command can be quicker than. `ratio`: status ÷ node.
 */
export const statusLatency = measurement('status-latency', 'how long `ratchet status RUN` takes', measure)
  .option('--times <n>', 'how often each is timed', Number, 11)
  .addHelpText('after', '\nGoal: status_s ≤ 0.5.');

const program = fileURLToPath(new URL('../cli/ratchet.mjs', import.meta.url));

async function measure(bench: Bench, { times }: { readonly times: number }): Promise<Figures> {
  return withProject(bench, (folder) =>
    withStack(bench, folder, async (client) => {
      const config = path.relative(folder, demoConfig);
      const handle = await client.workflow.start<typeof trainRun>('trainRun', {
        workflowId: 'asked',
        taskQueue: taskQueues.orchestrator,
        args: [{ config, overrides: { 'max-steps': '100000', 'checkpoints.interval': '100' }, run: 'asked' }],
      });
      bench.doing('training until step 3');
      while (newestStep(folder, 'asked') < 3) await delay(200, undefined, { signal: bench.signal });
      const status = (): Promise<number> => timed([program, 'status', 'asked'], folder);
      bench.doing('asking while it trains');
      const running = await repeated(times, status);
      await handle.executeUpdate<string, [string]>('pause', { args: ['to be asked'] });
      await delay(3_000, undefined, { signal: bench.signal });
      bench.doing('asking while it is paused');
      const paused = await repeated(times, status);
      const node = await repeated(times, () => timed(['-e', '0'], folder));
      await handle.terminate('measured');
      return {
        status_s: round(median(paused)),
        status_running_s: round(median(running)),
        node_s: round(median(node)),
        ratio: round(median(paused) / median(node), 1),
        details: { node: process.version, paused: paused.map((value) => round(value)) },
      };
    }),
  );
}

async function timed(args: readonly string[], cwd: string): Promise<number> {
  const startedAt = performance.now();
  const env: NodeJS.ProcessEnv = { ...process.env };
  delete env['TEMPORAL_ADDRESS'];
  await promisify(execFile)(process.execPath, args, { cwd, env });
  return (performance.now() - startedAt) / 1000;
}

async function repeated(times: number, work: () => Promise<number>): Promise<number[]> {
  const values: number[] = [];
  for (let i = 0; i < times; i++) values.push(await work());
  return values;
}
