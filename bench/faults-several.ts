import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { type Client, ServiceError, type WorkflowHandle } from '@temporalio/client';
import { taskQueues } from '../core/names.ts';
import { uniform } from '../core/random.ts';
import { auditLedger } from '../core/rl/ledger.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import { isAlive } from '../host/is-alive.ts';
import { inTemporaryFolder } from '../host/temporary-folder.ts';
import type { Role, Stack } from '../workers/stack/supervisor.ts';
import type { trainRun } from '../workflows/train-run.ts';
import { hideStore, showStore, surroundWithMounts, withOwnMounts } from '../test/faults/hidden-store.ts';
import { realRun } from '../test/faults/real-run.ts';
import { StageUnavailable } from '../test/faults/stage-unavailable.ts';
import { type OtherVersion, previousCommit, rolesOf } from '../test/faults/upgrade.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { newestStep, readCommits, withProject, withStack } from './run-project.ts';
import { median, round } from './statistics.ts';

/** Models of the four runs, as keys at the top of the file and tables at its end. */
const models = {
  small: {},
  characters: { model: 'preset:chars-0.4m' },
  adapters: { 'lora.r': '4', 'lora.alpha': '8' },
  supervised: { model: 'preset:reverse-text-vllm-0.2m', 'sft.steps': '120' },
} as const satisfies Record<string, Readonly<Record<string, string>>>;
type ModelName = keyof typeof models;
const modelNames = Object.keys(models) as ModelName[];

const counts = { train: 2, rollout: 3 } as const;
const server = 'Temporal server';
const struckRoles = ['orchestrator worker', 'policy server', server] as const;
/** Workers that run the code of another version. */
const otherWorkers = ['train worker 2', 'rollout worker 3'];

const stepsOfRun = 8;
const heartbeatTimeoutS = 2;
/** A stopped process, or one without the store, stays so for this many heartbeat timeouts. */
const lastsFor = 1.5;
/** One in this many of them lasts long enough for another worker to take over, make steps and hand the run back. */
const longOneIn = 3;
const longFor = 5;
/** Shares of the faults that stop a process, and that hide the store from a worker. The rest kill. */
const shares = { stopped: 1 / 4, hidden: 1 / 8 } as const;
/** From one fault to the next, at most. */
const pauseMsMax = 4_000;
const lookMs = 50;
/** Runs of which none makes a step for so long are not going to. */
const patienceMs = 300_000;

/**
 * Four runs of different models side by side on two GPU workers and three rollout workers. One worker of each kind runs the code of the
 * previous commit (or of RATCHET_UPGRADE_FROM). Processes, the server and the policy server are killed or stopped at seeded random
 * moments, or a worker finds an empty folder in place of the store, until there were enough faults. Everything is real, the
 * engine included: a run's weights after each step are compared with those of the same run alone on an undisturbed stack.
 *
 * - `faults`, goal ≥ 400: processes that were struck.
 * - `lost`, goal 0: groups that were issued and are unaccounted for, and steps without a commit.
 * - `duplicated`, goal 0: groups issued, ended or trained twice.
 * - `weights_equal`: every version of every run has the digest that it has alone.
 */
export const faultsSeveral = measurement(
  'faults-several',
  'what is lost of four runs of different models on the same workers',
  measure,
)
  .option('--faults <n>', 'processes to strike', Number, 400)
  .option('--seed <n>', 'chooses moments and victims', Number, 1)
  .addHelpText('after', '\nGoals: lost, duplicated 0; weights_equal.');

interface Options {
  readonly faults: number;
  readonly seed: number;
}

async function measure(bench: Bench, { faults, seed }: Options): Promise<Figures> {
  const alone = await withProject(bench, (folder) =>
    withStack(bench, folder, async (client) => {
      const digests = {} as Record<ModelName, readonly string[]>;
      for (const model of modelNames) {
        bench.doing(`the run of ${model} alone`);
        const { name, handle } = await start(client, folder, { model, round: 0 });
        await handle.result();
        digests[model] = (await readCommits(folder, name, stepsOfRun)).map(({ policy }) => policy.digest);
      }
      return digests;
    }),
  );
  return withProject(bench, async (folder) => {
    const fleet = await mixedFleet(bench, folder);
    return withStack(
      bench,
      folder,
      (client, stack) =>
        strikeRounds(bench, { client, stack, folder, canHide: fleet.canHide }, { alone, faults, seed }),
      { mayRestart: true, count: counts, changeRole: fleet.changeRole },
    );
  });
}

interface Place {
  readonly client: Client;
  readonly stack: Stack;
  readonly folder: string;
  /** Whether each worker has its own mounts, so that the store can be hidden from it. */
  readonly canHide: boolean;
}

/** Builds the fleet. Faults that this machine does not permit are reported and skipped. */
async function mixedFleet(
  bench: Bench,
  folder: string,
): Promise<{ readonly canHide: boolean; readonly changeRole: (role: Role) => Role }> {
  const other = await previousCommit(folder);
  bench.say(typeof other === 'string' ? other : `${otherWorkers.join(', ')}: ${other.notes.join('; ')}`);
  const canHide = await hasMounts(bench);
  return {
    canHide,
    changeRole: (role) => {
      const own = typeof other === 'string' ? role : ofVersion(role, other);
      return canHide ? withOwnMounts(own) : own;
    },
  };
}

function ofVersion(role: Role, other: OtherVersion): Role {
  return otherWorkers.includes(role.name) ? rolesOf(other, [role])[0]! : role;
}

async function hasMounts(bench: Bench): Promise<boolean> {
  try {
    return await inTemporaryFolder('mounts', async (temporary) => {
      await surroundWithMounts(temporary);
      return true;
    });
  } catch (error) {
    if (!(error instanceof StageUnavailable)) throw error;
    bench.say(`no worker loses its store: ${error.message}`);
    return false;
  }
}

interface StartedRun {
  readonly name: string;
  readonly model: ModelName;
  readonly handle: WorkflowHandle<typeof trainRun>;
}

async function start(
  client: Client,
  folder: string,
  { model, round }: { readonly model: ModelName; readonly round: number },
): Promise<StartedRun> {
  const name = `${model}-${round}`;
  const config = `${name}.toml`;
  await writeFile(path.join(folder, config), realRun({ steps: stepsOfRun, log: '' }));
  const handle = await client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: taskQueues.orchestrator,
    workflowTaskTimeout: '5s',
    args: [{ config, overrides: { ...models[model], 'heartbeat-timeout': String(heartbeatTimeoutS) } }],
  });
  return { name, model, handle };
}

async function strikeRounds(
  bench: Bench,
  place: Place,
  { alone, faults, seed }: Options & { readonly alone: Readonly<Record<ModelName, readonly string[]>> },
): Promise<Figures> {
  const struck: Record<string, number> = {};
  const totals = { faults: 0, runs: 0, lost: 0, duplicated: 0, differing: 0, recovered: 0 };
  const rounds: number[] = [];
  bench.doing(`${faults} faults`);
  for (let number = 1; totals.faults < faults; number++) {
    const startedAt = performance.now();
    const runs = await Promise.all(
      modelNames.map((model) => start(place.client, place.folder, { model, round: number })),
    );
    const own = await strikeUntil(bench, place, { runs, seed, from: totals.faults, faults });
    await Promise.all(runs.map(({ handle }) => untilEnded(bench, handle)));
    for (const process of own) struck[process] = (struck[process] ?? 0) + 1;
    totals.faults += own.length;
    totals.runs += runs.length;
    for (const { name, model } of runs) {
      const commits: readonly StepCommit[] = await readCommits(place.folder, name, stepsOfRun);
      const audit = auditLedger(commits.map(({ outcomes }) => outcomes));
      totals.lost += audit.holes.length + audit.missingSteps.length;
      totals.duplicated += audit.duplicates.length;
      const differing = commits.filter(({ policy }, step) => policy.digest !== alone[model][step]).length;
      if (differing > 0) bench.say(`${name}: ${differing} versions are not those of the run alone`);
      totals.differing += differing;
    }
    rounds.push((performance.now() - startedAt) / 1000);
    bench.say(`round ${number}: ${own.length} faults, ${totals.faults} of ${faults}`);
  }
  return {
    faults: totals.faults,
    lost: totals.lost,
    duplicated: totals.duplicated,
    weights_equal: totals.differing === 0,
    details: {
      runs: totals.runs,
      versions_with_other_weights: totals.differing,
      struck,
      round_s: round(median(rounds), 1),
    },
  };
}

/** Asked for again while the server that was struck last comes back: it cuts the question off. */
async function untilEnded(bench: Bench, handle: StartedRun['handle']): Promise<void> {
  const startedAt = performance.now();
  for (;;) {
    try {
      return void (await handle.result());
    } catch (error) {
      if (!(error instanceof ServiceError) || performance.now() - startedAt > patienceMs) throw error;
      await delay(1_000, undefined, { signal: bench.signal });
    }
  }
}

/** Strikes until all runs have ended, or there were enough faults. Returns what was struck. */
async function strikeUntil(
  bench: Bench,
  place: Place,
  options: {
    readonly runs: readonly StartedRun[];
    readonly seed: number;
    readonly from: number;
    readonly faults: number;
  },
): Promise<string[]> {
  const { runs, seed, from, faults } = options;
  const struck: string[] = [];
  const stepsNow = (): number => runs.reduce((sum, { name }) => sum + newestStep(place.folder, name), 0);
  let [steps, steppedAt] = [stepsNow(), performance.now()];
  while (steps < runs.length * stepsOfRun && from + struck.length < faults) {
    const key = ['bench faults-several', seed, from + struck.length] as const;
    await delay(uniform(...key, 'when') * pauseMsMax, undefined, { signal: bench.signal });
    struck.push(await strikeOnce(place, key));
    if (stepsNow() !== steps) [steps, steppedAt] = [stepsNow(), performance.now()];
    if (performance.now() - steppedAt > patienceMs)
      throw new Error(`no run has made a step for ${patienceMs / 1000} s; struck last: ${struck.slice(-5).join(', ')}`);
  }
  return struck;
}

async function strikeOnce({ stack, folder, canHide }: Place, key: readonly (string | number)[]): Promise<string> {
  const victims = Object.keys(stack.pids()).filter(
    (name) => isWorker(name) || struckRoles.some((role) => role === name),
  );
  const victim = victims[Math.floor(uniform(...key, 'what') * victims.length)]!;
  const pid = await pidOf(stack, victim);
  const how = uniform(...key, 'how');
  const timeouts = uniform(...key, 'how long') < 1 / longOneIn ? longFor : lastsFor;
  const lasts = () => delay(timeouts * heartbeatTimeoutS * 1000);
  // A stopped server keeps its port, so only its supervisor could notice, and that checks processes, not ports.
  if (how < shares.stopped && victim !== server) {
    process.kill(pid, 'SIGSTOP');
    await lasts();
    process.kill(pid, 'SIGCONT');
    return `${victim} stopped`;
  }
  // Versions before 28 November 2026 end the run when one machine does not see the store.
  if (how > 1 - shares.hidden && canHide && isWorker(victim) && !otherWorkers.includes(victim)) {
    hideStore(pid, folder);
    await lasts();
    if (isAlive(pid)) showStore(pid, folder);
    return `${victim} without the store`;
  }
  process.kill(pid, 'SIGKILL');
  return `${victim} killed`;
}

const isWorker = (name: string): boolean => /^(train|rollout) worker/.test(name);

/** A process that died a moment ago is about to be started again. */
async function pidOf(stack: Stack, name: string): Promise<number> {
  for (;;) {
    const pid = stack.pids()[name];
    if (pid != null) return pid;
    await delay(lookMs);
  }
}
