import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import type { Client } from '@temporalio/client';
import { openRunStore, resolveStoreUri } from '../store/index.ts';
import { decodeJson } from '../store/objects.ts';
import { layout } from '../runs/layout.ts';
import { firstLineage, taskQueues } from '../core/names.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import { startProxy, type MisbehavingProxy } from '../test/backends/misbehaving-proxy.ts';
import { skipWithoutGateway, startGateway, type Gateway } from '../test/store/s3-gateway.ts';
import { fakeRun } from '../test/faults/fake-run.ts';
import type { trainRun } from '../workflows/train-run.ts';
import { CannotMeasure, measurement, type Bench, type Figures } from './measurement.ts';
import { stepSeconds, withProject, withStack } from './run-project.ts';
import { median, round } from './statistics.ts';

/** The first steps pay for caches that fill. */
const stepsSkipped = 2;

/** Training time of a step for any batch: longer than its upload, as with a model worth uploading. */
const trainMs = 3_000;

/**
 * Whether training waits for uploads where the store is S3. A real stack and a real S3 server, with a trainer that takes
 * 3 s a step, at async level 1; the same run twice, the second time with every upload of weights held up.
 *
 * - `step_ratio`, goal ≤ 1.05: median time between two commits with slow uploads ÷ without.
 */
export const s3Upload = measurement('s3-upload', 'whether uploads to S3 delay training', measure)
  .option('--steps <n>', `steps of each run, the first ${stepsSkipped} of which are not counted`, Number, 10)
  .option('--delay <seconds>', 'how long each upload of weights is held up', Number, 2)
  .addHelpText('after', '\nGoal: step_ratio ≤ 1.05.');

interface Options {
  readonly steps: number;
  readonly delay: number;
}

async function measure(bench: Bench, options: Options): Promise<Figures> {
  if (skipWithoutGateway !== false) throw new CannotMeasure(skipWithoutGateway);
  const gateway = await startGateway(); // before the stack, which has its credentials from our environment
  const proxy = await startProxy(gateway.port);
  try {
    return await withProject(bench, (folder) => {
      const variables = { RATCHET_CACHE: path.join(folder, 'cache') };
      const work = (client: Client) => compare({ bench, client, folder, gateway, proxy }, options);
      return withStack(bench, folder, work, { variables });
    });
  } finally {
    await proxy.close();
    await gateway.remove();
  }
}

interface Place {
  readonly bench: Bench;
  readonly client: Client;
  readonly folder: string;
  readonly gateway: Gateway;
  readonly proxy: MisbehavingProxy;
}

async function compare(place: Place, { steps, delay }: Options): Promise<Figures> {
  const { proxy } = place;
  const usual = await trainOnce(place, 'usual', steps);
  proxy.decide = ({ operation, url }) =>
    operation === 'PutObject' && /[/]weights[/].*[.]safetensors/.test(url) ? { delayMs: delay * 1000 } : 'pass';
  const slow = await trainOnce(place, 'slow-uploads', steps);
  if (proxy.spoiled < steps) throw new Error(`only ${proxy.spoiled} uploads were held up, expected ${steps} or more`);
  return {
    step_ratio: round(median(slow) / median(usual)),
    details: {
      steps_counted: usual.length,
      step_s: round(median(usual)),
      step_with_slow_uploads_s: round(median(slow)),
      worst_s: round(Math.max(...usual)),
      worst_with_slow_uploads_s: round(Math.max(...slow)),
      uploads_held_up: proxy.spoiled,
      delay_s: delay,
    },
  };
}

/** Seconds of each counted step. */
async function trainOnce(place: Place, name: string, steps: number): Promise<number[]> {
  const { bench, client, folder, gateway, proxy } = place;
  bench.doing(`${name}: ${steps} steps`);
  await writeFile(path.join(folder, `${name}.toml`), fakeRun({ steps, log: path.join(folder, `${name}.sampled`) }));
  const overrides = {
    max_async_level: '1',
    'trainer.options.stepMs': String(trainMs),
    'store.uri': 's3://runs/bench/',
    'store.endpoint': `http://127.0.0.1:${proxy.port}`,
  };
  await client.workflow.execute<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: taskQueues.orchestrator,
    args: [{ config: `${name}.toml`, overrides }],
  });
  const direct = new URLSearchParams({ endpoint: `http://127.0.0.1:${gateway.port}`, path_style: 'true' });
  const store = openRunStore(resolveStoreUri(`s3://runs/bench/?${direct.toString()}`, folder), name);
  const commits = await Promise.all(
    Array.from({ length: steps + 1 }, async (_, step) => {
      const key = layout.commit(firstLineage, step);
      return decodeJson<StepCommit>((await store.read(key))!, key);
    }),
  );
  return stepSeconds(commits).slice(stepsSkipped);
}
