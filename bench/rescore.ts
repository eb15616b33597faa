import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { isDeepStrictEqual } from 'node:util';
import type { Client } from '@temporalio/client';
import type { EvaluatedEnvironment } from '../core/eval/evaluation.ts';
import type { RescoreInput, RescoreResult, RescoreStatus } from '../core/eval/rescore.ts';
import { uniform } from '../core/random.ts';
import type { ScoredGroup, ScoredRollout } from '../core/rl/rollout/rollout.ts';
import { grantNamed, namedByEnvironments } from '../load/grants/grant.ts';
import { linesOfStore } from '../store/index.ts';
import { layout } from '../runs/layout.ts';
import { encodeStored } from '../runs/forms/stored-forms.ts';
import { rescoreId, rescoreKeys } from '../runs/rescores/rescore-store.ts';
import { storeScored } from '../runs/rollouts/scored-groups.ts';
import { commitFirst, openRoles, runIn, type TestRun } from '../test/activities/runs.ts';
import type { Stack } from '../workers/stack/supervisor.ts';
import type { rescore as rescoreWorkflow } from '../workflows/rescore.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { withProject, withStack } from './run-project.ts';

/**
 * A run whose stored rollouts get other rewards from a rubric in TypeScript, once undisturbed and once with a rollout worker killed. There is
 * neither a policy server nor a GPU worker.
 *
 * - `seconds`: of the undisturbed rescore, from its start to its result, by two rollout workers.
 * - `policy_tokens`: rows whose token counts differ from those that are stored, so 0.
 * - `worker_mb`, `orchestrator_mb`: the most resident memory that a process had until the undisturbed rescore was done; `started_mb`: a rollout
 *   worker before it.
 * - `equal`: the killed one has the same figures and the same rows, byte by byte.
 */
export const rescore =
  measurement('rescore', 'another rubric on stored rollouts, by two workers, one of which is killed', measure) // prettier-ignore
    .option('--rollouts <n>', 'stored rollouts', Number, 100_000)
    .option('--tokens <n>', 'tokens of each answer', Number, 100)
    .addHelpText('after', '\nGoals: 100,000 rollouts in less than 60 s, policy_tokens 0, equal true.');

interface Options {
  readonly rollouts: number;
  readonly tokens: number;
}

const groupSize = 8;
const groupsOfStep = 125;

async function measure(bench: Bench, { rollouts, tokens }: Options): Promise<Figures> {
  return withProject(bench, (folder) =>
    withStack(
      bench,
      folder,
      async (client, stack) => {
        const run = await runIn(path.join(folder, 'outputs'), {}, 'words');
        const { name, spec, begunAt } = { ...run, name: run.run.name, begunAt: new Date().toISOString() };
        await run.store.put(layout.run(), encodeStored(layout.run(), { name, begunAt, spec }));
        await commitFirst(run, openRoles());
        bench.doing(`${rollouts} rollouts of ${tokens} tokens are stored`);
        const stored = await storeRollouts(run, { rollouts, tokens });
        const rubric = await rubricIn(folder);
        const input = (fresh: number): RescoreInput => inputOf(run, rubric, fresh);
        grantNamed(folder, [...namedByEnvironments([rubric]), ...linesOfStore(input(0).results.store)]);
        bench.doing('rescored, undisturbed');
        const startedAt = performance.now();
        const started = peaksOf(stack, 'rollout');
        const calm = await (await start(client, input(0))).result();
        const seconds = (performance.now() - startedAt) / 1000;
        const memory = {
          started_mb: started,
          worker_mb: peaksOf(stack, 'rollout'),
          orchestrator_mb: peaksOf(stack, 'orchestrator'),
        };
        bench.say(`${Math.round(seconds * 10) / 10} s`);
        bench.doing('the same, with a rollout worker killed');
        const rough = await killed(bench, client, stack, input(1));
        return {
          rollouts: calm.rollouts,
          seconds: Math.round(seconds * 10) / 10,
          policy_tokens: Math.abs((await tokensIn(calm)) - stored),
          equal: isDeepStrictEqual(await saysOf(calm), await saysOf(rough)),
          changed: calm.changed,
          ...memory,
        };
      },
      { mayRestart: true, playsOnly: true, count: { rollout: 2 } },
    ),
  );
}

/** The most memory that a process of a role has had since it began, in MiB: of Linux, elsewhere 0. */
function peaksOf(stack: Stack, role: string): number {
  const own = Object.entries(stack.pids()).flatMap(([name, pid]) =>
    pid !== null && name.startsWith(role) ? [pid] : [],
  );
  const peaks = own.map((pid) => {
    const file = `/proc/${pid}/status`;
    const [, kib] = /^VmHWM:\s+(\d+)/m.exec(existsSync(file) ? readFileSync(file, 'utf8') : '') ?? [];
    return Math.round(Number(kib ?? 0) / 1024);
  });
  return Math.max(0, ...peaks);
}

/** Returns how many tokens were sampled for them. */
async function storeRollouts({ run, store }: TestRun, { rollouts, tokens }: Options): Promise<number> {
  const groups = Math.ceil(rollouts / groupSize);
  for (let first = 0, step = 1; first < groups; first += groupsOfStep, step++) {
    const last = Math.min(groups, first + groupsOfStep) - 1;
    const own = Array.from({ length: last - first + 1 }, (_, i) => groupOf(first + i, step, tokens));
    await storeScored(store, layout.scored(run.lineage, { step, first, last }, 'chunk_1_of_1'), own);
  }
  return groups * groupSize * tokens;
}

const words = 'the quick brown fox jumps over a lazy dog while nobody looks at the old clock on the wall'.split(' ');

function groupOf(ordinal: number, step: number, tokens: number): ScoredGroup {
  const word = words[ordinal % words.length]!;
  const prompt = [{ role: 'user' as const, content: `Reverse this: ${word} ${ordinal}` }];
  return {
    ordinal,
    environment: 'reverse-text',
    exampleId: ordinal,
    epoch: 0,
    policyStep: step - 1,
    example: { id: ordinal, prompt, answer: word.split('').reverse().join('') },
    rollouts: Array.from({ length: groupSize }, (_, index) => rolloutOf(ordinal, index, tokens)),
  };
}

function rolloutOf(group: number, index: number, tokens: number): ScoredRollout {
  const draw = (i: number): number => uniform('rescore', group, index, i);
  const tokenIds = Array.from({ length: tokens }, (_, i) => Math.floor(draw(i) * 50_000));
  const text = tokenIds.map((id) => words[id % words.length]!).join(' ');
  const reward = Math.round(draw(tokens) * 4) / 4;
  return {
    group,
    index,
    exampleId: group,
    turns: [
      {
        promptTokenIds: tokenIds.slice(0, 40),
        tokenIds,
        logprobs: tokenIds.map((id) => -(id % 1000) / 613),
        text,
        finishReason: 'stop',
        policyStep: 0,
      },
    ],
    outcome: 'ok',
    reward,
    metrics: { similarity: reward },
  };
}

/** Counts letters and looks for the answer: what a rubric without a judge does. */
async function rubricIn(folder: string): Promise<EvaluatedEnvironment> {
  const kit = fileURLToPath(new URL('../backends/environments/kit.ts', import.meta.url));
  const text = `import { rubric as of } from ${JSON.stringify(kit)};
export const rubric = of([
  { name: 'short', weight: 0.5, score: ({ completion }) => 1 / (1 + completion.length / 400) },
  { name: 'has_answer', weight: 0.5, score: ({ completion, example }) => Number(completion.includes(example.answer)) },
]);
`;
  const file = path.join(folder, 'strict.ts');
  await writeFile(file, text);
  return { id: file, name: 'strict.ts', args: {}, sha256: createHash('sha256').update(text).digest('hex') };
}

function inputOf({ run: { name, store } }: TestRun, rubric: EvaluatedEnvironment, fresh: number): RescoreInput {
  const asked = {
    subject: { kind: 'run' as const, name, store, steps: { first: 1, last: 1_000_000 } },
    environments: [{ id: 'reverse-text', name: 'reverse-text', args: {} }],
    rubric,
    failedOnly: false,
  };
  return { ...asked, results: { store, name, prefix: rescoreKeys.place('', rescoreId(asked, fresh)) } };
}

function start(client: Client, input: RescoreInput) {
  return client.workflow.start<typeof rescoreWorkflow>('rescore', {
    workflowId: `rescore.${input.results.prefix.replaceAll('/', '.')}`,
    taskQueue: 'ratchet',
    args: [input],
    workflowTaskTimeout: '5s',
  });
}

/** A worker is killed once a third of the chunks are done. */
async function killed(bench: Bench, client: Client, stack: Stack, input: RescoreInput): Promise<RescoreResult> {
  const handle = await start(client, input);
  for (;;) {
    const { phase, chunks } = await handle.query<RescoreStatus>('status');
    if (phase !== 'opening' && chunks.done * 3 >= (chunks.of ?? Infinity)) break;
    await delay(50);
  }
  const pid = stack.pids()['rollout worker'];
  if (pid != null) process.kill(pid, 'SIGKILL');
  bench.say(`killed: rollout worker (${pid})`);
  return handle.result();
}

async function rowsOf({ environments }: RescoreResult): Promise<string> {
  const texts = await Promise.all(
    environments.map(({ folder }) => readFile(path.join(folder, 'results.jsonl'), 'utf8')),
  );
  return texts.join('');
}

async function tokensIn(result: RescoreResult): Promise<number> {
  let tokens = 0;
  for (const line of (await rowsOf(result)).split('\n')) {
    if (line !== '')
      tokens += (JSON.parse(line) as { token_usage: { output_tokens: number } }).token_usage.output_tokens;
  }
  return tokens;
}

async function saysOf(result: RescoreResult): Promise<readonly unknown[]> {
  const { rollouts, rescored, changed, environments } = result;
  const digest = createHash('sha256')
    .update(await rowsOf(result))
    .digest('hex');
  return [rollouts, rescored, changed, environments.map((one) => ({ ...one, folder: '' })), digest];
}
