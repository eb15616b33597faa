import { copyFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Client } from '@temporalio/client';
import { openSandboxProvider } from '../backends/sandboxes/index.ts';
import { hash32, uniform } from '../core/random.ts';
import { auditLedger } from '../core/rl/ledger.ts';
import { thisWorker } from '../host/worker-process.ts';
import { sweepSandboxes } from '../play/sandboxes/sweep.ts';
import { scoredGroups } from '../runs/run-records.ts';
import { LeaseStore } from '../runs/sandboxes/lease-store.ts';
import { StoredSnapshots } from '../runs/sandboxes/stored-snapshots.ts';
import { resolveStoreUri } from '../store/index.ts';
import { canSandbox, missingSandbox } from '../test/environments/sandbox-here.ts';
import { processesIn, sandboxesOf } from '../test/faults/sandboxed-processes.ts';
import type { Stack } from '../workers/stack/supervisor.ts';
import { statusQuery } from '../workflows/control/messages.ts';
import type { RunSummary } from '../workflows/train-run.ts';
import { beyondFirst, Counter, ModelProcess, readCalls, resampledOf, tokensOf, turnSecondsOf } from './agents-world.ts';
import { type FakeRun, startFakeRun } from './fake-run.ts';
import { type Bench, CannotMeasure, type Figures, measurement } from './measurement.ts';
import { readCommits, withProject, withStack } from './run-project.ts';
import { round } from './statistics.ts';

/**
 * Kills rollout workers, programs, their children, the model's server and sandboxes at keyed moments, run after run until there were
 * enough, and compares each run with an undisturbed one. A deterministic program of `--turns` turns with effects, in sandboxes of
 * namespaces; the model answers by rule, and the trainer's weights are a hash chain over what was trained.
 * All is counted outside of Ratchet: by the model's server, by a counter that the program tells, and by the processes of this machine.
 *
 * - `kills`, goal ≥ 500: what was killed; by kind under `details`.
 * - `resampled_turns`, goal 0: answers that the program had used, and that were sampled again. Answers that were under way are `under_way`.
 * - `answered_from_store`: answers that a program was given and that were not sampled for it then.
 * - `repeated_effects`, goal 0: once-only effects beyond the first of their rollout, and keyed ones that came with a second key.
 * - `leaked`, goal 0: sandboxes that are there when a sweep has followed the end of all runs.
 * - `over_quota`, goal 0: the most sandboxes at once, less `--quota`.
 * - `overshoot`, goal 0: tokens that the model had to do beyond the budget of a disturbed run. It begins with `--budget` of what the
 *   undisturbed run used, pauses there, and gets twice as much each time.
 * - `time_ratio`, goal ≤ 1.2: of the disturbed runs to undisturbed × (1 + kills per second × seconds per turn), after the tool time that
 *   replay took is subtracted (`details.replay_s`).
 * - `weights_equal`, goal true: of each run without a rollout in doubt (one has no reward, so its run trains others); null where each has some.
 */
export const agents = measurement('agents', 'what agents lose when anything dies', measure)
  .option('--kills <n>', 'until so many were killed', Number, 500)
  .option('--turns <n>', 'of a rollout, 50 at most: the context of the model holds no more', Number, 50)
  .option('--rollouts <n>', 'of a run, in groups of 4', Number, 32)
  .option('--concurrent <n>', 'rollouts at once', Number, 8)
  .option('--quota <n>', 'sandboxes at once; 0 = two fewer than rollouts', Number, 0)
  .option('--kill-every <s>', 'mean seconds from one kill to the next', Number, 2)
  .option('--budget <share>', 'of the undisturbed tokens: the first budget of a disturbed run', Number, 0.6)
  .option('--workers <n>', 'rollout workers', Number, 2)
  .option(
    '--turn-ms <ms>',
    'the model takes for an answer: with 0 starting what was killed is all that takes time',
    Number,
    400,
  )
  .option('--victims <kinds>', 'of worker, program, child, server, sandbox, with commas', 'all')
  .option('--seed <n>', 'chooses moments and victims', Number, 1)
  .addHelpText(
    'after',
    '\nGoals: resampled_turns, repeated_effects, leaked, over_quota, overshoot 0; time_ratio ≤ 1.2; weights_equal true.',
  );

interface Options {
  readonly kills: number;
  readonly turns: number;
  readonly rollouts: number;
  readonly concurrent: number;
  readonly quota: number;
  readonly killEvery: number;
  readonly budget: number;
  readonly workers: number;
  readonly turnMs: number;
  readonly victims: string;
  readonly seed: number;
}

const victims = ['worker', 'program', 'child', 'server', 'sandbox'] as const;
type Victim = (typeof victims)[number];

const program = fileURLToPath(new URL('agents-program.py', import.meta.url));
const model = fileURLToPath(new URL('agents-model.ts', import.meta.url));
const rolloutsPerExample = 4;
/** Mean seconds of a program's children between two calls: what a replay does again at least. */
const toolS = 0.3001 / 5;
const lookMs = 100;

async function measure(bench: Bench, options: Options): Promise<Figures> {
  if (!(await canSandbox())) throw new CannotMeasure(missingSandbox);
  return withProject(bench, (folder) =>
    withStack(bench, folder, (client, stack) => withWorld(bench, { client, stack, folder, options }), {
      mayRestart: true,
      count: { rollout: options.workers },
    }),
  );
}

interface Place {
  readonly client: Client;
  readonly stack: Stack;
  readonly folder: string;
  readonly options: Options;
}

interface World extends Place {
  readonly modelProcess: ModelProcess;
  readonly counter: Counter;
  readonly counterUrl: string;
  readonly leases: LeaseStore;
  readonly project: string;
  readonly quota: number;
  most: number;
}

async function withWorld(bench: Bench, place: Place): Promise<Figures> {
  const { folder, options } = place;
  await copyFile(program, path.join(folder, 'agent.py'));
  const tasks = Array.from({ length: options.rollouts / rolloutsPerExample }, (_, i) =>
    JSON.stringify({ prompt: `go ${i}` }),
  );
  await writeFile(path.join(folder, 'tasks.jsonl'), `${tasks.join('\n')}\n`);
  const counter = new Counter();
  const counterUrl = await counter.open();
  const modelProcess = await ModelProcess.open(path.join(folder, 'sampled'), options.turnMs);
  const leases = new LeaseStore(resolveStoreUri('outputs', folder));
  const quota = options.quota || Math.max(1, options.concurrent - 2);
  const world: World = { ...place, modelProcess, counter, counterUrl, leases, project: await leases.project(), quota, most: 0 }; // prettier-ignore
  const watching = new AbortController();
  const watched = watchSandboxes(world, watching.signal);
  try {
    return await compareRuns(bench, world);
  } finally {
    watching.abort();
    await watched;
    await modelProcess.stop();
    counter.close();
  }
}

async function watchSandboxes(world: World, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    world.most = Math.max(world.most, (await sandboxesOf(world.project)).length);
    await delay(lookMs, undefined, { signal }).catch(() => undefined);
  }
}

async function compareRuns(bench: Bench, world: World): Promise<Figures> {
  const { options, folder, counter } = world;
  bench.doing('an undisturbed run');
  const alone = await runOnce(world, 'undisturbed', null, () => Promise.resolve());
  const heardAlone = counter.told.heard.size;
  bench.say(`${round(alone.seconds, 1)} s; ${heardAlone} turns, ${counter.told.once.size} effects`);
  const log = path.join(folder, 'sampled');
  if (readCalls(log).length !== heardAlone) throw new Error(`${readCalls(log).length} calls for ${heardAlone} turns, undisturbed`); // prettier-ignore

  const killed: Record<Victim, number> = { worker: 0, program: 0, child: 0, server: 0, sandbox: 0 };
  const count = (): number => Object.values(killed).reduce((sum, one) => sum + one, 0);
  const figures = { seconds: 0, runs: 0, runsInDoubt: 0, inDoubt: 0, differing: 0, failed: 0, overshoot: 0, pauses: 0 };
  const turnS = turnSecondsOf(readCalls(log));
  const budget = Math.round(tokensOf(readCalls(log), 'undisturbed') * options.budget);
  while (count() < options.kills && !bench.signal.aborted) {
    const name = `struck-${figures.runs + 1}`;
    bench.doing(name);
    const before = count();
    const run = await runOnce(world, name, budget, (over) => killNowAndThen(bench, world, { killed, count, over }));
    figures.runs += 1;
    figures.seconds += run.seconds;
    figures.overshoot = Math.max(figures.overshoot, ...run.beyond);
    figures.pauses += run.beyond.length;
    const isSame = JSON.stringify(run.summary.ledger.counts) === JSON.stringify(alone.summary.ledger.counts);
    if (!run.summary.ledger.isSound) figures.failed += 1;
    const commits = await readCommits(folder, name, 1);
    const { once_in_doubt: inDoubt = 0 } = auditLedger(commits.map(({ outcomes }) => outcomes)).effects;
    figures.inDoubt += inDoubt;
    if (inDoubt > 0) figures.runsInDoubt += 1;
    else if (run.summary.policyDigest !== alone.summary.policyDigest) figures.differing += 1;
    for (const line of await endedOtherwise(folder, name, options.turns)) bench.say(line);
    const again = resampledOf(readCalls(log));
    bench.say(`${name}: ${count() - before} kills, ${round(run.seconds, 1)} s, ${JSON.stringify({ again, isSame, inDoubt, ledger: run.summary.ledger.counts })}`); // prettier-ignore
  }
  return figuresOf(world, { alone: alone.seconds, turnS, killed, kills: count(), ...figures });
}

/** Rollouts that did not make all their turns: a line for each. */
async function endedOtherwise(folder: string, name: string, turns: number): Promise<string[]> {
  const groups = await scoredGroups({ name, store: resolveStoreUri('outputs', folder) }, 1);
  return groups
    .flatMap(({ rollouts }) => rollouts)
    .filter((rollout) => rollout.outcome !== 'ok' || rollout.turns.length < turns)
    .map(({ group, index, outcome, error, turns: made }) => `rollout ${group}/${index} ended as ${outcome} after ${made.length} turns: ${error ?? ''}`); // prettier-ignore
}

interface Played {
  readonly seconds: number;
  readonly summary: RunSummary;
  /** Tokens beyond its budget, at each pause that the budget made; negative: it had some left. */
  readonly beyond: readonly number[];
}

async function runOnce(
  world: World,
  name: string,
  budget: number | null,
  beside: (over: { readonly is: boolean }) => Promise<void>,
): Promise<Played> {
  const { client, folder, options, modelProcess, counterUrl, quota } = world;
  const from = performance.now();
  const command = JSON.stringify(['python3', 'agent.py', String(options.turns), counterUrl, name]);
  const run = await startFakeRun(client, folder, {
    name,
    steps: 1,
    batchSize: options.rollouts,
    rolloutsPerExample,
    asyncLevel: 0,
    maxConcurrent: options.concurrent,
    sampleMs: 0,
    stepMs: 50,
    heartbeatTimeoutS: 2,
    checkpointInterval: 1,
    model: 'preset:chars-0.4m',
    environment: `[[env]]
id = "counted"
kind = "agent"
command = ${command}
tasks = "./tasks.jsonl"
deterministic = true
max_retries = 20
[env.sandbox]
files = "./agent.py"
network = "open"
quota = ${quota}
memory_mb = 256
disk_mb = 16
[env.score]
command = ["cat", "reward"]`,
    inference: `[inference]
kind = "module"
import = ${JSON.stringify(model)}
options = { url = ${JSON.stringify(modelProcess.url + name)} }
${budget === null ? '' : `[budget]\ntokens = ${budget}`}`,
  });
  const over = { is: false };
  const ending = run.handle.result().finally(() => (over.is = true));
  const used = (): number => tokensOf(readCalls(path.join(folder, 'sampled')), name);
  const raising = budget === null ? Promise.resolve([]) : raiseAtPauses(run.handle, { budget, over, used });
  const besides = Promise.all([raising, beside(over)]);
  const summary = await ending;
  const seconds = (performance.now() - from) / 1000;
  const [beyond] = await besides;
  return { seconds, summary, beyond };
}

interface Raising {
  readonly budget: number;
  readonly over: { readonly is: boolean };
  /** Tokens so far, by the model's account. */
  readonly used: () => number;
}

/** Doubles the budget of a run each time it has paused there; gives the tokens beyond it. */
async function raiseAtPauses(handle: FakeRun['handle'], { budget, over, used }: Raising): Promise<number[]> {
  const beyond: number[] = [];
  for (let limit = budget; !over.is; await delay(lookMs * 5)) {
    const status = await handle.query(statusQuery).catch(() => null); // an orchestrator that starts has no answer
    if (status?.phase !== 'paused' || !status.pausedBecause?.startsWith('budget')) continue;
    beyond.push(used() - limit);
    limit *= 2;
    await handle.executeUpdate('set', { args: [{ 'budget.tokens': limit }] });
    await handle.executeUpdate('resume');
  }
  return beyond;
}

interface Killing {
  readonly killed: Record<Victim, number>;
  readonly count: () => number;
  readonly over: { readonly is: boolean };
}

/** Until the run is over, or there were enough. A moment without such a victim is let go. */
async function killNowAndThen(bench: Bench, world: World, { killed, count, over }: Killing): Promise<void> {
  const { seed, killEvery, kills, victims: asked } = world.options;
  const kinds = victims.filter((kind) => asked === 'all' || asked.split(',').includes(kind));
  if (kinds.length === 0) throw new Error(`--victims: expected some of ${victims.join(', ')}, got ${asked}`);
  for (let moment = count(); !over.is && count() < kills; moment++) {
    const key = ['bench agents', seed, moment] as const;
    await delay(2 * uniform(...key, 'when') * killEvery * 1000, undefined, { signal: bench.signal });
    if (over.is) return;
    const victim = kinds[Math.floor(uniform(...key, 'what') * kinds.length)]!;
    if (!(await kill(world, victim, hash32(...key, 'who')))) continue;
    killed[victim] += 1;
  }
}

async function kill({ stack, modelProcess, project }: World, victim: Victim, choice: number): Promise<boolean> {
  if (victim === 'server') {
    await modelProcess.kill();
    return true;
  }
  const pids = await pidsOf(victim, { stack, project });
  if (pids.length === 0) return false;
  try {
    process.kill(pids[choice % pids.length]!, 'SIGKILL');
    return true;
  } catch {
    return false; // it has just ended by itself
  }
}

async function pidsOf(
  victim: Victim,
  { stack, project }: Pick<World, 'stack' | 'project'>,
): Promise<readonly number[]> {
  const sandboxes = await sandboxesOf(project);
  if (victim === 'worker') {
    // Not one after the other while they start: then nothing is at work that could be lost.
    if (sandboxes.length === 0) return [];
    const workers = Object.entries(stack.pids()).filter(([name]) => name.startsWith('rollout worker'));
    return workers.flatMap(([, pid]) => pid ?? []);
  }
  if (victim === 'sandbox') return sandboxes.map(({ pid }) => pid);
  return processesIn(sandboxes, victim === 'program' ? 'agent.py' : '0.3001');
}

interface Found {
  /** Seconds of the undisturbed run. */
  readonly alone: number;
  /** Seconds of a turn there. */
  readonly turnS: number;
  readonly killed: Readonly<Record<Victim, number>>;
  readonly kills: number;
  /** Seconds of the disturbed runs. */
  readonly seconds: number;
  readonly runs: number;
  /** Runs with a once-only effect in doubt, and such effects. */
  readonly runsInDoubt: number;
  readonly inDoubt: number;
  /** Other weights, without any in doubt. */
  readonly differing: number;
  readonly failed: number;
  readonly overshoot: number;
  /** Of runs by their budget. */
  readonly pauses: number;
}

async function figuresOf(world: World, found: Found): Promise<Figures> {
  const { options, folder, counter, leases, quota, project } = world;
  const snapshots = new StoredSnapshots(leases, thisWorker());
  const open: Parameters<typeof sweepSandboxes>[0]['open'] = (spec) => openSandboxProvider(spec, snapshots);
  const sweep = await sweepSandboxes({
    leases,
    snapshots,
    open,
    isWorkflowRunning: () => Promise.resolve(false),
    settleMs: 0,
  });
  const left = await sandboxesOf(project);
  const calls = readCalls(path.join(folder, 'sampled'));
  const again = resampledOf(calls);
  const { heard, once, keyed } = counter.told;
  const heardInAll = [...heard.values()].reduce((sum, times) => sum + times, 0);
  const answered = Math.max(0, heardInAll - new Set(calls.map(({ session, prompt }) => `${session} ${prompt}`)).size);
  const otherKeys = [...counter.keys.values()].reduce((sum, keys) => sum + keys.size - 1, 0);
  const { kills, seconds, alone, turnS, runs } = found;
  const atOnce = Math.min(options.concurrent, quota);
  const replayS = (answered * toolS) / atOnce;
  const expected = runs * alone * (1 + (kills / seconds) * turnS);
  return {
    kills,
    resampled_turns: again.finished,
    answered_from_store: answered,
    repeated_effects: beyondFirst(once) + otherKeys,
    leaked: left.length,
    over_quota: Math.max(0, world.most - quota),
    overshoot: found.overshoot,
    time_ratio: round((seconds - replayS) / expected),
    weights_equal: found.runsInDoubt === runs ? null : found.differing === 0,
    details: {
      killed: found.killed,
      runs,
      runs_in_doubt: found.runsInDoubt,
      effects_in_doubt: found.inDoubt,
      runs_with_other_weights: found.differing,
      ledgers_not_sound: found.failed,
      pauses: found.pauses,
      under_way: again.underWay,
      turns: calls.length,
      effects: { once: once.size, keyed: keyed.size, keyed_again: beyondFirst(keyed) },
      most_sandboxes: world.most,
      quota,
      swept: sweep.ended.length,
      open_leases: (await leases.readOpen()).length,
      undisturbed_s: round(alone, 1),
      disturbed_s: round(seconds, 1),
      turn_s: round(turnS),
      replay_s: round(replayS, 1),
    },
  };
}
