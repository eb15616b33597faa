import { connect as connectSocket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { uniform } from '../core/random.ts';
import { auditLedger } from '../core/rl/ledger.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import type { Stack } from '../workers/stack/supervisor.ts';
import { answersBeyondTheFirst, countInFlight, startFakeRun, type FakeRun, type FakeRunOptions } from './fake-run.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { newestStep, readCommits, stepSeconds, withProject, withStack } from './run-project.ts';
import { median, round } from './statistics.ts';

const workers = ['orchestrator worker', 'rollout worker', 'train worker'] as const;
const server = 'Temporal server';

const flow = 'workflow of the rounds';

/**
 * A fault for one process: killed, or stopped until it has been given up and then continued; or a terminated workflow.
 */
interface Fault {
  readonly process: (typeof workers)[number] | typeof server | typeof flow;
  readonly kind: 'killed' | 'stopped' | 'terminated';
}

const faultKinds: readonly Fault[] = [
  ...workers.map((process): Fault => ({ process, kind: 'killed' })),
  ...workers.map((process): Fault => ({ process, kind: 'stopped' })),
  { process: server, kind: 'killed' },
];

/** From level 2 on, a workflow generates the run's rounds. */
function faultKindsAt(level: number): readonly Fault[] {
  return level < 2 ? faultKinds : [...faultKinds, { process: flow, kind: 'terminated' }];
}

const heartbeatTimeoutS = 2;
/** A stopped process stays so for this many heartbeat timeouts. */
const stoppedFor = 1.5;
/** Faults come this long after the run has recovered from the one before, at most. */
const pauseMsMax = 1_500;
const lookMs = 20;
/** A run that makes no step for so long is not going to. */
const patienceMs = 180_000;

/** A step takes about 0.7 s. */
const faulted: Omit<FakeRunOptions, 'name'> = {
  steps: 20,
  batchSize: 32,
  rolloutsPerExample: 4,
  asyncLevel: 0,
  sampleMs: 400,
  stepMs: 200,
  heartbeatTimeoutS,
  checkpointInterval: 5,
};

/** A tail keeps groups of all ages in flight. */
const withTail: Partial<FakeRunOptions> = { sampleMs: 1_500, maxConcurrent: 64 };

/** Ten seconds a step, most of them generation, as in a real run. */
const tenSeconds: Omit<FakeRunOptions, 'name'> = {
  steps: 50,
  batchSize: 32,
  rolloutsPerExample: 4,
  asyncLevel: 0,
  sampleMs: 7_000,
  stepMs: 2_800,
  checkpointInterval: 5,
};
const faultsPerTenSecondRun = 5;
const undisturbedTenSecondSteps = 5;

/**
 * Kills and stops the processes of a stack at seeded random moments, run after run until there were enough, and compares
 * each run with an undisturbed one. Real server, workers and store; a model and a trainer that cost nothing, whose
 * weights are a hash chain over everything that was trained.
 *
 * - `faults`, goal ≥ 200: processes that were struck.
 * - `lost`, goal 0: groups that were issued and are unaccounted for, and steps without a commit.
 * - `duplicates`, goal 0: groups issued, ended or trained twice.
 * - `regenerated_beyond_in_flight`, goal 0: answers sampled again that the dead process had stored.
 * - `weights_equal`: after every step of every run the weights are those of the undisturbed one. Null from level 1 on, where it depends on
 *   time from which version a group is sampled, and for which step it comes: there it counts in `lost` and `duplicates` whether every
 *   group was trained once.
 * - `recovery_s_max`, goal ≤ heartbeat timeout + 10: from the death of a worker to the run's next commit.
 * - `server_recovery_s_max`, goal ≤ 5: from the moment a killed Temporal server answers again to the next commit.
 * - `ettr_at_10pct`, goal ≥ 0.9: step time of an undisturbed run × steps ÷ wall time of a disturbed one, with 50 steps of
 *   10 s and a fault in one of ten. Heartbeat timeout as users have it (5 s), a checkpoint every 5 steps.
 */
export const faults = measurement('faults', 'what is lost when processes die at random moments', measure)
  .option('--faults <n>', 'processes to strike', Number, 200)
  .option('--seed <n>', 'chooses moments and victims', Number, 1)
  .option('--level <n>', 'max_async_level; from 2 on with rollouts that have a tail', Number, 0)
  .option('--no-ettr', 'leave out the run of 50 steps of 10 s')
  .addHelpText(
    'after',
    `\nGoals: lost, duplicates, regenerated_beyond_in_flight 0; weights_equal at level 0; recovery_s_max ≤ ${heartbeatTimeoutS + 10}, server_recovery_s_max ≤ 5; ettr_at_10pct ≥ 0.9.`,
  );

interface Options {
  readonly faults: number;
  readonly seed: number;
  readonly ettr: boolean;
  readonly level: number;
}

async function measure(bench: Bench, { faults: wanted, seed, ettr, level }: Options): Promise<Figures> {
  const struck = await withProject(bench, (folder) =>
    withStack(bench, folder, (client, stack) => strikeRuns(bench, { client, stack, folder }, { wanted, seed, level }), {
      mayRestart: true,
    }),
  );
  const effective = ettr ? await withProject(bench, (folder) => measureEttr(bench, folder, seed)) : null;
  return { ...struck, ettr_at_10pct: effective?.ettr ?? null, ...(effective ? { ettr: effective.details } : {}) };
}

interface Place {
  readonly client: Client;
  readonly stack: Stack;
  readonly folder: string;
}

/** One fault and what the run made of it. */
interface Strike extends Fault {
  /** ISO. */
  readonly time: string;
  readonly step: number;
  readonly recovery_s: number;
  /** The same from the moment the server answered again; null for a worker. */
  readonly afterServer_s: number | null;
  readonly inFlight: number;
}

async function strikeRuns(
  bench: Bench,
  place: Place,
  { wanted, seed, level }: { readonly wanted: number; readonly seed: number; readonly level: number },
): Promise<Figures> {
  bench.doing('an undisturbed run');
  const options = { ...faulted, asyncLevel: level, ...(level < 2 ? {} : withTail) };
  const undisturbed = await startFakeRun(place.client, place.folder, { ...options, name: 'undisturbed' });
  await undisturbed.handle.result();
  const expected = await readCommits(place.folder, undisturbed.name, faulted.steps);
  if (answersBeyondTheFirst(undisturbed.sampled()) > 0) throw new Error('the undisturbed run sampled something twice');

  const strikes: Strike[] = [];
  const totals = { lost: 0, duplicates: 0, regenerated: 0, beyondInFlight: 0, inFlight: 0, differing: 0, runs: 0 };
  bench.doing(`${wanted} faults`);
  for (let number = 1; strikes.length < wanted; number++) {
    const run = await startFakeRun(place.client, place.folder, { ...options, name: `struck-${number}` });
    const own = await strikeRun(bench, place, run, { seed, from: strikes.length, wanted, level });
    const commits = await readCommits(place.folder, run.name, faulted.steps);
    const audit = auditLedger(commits.map(({ outcomes }) => outcomes));
    const inFlight = own.reduce((sum, strike) => sum + strike.inFlight, 0);
    const regenerated = answersBeyondTheFirst(run.sampled());
    if (regenerated > inFlight) {
      bench.say(`${run.name}: ${JSON.stringify({ faults: own, twice: sampledTwice(run) })}`);
    }
    totals.runs += 1;
    totals.lost += audit.holes.length + audit.missingSteps.length;
    totals.duplicates += audit.duplicates.length;
    totals.regenerated += regenerated;
    totals.inFlight += inFlight;
    totals.beyondInFlight += Math.max(0, regenerated - inFlight);
    totals.differing += commits.filter((commit, step) => commit.policy.digest !== expected[step]!.policy.digest).length;
    strikes.push(...own);
    bench.say(`${run.name}: ${own.length} faults, ${regenerated} rollouts again, ${inFlight} were in flight`);
  }
  return {
    faults: strikes.length,
    lost: totals.lost,
    duplicates: totals.duplicates,
    regenerated_beyond_in_flight: totals.beyondInFlight,
    weights_equal: level === 0 ? totals.differing === 0 : null,
    recovery_s_max: most(strikes.filter(isOfWorker).map(({ recovery_s }) => recovery_s)),
    server_recovery_s_max: most(strikes.map(({ afterServer_s }) => afterServer_s)),
    details: {
      runs: totals.runs,
      steps_with_other_weights: totals.differing,
      regenerated: totals.regenerated,
      in_flight: totals.inFlight,
      recovery_s: Object.fromEntries(
        faultKindsAt(level).map(({ process, kind }) => {
          const own = strikes.filter((strike) => strike.process === process && strike.kind === kind);
          const seconds = own.map(({ recovery_s }) => recovery_s);
          return [`${process} ${kind}`, { faults: own.length, median: round(median(seconds), 2), most: most(seconds) }];
        }),
      ),
    },
  };
}

/** Answers that were given again, and by whom, for debugging. */
function sampledTwice(run: FakeRun): string[] {
  const sampled = run.sampled();
  const seen = new Set<number>();
  const again = new Set(sampled.map(({ seed }) => seed).filter((seed) => seen.size === seen.add(seed).size));
  return sampled
    .filter(({ seed }) => again.has(seed))
    .map(({ policy, seed, pid, time }) => `${seed} of ${policy} by ${pid} at ${time}`);
}

const isOfWorker = ({ process }: Fault): boolean => process !== server;

function most(seconds: readonly (number | null)[]): number {
  return round(Math.max(...seconds.filter((value) => value !== null)), 2);
}

/** Strikes until the run is over, or there were enough faults. */
async function strikeRun(
  bench: Bench,
  place: Place,
  run: FakeRun,
  { seed, from, wanted, level }: { seed: number; from: number; wanted: number; level: number },
): Promise<Strike[]> {
  const strikes: Strike[] = [];
  while (from + strikes.length < wanted) {
    const key = ['bench faults', seed, from + strikes.length] as const;
    await delay(uniform(...key, 'when') * pauseMsMax, undefined, { signal: bench.signal });
    const kinds = faultKindsAt(level);
    const fault = kinds[Math.floor(uniform(...key, 'what') * kinds.length)]!;
    if (newestStep(place.folder, run.name) === faulted.steps) break;
    strikes.push(await strikeOnce(place, run, fault));
  }
  await run.handle.result();
  return strikes;
}

async function strikeOnce(place: Place, run: FakeRun, fault: Fault): Promise<Strike> {
  const { stack, folder } = place;
  const pid = fault.process === flow ? null : await pidOf(stack, fault.process);
  const step = newestStep(folder, run.name);
  const restartsBefore = stack.restarts()[fault.process]!;
  const struckAt = performance.now();
  const time = new Date().toISOString();
  if (pid === null) await terminateFlows(place.client, run.name);
  else process.kill(pid, fault.kind === 'killed' ? 'SIGKILL' : 'SIGSTOP');
  await delay(lookMs); // gives its last writes time
  // A stopped process may still finish its rollouts: everything that it has not stored counts as in flight.
  const inFlight = ['rollout worker', flow].includes(fault.process) ? inFlightOf(folder, run, fault.kind) : 0;
  if (fault.kind === 'stopped' && pid !== null) {
    await delay(stoppedFor * heartbeatTimeoutS * 1000);
    process.kill(pid, 'SIGCONT');
  }
  let serverBackAt: number | null = null;
  if (fault.process === server) {
    while (stack.restarts()[server] === restartsBefore || !(await answers(stack.temporalAddress))) await delay(lookMs);
    serverBackAt = performance.now();
  }
  while (newestStep(folder, run.name) === step) {
    await delay(lookMs);
    if (performance.now() - struckAt > patienceMs)
      throw new Error(`no commit for ${patienceMs / 1000} s after ${JSON.stringify(fault)}`);
  }
  const now = performance.now();
  return {
    ...fault,
    time,
    step,
    inFlight,
    recovery_s: (now - struckAt) / 1000,
    afterServer_s: serverBackAt !== null ? (now - serverBackAt) / 1000 : null,
  };
}

async function terminateFlows(client: Client, run: string): Promise<void> {
  const query = `WorkflowType='playRounds' AND ExecutionStatus='Running' AND WorkflowId BETWEEN '${run}.' AND '${run}.~'`;
  for await (const { workflowId } of client.workflow.list({ query })) {
    await client.workflow
      .getHandle(workflowId)
      .terminate('lost')
      .catch(() => undefined); // it has just ended
  }
}

function inFlightOf(folder: string, run: FakeRun, kind: Fault['kind']): number {
  return countInFlight(folder, run, kind === 'killed' ? 'sampled' : 'issued');
}

/** A process that died a moment ago is about to be started again. */
async function pidOf(stack: Stack, name: string): Promise<number> {
  for (;;) {
    const pid = stack.pids()[name];
    if (pid != null) return pid;
    await delay(lookMs);
  }
}

function answers(address: string): Promise<boolean> {
  const [host, port] = address.split(':') as [string, string];
  return new Promise((resolve) => {
    const socket = connectSocket({ host, port: Number(port) });
    socket.once('connect', () => (socket.destroy(), resolve(true)));
    socket.once('error', () => resolve(false));
  });
}

/** Wall times from commit to commit, so the time before the first version counts on neither side. */
async function measureEttr(bench: Bench, folder: string, seed: number) {
  return withStack(
    bench,
    folder,
    async (client, stack) => {
      bench.doing(`${undisturbedTenSecondSteps} steps of 10 s, undisturbed`);
      const steps = undisturbedTenSecondSteps;
      const alone = await startFakeRun(client, folder, { ...tenSeconds, steps, name: 'ten-seconds' });
      await alone.handle.result();
      const step_s = median(stepSeconds(await readCommits(folder, alone.name, steps)));

      bench.doing(`${tenSeconds.steps} steps of 10 s, a fault in one of ten`);
      const run = await startFakeRun(client, folder, { ...tenSeconds, name: 'ten-seconds-struck' });
      const struck: Strike[] = [];
      for (let i = 0; i < faultsPerTenSecondRun; i++) {
        const key = ['bench faults ettr', seed, i] as const;
        const each = tenSeconds.steps / faultsPerTenSecondRun;
        const at = i * each + Math.floor(uniform(...key, 'step') * (each - 1));
        while (newestStep(folder, run.name) < at) await delay(lookMs, undefined, { signal: bench.signal });
        await delay(uniform(...key, 'when') * step_s * 1000, undefined, { signal: bench.signal });
        const processes = [...workers, server] as const;
        const fault: Fault = { process: processes[(i + seed) % processes.length]!, kind: 'killed' };
        struck.push(await strikeOnce({ client, stack, folder }, run, fault));
        bench.say(
          `step ${at + 1}: ${fault.process} killed, next commit after ${round(struck.at(-1)!.recovery_s, 1)} s`,
        );
      }
      await run.handle.result();
      const commits: readonly StepCommit[] = await readCommits(folder, run.name, tenSeconds.steps);
      const wall_s = stepSeconds(commits).reduce((sum, seconds) => sum + seconds, 0);
      return {
        ettr: round((step_s * tenSeconds.steps) / wall_s),
        details: {
          undisturbed_step_s: round(step_s),
          wall_s: round(wall_s, 1),
          strikes: struck.map(({ process, step, recovery_s }) => ({ process, step: step + 1, recovery_s })),
        },
      };
    },
    { mayRestart: true },
  );
}
