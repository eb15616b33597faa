import { randomUUID } from 'node:crypto';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Client } from '@temporalio/client';
import type { PromptSearchInput, PromptSearchResult } from '../core/gepa/prompt-search.ts';
import { taskQueues } from '../core/names.ts';
import { grantNamed, namedBySearch } from '../load/grants/grant.ts';
import { resolveStoreUri } from '../store/index.ts';
import type { optimizePrompt } from '../workflows/optimize-prompt.ts';
import { type GepaServer, startGepaServer } from './gepa-server.ts';
import type { Bench, Figures } from './measurement.ts';
import { withProject, withStack } from './run-project.ts';
import { mean, round } from './statistics.ts';

/** The tasks of the simulated world, as an environment of a user's. */
export const gepaEnvironment = fileURLToPath(new URL('gepa-environment.ts', import.meta.url));

export interface WorldSearch {
  readonly seed: number;
  readonly maxCalls: number;
  readonly numTrain: number;
  readonly numVal: number;
  readonly isClassic: boolean;
}

/** A search in the simulated world as the workflow takes it. `folder` is where its results go, under an id of its own. */
export function inputOf(
  { seed, maxCalls, numTrain, numVal, isClassic }: WorldSearch,
  {
    server,
    folder,
    id = randomUUID().slice(0, 8),
  }: { readonly server: Pick<GepaServer, 'url'>; readonly folder: string; readonly id?: string },
): PromptSearchInput {
  const serverOf = (model: string) => ({ model, baseUrl: server.url, apiKeyVar: null, headers: {} });
  const [task, reflect] = [`sim-task:${seed}`, `sim-reflect:${seed}`];
  const environment = { id: gepaEnvironment, name: 'gepa-world', args: { seed, train: numTrain, val: numVal } };
  return {
    environments: [environment],
    model: { kind: 'endpoint', model: task, servers: [serverOf(task)], sampling: {} },
    reflection: { model: reflect, servers: [serverOf(reflect)], fields: {} },
    maxCalls,
    minibatchSize: 3,
    perfectScore: null,
    stateColumns: ['feedback'],
    numTrain,
    numVal,
    numTest: 0,
    maxConcurrent: 32,
    seed,
    isClassic,
    initialPrompt: null,
    results: { store: resolveStoreUri(folder, folder), name: id, prefix: '' },
    savesResults: true,
    isSmallBudgetMeant: true,
  };
}

/** Grants what the input names, as `ratchet gepa run` does. */
export function startSearchOf(client: Client, projectFolder: string, input: PromptSearchInput) {
  grantNamed(projectFolder, namedBySearch(input));
  return client.workflow.start<typeof optimizePrompt>('optimizePrompt', {
    workflowId: `gepa.${input.results.name}`,
    taskQueue: taskQueues.orchestrator,
    args: [input],
    workflowTaskTimeout: '5s',
  });
}

const latencyMs = 50;

/** Wall seconds of searches through the workflow, from its start to its result, files included; the first one warms the processes up. */
export async function measureWallTime(bench: Bench, seeds: readonly number[]): Promise<Figures> {
  return withProject(bench, (folder) =>
    withStack(bench, folder, async (client) => {
      const server = await startGepaServer({ latencyMs });
      try {
        const search = async (
          seed: number,
          isClassic: boolean,
        ): Promise<{ seconds: number; result: PromptSearchResult }> => {
          const input = inputOf(
            { seed, maxCalls: 500, numTrain: 100, numVal: 50, isClassic },
            { server, folder: path.join(folder, 'outputs/gepa/world') },
          );
          const startedAt = performance.now();
          const result = await (await startSearchOf(client, folder, input)).result();
          const seconds = (performance.now() - startedAt) / 1000;
          bench.say(
            `seed ${seed}${isClassic ? ' classic' : ''}: ${round(seconds, 2)} s, ${result.calls} calls, ${result.reflections} reflections, score ${result.bestScore}`,
          );
          return { seconds, result };
        };
        bench.doing('searches through the workflow');
        await search(1_000, false);
        const ours: Awaited<ReturnType<typeof search>>[] = [];
        const classic: typeof ours = [];
        for (const seed of seeds) ours.push(await search(seed, false));
        for (const seed of seeds) classic.push(await search(seed, true));
        const seconds = (of: typeof ours) => round(mean(of.map((one) => one.seconds)), 2);
        return { seconds_val50_500: seconds(ours), seconds_val50_500_classic: seconds(classic), latency_ms: latencyMs };
      } finally {
        await server.close();
      }
    }),
  );
}
