import { execFileSync } from 'node:child_process';
import { readdir, readFile, stat } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { isDeepStrictEqual } from 'node:util';
import { type Client, isGrpcServiceError, ServiceError } from '@temporalio/client';
import { evaluationKeys } from '../runs/evaluations/evaluation-store.ts';
import { grantNamed, namedByEnvironments, namedByModel } from '../load/grants/grant.ts';
import { placeIn } from '../load/evaluations/evaluation-folders.ts';
import type { EvaluatedEnvironment, EvaluationInput, EvaluationResult } from '../core/eval/evaluation.ts';
import { uniform } from '../core/random.ts';
import type { Rollout } from '../core/rl/rollout/rollout.ts';
import { ensurePython } from '../workers/install/python-environment.ts';
import type { Stack } from '../workers/stack/supervisor.ts';
import type { evaluate } from '../workflows/evaluate.ts';
import { type AskedOf, type ContentServer, startContentServer } from './content-server.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { withProject, withStack } from './run-project.ts';

const modules = fileURLToPath(new URL('../test/data/verifiers', import.meta.url));
const requirements = fileURLToPath(new URL('../python/verifiers-v0-requirements.txt', import.meta.url));

export const nativeVictims = ['rollout worker', 'orchestrator worker', 'Temporal server'] as const;
export type Victim = (typeof nativeVictims)[number] | 'Python child';

/**
 * An evaluation whose processes are killed (`kill -9`) at seeded moments, beside the same one undisturbed, against a server that answers
 * by content and notes every answer. Once with an environment in TypeScript, once with a verifiers environment of several turns, where
 * there is Python.
 *
 * - `resampled`, goal 0: answers that were asked for of a rollout that lay in the store.
 * - `equal`: every reward, and all figures of metadata.json, are those of the undisturbed evaluation.
 * - `kills`: processes that were killed; `lost_in_flight`: answers whose rollout was under way in one of them.
 */
export const evalResume = measurement('eval-resume', 'what an evaluation pays twice when processes die', measure)
  .option('--rollouts <n>', 'of each evaluation', Number, 1_002)
  .option('--kills <n>', 'in each evaluation', Number, 6)
  .option('--seed <n>', 'chooses moments', Number, 1)
  .option('--no-python', 'leave out the verifiers environment')
  .addHelpText('after', '\nGoals: resampled 0, equal true.');

interface Options {
  readonly rollouts: number;
  readonly kills: number;
  readonly seed: number;
  readonly python: boolean;
}

async function measure(bench: Bench, { rollouts, kills, seed, python }: Options): Promise<Figures> {
  const native: EvaluatedEnvironment = { id: 'reverse-text', name: 'reverse-text', args: {} };
  const parts: DisturbedEvaluation[] = [];
  const one = { rollouts, kills, seed };
  parts.push(await disturbed(bench, { ...one, environment: native, victims: nativeVictims }));
  const verifiers = python ? await verifiersEnvironment(bench, Math.ceil(rollouts / rolloutsPerExample)) : null;
  if (verifiers) {
    parts.push(await disturbed(bench, { ...one, environment: verifiers, victims: ['Python child', ...nativeVictims] }));
  }
  const sum = (read: (part: DisturbedEvaluation) => number): number =>
    parts.reduce((total, part) => total + read(part), 0);
  return {
    resampled: sum((part) => part.resampled),
    equal: parts.every(({ equal }) => equal),
    kills: sum((part) => part.kills),
    lost_in_flight: sum((part) => part.lostInFlight),
    rollouts: sum((part) => part.rollouts),
    environments: parts.length,
  };
}

/** Null where verifiers cannot be installed. */
async function verifiersEnvironment(bench: Bench, examples: number): Promise<EvaluatedEnvironment | null> {
  const found = await ensurePython({ name: 'verifiers', requirements, log: bench.say }).catch((error: Error) => {
    bench.say(`without a verifiers environment: ${error.message}`);
    return null;
  });
  if (found === null) return null;
  const folder = path.dirname(path.dirname(found));
  const python = { module: 'toy_multi', api: 'v0' as const, folder, verifiers: '0.3.1', version: '' };
  return { id: 'toy_multi', name: 'toy_multi', args: { n: examples }, python };
}

export const rolloutsPerExample = 3;

export interface Disturbance {
  readonly environment: EvaluatedEnvironment;
  readonly rollouts: number;
  readonly kills: number;
  readonly victims: readonly Victim[];
  readonly seed: number;
}

export interface DisturbedEvaluation {
  readonly rollouts: number;
  readonly kills: number;
  readonly resampled: number;
  readonly lostInFlight: number;
  readonly equal: boolean;
}

/** One evaluation undisturbed, and one whose processes are killed; how they differ, and what was paid twice. */
export async function disturbed(bench: Bench, what: Disturbance): Promise<DisturbedEvaluation> {
  const server = await startContentServer({ delayMs: 150, answer: byPlace });
  const run = (folder: string) =>
    withStack(
      bench,
      folder,
      async (client, stack) => {
        bench.doing(`${what.environment.name}: ${what.rollouts} rollouts, undisturbed`);
        const calm = inputFor(folder, server, what, 'undisturbed');
        grantNamed(folder, [...namedByEnvironments([calm.environment]), ...namedByModel(calm.model)]);
        await resultOf(await start(client, calm));
        const asked = server.answered.length;
        bench.doing(`${what.environment.name}: the same, with ${what.kills} processes killed`);
        const rough = inputFor(folder, server, what, 'disturbed');
        const handle = await start(client, rough);
        const ended = resultOf(handle);
        ended.catch(() => undefined); // thrown below
        const kills = await killInTurn(bench, stack, {
          ...what,
          ended,
          isAt: (share) => server.answered.length - asked >= share * asked,
        });
        const result = await ended;
        return {
          ...(await reconcile(rough, server)),
          kills,
          rollouts: result.rollouts,
          equal: await areEqual(calm, rough),
        };
      },
      { mayRestart: true, variables: { PYTHONPATH: modules } },
    );
  try {
    return await withProject(bench, run);
  } finally {
    await server.close();
  }
}

/** Each rollout of an example gets an answer of its own, whatever its evaluation is called. */
function byPlace({ content, session }: AskedOf): string {
  const place = session.split('/').slice(-2).join('/');
  const right = content.split('').reverse().join('');
  return uniform('right', content, place) < 0.6 ? right : `${right.slice(0, -1)}${place.at(-1)}`;
}

function inputFor(
  folder: string,
  { url }: ContentServer,
  { environment, rollouts }: Disturbance,
  id: string,
): EvaluationInput {
  return {
    environment,
    model: {
      kind: 'endpoint',
      model: 'mock',
      servers: [{ model: 'mock', baseUrl: `${url}/v1`, apiKeyVar: null, headers: {} }],
      sampling: { temperature: 0 },
    },
    numExamples: Math.ceil(rollouts / rolloutsPerExample),
    rolloutsPerExample,
    seed: 0,
    shuffleSeed: null,
    maxConcurrent: 64,
    independentScoring: false,
    maxRetries: 3,
    standstillS: 600,
    results: placeIn(path.join(folder, 'outputs', 'evals'), id),
  };
}

function start(client: Client, input: EvaluationInput) {
  return client.workflow.start<typeof evaluate>('evaluate', {
    workflowId: `eval.${input.results.name}`,
    taskQueue: 'ratchet',
    args: [input],
    workflowTaskTimeout: '5s',
  });
}

const lookMs = 10;

/** However often its server is killed meanwhile. */
async function resultOf(handle: Awaited<ReturnType<typeof start>>): Promise<EvaluationResult> {
  for (;;) {
    try {
      return (await handle.result()).results[0]!;
    } catch (error) {
      if (!(error instanceof ServiceError || isGrpcServiceError(error))) throw error;
      await delay(1_000);
    }
  }
}

/** At seeded shares of the answers; how many were killed before the evaluation ended. */
async function killInTurn(
  bench: Bench,
  stack: Stack,
  {
    kills,
    victims,
    seed,
    ended,
    isAt,
  }: Disturbance & { readonly ended: Promise<EvaluationResult>; readonly isAt: (share: number) => boolean },
): Promise<number> {
  const life = { isOver: false };
  void ended.then(
    () => (life.isOver = true),
    () => (life.isOver = true),
  );
  let killed = 0;
  for (let i = 0; i < kills; i++) {
    const share = (i + uniform('kill', seed, i)) / kills;
    while (!life.isOver && !isAt(share)) await delay(lookMs);
    if (life.isOver) break;
    const victim = victims[i % victims.length]!;
    const pids = victim === 'Python child' ? pythonChildren(stack) : [stack.pids()[victim]];
    for (const pid of pids) if (pid != null) process.kill(pid, 'SIGKILL');
    bench.say(`killed: ${victim} (${pids.join(', ')}) at ${Math.round(share * 100)} %`);
    killed += pids.length;
  }
  return killed;
}

/** Python processes that generate rollouts. */
function pythonChildren(stack: Stack): number[] {
  const worker = stack.pids()['rollout worker'];
  const listed = execFileSync('ps', ['-A', '-ww', '-o', 'pid=,ppid=,args='], { encoding: 'utf8' });
  const rows = [...listed.matchAll(/^\s*(\d+)\s+(\d+)\s+(.*)$/gm)];
  const own = rows.filter(([, , parent, args]) => Number(parent) === worker && args!.includes('ratchet_bridge'));
  return own.slice(0, 1).map(([, pid]) => Number(pid));
}

/** The server's record against the store, rollout by rollout: resampled is what was asked for after it was stored. */
async function reconcile(
  { results, environment }: EvaluationInput,
  { answered }: ContentServer,
): Promise<Pick<DisturbedEvaluation, 'resampled' | 'lostInFlight'>> {
  const own = path.join(fileURLToPath(results.store), results.name);
  const files = (await readdir(path.join(own, 'rollouts'), { recursive: true })).filter((name) =>
    /(?:^|\/)part_\d+\.jsonl$/.test(name),
  );
  const stored = new Map<string, { readonly at: number; readonly turns: number }>();
  for (const name of files) {
    const file = path.join(own, 'rollouts', name);
    const at = (await stat(file)).mtimeMs;
    for (const line of (await readFile(file, 'utf8')).trimEnd().split('\n')) {
      const { exampleId, index, turns } = JSON.parse(line) as Rollout;
      const session = [results.name, environment.name, exampleId].map((word) => encodeURIComponent(word)).join('/');
      const known = stored.get(`${session}/${index}`);
      if (!known || at < known.at) stored.set(`${session}/${index}`, { at, turns: turns.length });
    }
  }
  let [resampled, lostInFlight] = [0, 0];
  for (const [session, { at, turns }] of stored) {
    const asked = answered.filter((one) => one.session === session);
    resampled += asked.filter((one) => one.at > at).length;
    lostInFlight += asked.length - turns;
  }
  return { resampled, lostInFlight };
}

async function areEqual(calm: EvaluationInput, rough: EvaluationInput): Promise<boolean> {
  const [one, other] = await Promise.all([calm, rough].map(figuresOf));
  return isDeepStrictEqual(one, other);
}

async function figuresOf({ results }: EvaluationInput): Promise<unknown> {
  const own = path.join(fileURLToPath(results.store), results.name);
  const rows = (await readFile(path.join(own, evaluationKeys.results(results)), 'utf8')).trimEnd().split('\n');
  const { time: _, ...metadata } = JSON.parse(await readFile(path.join(own, 'metadata.json'), 'utf8')) as Record<
    string,
    unknown
  >;
  const facts = rows.map((line) => {
    const { example_id: id, reward, metrics, completion } = JSON.parse(line) as Record<string, unknown>;
    return [id, reward, metrics, completion];
  });
  return { metadata, facts };
}
