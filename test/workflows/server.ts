/**
 * Workflows as they are shipped, on a Temporal server of their own, with fake activities: what a workflow does next, without a process
 * more. Many runs are at work there side by side; an activity finds its run by the id of the workflow that asks for it.
 */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Context } from '@temporalio/activity';
import type { Client, WorkflowHandleWithFirstExecutionRunId } from '@temporalio/client';
import { defineSearchAttributeKey } from '@temporalio/common';
import { TestWorkflowEnvironment } from '@temporalio/testing';
import { DefaultLogger, Runtime, Worker } from '@temporalio/worker';
import { FailureMapping } from '../../activities/around/failures.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { queueOfPool, taskQueues, trainerLeasedSignalName, trainerQueues } from '../../core/names.ts';
import { fairQueues } from '../../workers/temporal/dev-server.ts';
import { ensureTemporalCli } from '../../workers/temporal/temporal-cli.ts';
import { workflowBundlePath, workflowCodeVersion } from '../../workers/program/workflow-bundle.ts';
import { runTogether } from '../../workers/roles/run-worker.ts';
import type { RunEvent, RunStatus } from '../../workflows/control/messages.ts';
import type { RunSummary } from '../../workflows/train-run.ts';
import { eventually } from '../eventually.ts';
import { fakeEvaluations, fakeRescores, fakeSearches } from './fake-evaluation.ts';
import {
  type ActivityName,
  FakeRun,
  type Fakes,
  type Input,
  type Output,
  type RunView,
  specWith,
  type DefaultFakes,
} from './fake-run.ts';
import { fakeTraining, gpuWorkers, narrowPools, narrowPoolSlots, type TellLeased, testPools } from './fake-training.ts';
import { patience, soon } from './look.ts';

/** A workflow whose history is long after a few steps, and which continues as new then. */
export const shortHistoryQueue = 'short-history';

/**
 * Workflows that are replayed at every task, and of which some cannot be replayed once their history is a little long: those with
 * `brittle` in the memo, and the parts of a kind that a run named `brittle-KIND-…` begins. Numbers of timers are used up
 * there, as the SDK does it on a busy machine. One that was begun anew is as others.
 */
export const brittleQueue = 'brittle';

/** Waits of the workflows that are long because people and machines are slow; in tests neither is. */
const shorterMs = { longPauseMs: 400, evaluationLookAgainMs: 400, holdAgainMs: 500, firstLookMs: 100 };
/** Events: of three steps or so. */
const shortHistory = 130;
const heartbeatEveryMs = 250;

interface Server {
  readonly environment: TestWorkflowEnvironment;
  readonly client: Client;
  readonly runs: Map<string, { readonly fake: FakeRun; readonly fakes: Fakes; readonly usual: DefaultFakes }>;
  replayAll(): Promise<void>;
  close(): Promise<void>;
}

let opening: Promise<Server> | null = null;

export function openServer(): Promise<Server> {
  return (opening ??= open());
}

/** Whatever the workflows of these tests met, an orchestrator that takes them over must come the same way through their histories. */
export async function closeServer(): Promise<void> {
  const server = await opening;
  opening = null;
  try {
    await server?.replayAll();
  } finally {
    await server?.close();
  }
}

async function open(): Promise<Server> {
  Runtime.install({ logger: new DefaultLogger('ERROR'), telemetryOptions: { logging: { filter: 'ERROR' } } });
  const [cli, bundle] = await Promise.all([ensureTemporalCli({ log: () => undefined }), shippedBundle()]);
  const home = await mkdtemp(path.join(tmpdir(), 'ratchet-server-'));
  const environment = await startIn(home, cli.path);
  const { client, nativeConnection: connection } = environment;
  const runs: Server['runs'] = new Map();
  const activities = activitiesOf(runs);
  const interceptors = { activity: [() => ({ inbound: new FailureMapping('of the tests') })] };
  const common = {
    connection,
    activities,
    interceptors,
    shutdownForceTime: '5s',
    maxHeartbeatThrottleInterval: heartbeatEveryMs,
  };
  const workflows = {
    ...common,
    workflowThreadPoolSize: 1,
    maxCachedWorkflows: 200,
    maxConcurrentWorkflowTaskExecutions: 20,
  };
  const queues = [
    taskQueues.rollout,
    ...testPools.map((pool) => queueOfPool(taskQueues.rollout, pool)),
    taskQueues.train,
    ...gpuWorkers.flatMap((name) => Object.values(trainerQueues(name))),
  ];
  const bundles = {
    [taskQueues.orchestrator]: bundle,
    [shortHistoryQueue]: withConstants(bundle, { historyEventsMax: shortHistory }),
  };
  const workers = await Promise.all([
    ...Object.entries(bundles).map(([taskQueue, code]) =>
      Worker.create({ ...workflows, taskQueue, workflowBundle: { code } }),
    ),
    ...queues.map((taskQueue) => Worker.create({ ...common, taskQueue })),
    ...narrowPools.map((pool) =>
      Worker.create({
        ...common,
        taskQueue: queueOfPool(taskQueues.rollout, pool),
        maxConcurrentActivityTaskExecutions: narrowPoolSlots,
      }),
    ),
  ]);
  const brittle = { ...workflows, taskQueue: brittleQueue, identity: brittleQueue, maxCachedWorkflows: 0 };
  workers.push(await Worker.create({ ...brittle, workflowBundle: { code: breakingReplays(bundle) } }));
  const together = runTogether(workers);
  const working = together.run();
  return {
    environment,
    client,
    runs,
    async replayAll() {
      const failures: string[] = [];
      for (const [taskQueue, code] of Object.entries({ ...bundles, [brittleQueue]: bundle })) {
        const histories = client.workflow.list({ query: `TaskQueue='${taskQueue}'` }).intoHistories();
        for await (const { workflowId, error } of Worker.runReplayHistories({ workflowBundle: { code } }, histories)) {
          if (error) failures.push(`${workflowId}: ${error.message}`);
        }
      }
      if (failures.length > 0) throw new Error(`histories that cannot be continued with:\n${failures.join('\n')}`);
    },
    async close() {
      together.shutdown();
      await working;
      await environment.teardown();
      await rm(home, { recursive: true });
    },
  };
}

/** A server without a database file writes its id into the home, and it inherits ours. */
export async function startIn(home: string, cli: string): Promise<TestWorkflowEnvironment> {
  const { HOME: ours } = process.env;
  process.env['HOME'] = home;
  try {
    return await TestWorkflowEnvironment.createLocal({
      server: {
        executable: { type: 'existing-path', path: cli },
        log: { format: 'pretty', level: 'never' },
        // As `ratchet dev` starts it.
        extraArgs: Object.entries(fairQueues).flatMap(([key, value]) => ['--dynamic-config-value', `${key}=${value}`]),
        searchAttributes: [
          defineSearchAttributeKey('RatchetRun', 'KEYWORD'),
          defineSearchAttributeKey('RatchetStep', 'INT'),
          defineSearchAttributeKey('RatchetReward', 'DOUBLE'),
        ],
      },
    });
  } finally {
    if (ours === undefined) delete process.env['HOME'];
    else process.env['HOME'] = ours;
  }
}

async function shippedBundle(): Promise<string> {
  const code = await readFile(await workflowBundlePath(await workflowCodeVersion()), 'utf8');
  return withConstants(code, shorterMs);
}

/** Events of a history from which a brittle workflow cannot be replayed. */
const brittleEvents = { trainRun: 60, playRounds: 20, pool: 12, evaluate: 8 };

/** This code is text: the loader of our tests adds helpers to functions, which the workflows' bundle lacks. */
const breakingReplay = `((sdk, events) => {
  const usedUp = () => {
    const { workflowType, workflowId, memo = {}, historyLength, unsafe } = sdk.info; // the memo comes after the code
    const isBrittle = 'brittle' in memo || workflowId.startsWith('brittle-' + workflowType.toLowerCase() + '-');
    const isFirst = !('taken_over_from' in memo) && !/rollouts\\.\\w+\\.\\d+$/.test(workflowId);
    return isBrittle && isFirst && unsafe.isReplaying && historyLength > events[workflowType] ? 1 : 0;
  };
  for (const kind of ['timer', 'activity', 'signalWorkflow']) {
    let count = sdk.nextSeqs[kind];
    Object.defineProperty(sdk.nextSeqs, kind, { get: () => count + usedUp(), set: (next) => void (count = next) });
  }
  return 10_000;
})(globalThis.__TEMPORAL_ACTIVATOR__, ${JSON.stringify(brittleEvents)})`;

function breakingReplays(code: string): string {
  return withConstants(code, { historyEventsMax: breakingReplay });
}

/** The same code with other values of some constants. */
function withConstants(code: string, values: Readonly<Record<string, number | string>>): string {
  return Object.entries(values).reduce((text, [name, value]) => {
    const pattern = new RegExp(`const ${name} = [\\d_]+;`, 'g');
    if (text.match(pattern)?.length !== 1) throw new Error(`the workflows have no constant ${name}`);
    return text.replace(pattern, () => `const ${name} = ${value};`);
  }, code);
}

/** Every activity, by the name with which it is requested. */
function activitiesOf(runs: Server['runs']): Record<ActivityName, (input: never) => Promise<unknown>> {
  const names = Object.keys(defaultFakes(new FakeRun(specWith('none', {})), () => Promise.resolve())) as ActivityName[];
  return Object.fromEntries(names.map((name) => [name, (input: never) => play(runs, name, input)])) as Record<
    ActivityName,
    (input: never) => Promise<unknown>
  >;
}

async function play(runs: Server['runs'], name: ActivityName, input: never): Promise<unknown> {
  const context = Context.current();
  const { fake, fakes, usual } = runs.get(context.info.workflowExecution!.workflowId.split('.')[0]!)!;
  fake.asked.push({ name, input });
  const nth = fake.asked.filter((one) => one.name === name).length;
  const usually = usual[name] as (input: unknown) => unknown;
  const call = { nth, usual: async (other: unknown = input) => usually(other) };
  const other = fakes[name] as ((input: unknown, call: unknown) => unknown) | undefined;
  const beating = fake.isSilent(name, nth) ? undefined : setInterval(() => context.heartbeat(), heartbeatEveryMs);
  try {
    if (name === 'auditRun') fake.lastView = await viewOf(fake.name);
    const answer = await (other === undefined ? usually(input) : other(input, call));
    if (name === 'broadcastWeights' || name === 'packBatch')
      return await leasedWith(runs, input, answer as Output<typeof name>);
    if (name === 'playGroups') fake.keepParts(input, answer as Awaited<ReturnType<DefaultFakes['playGroups']>>);
    return answer;
  } finally {
    clearInterval(beating);
  }
}

/** Broadcasts and batches lease as `leaseGroups` does: tests find all among its inputs. */
async function leasedWith<Name extends 'broadcastWeights' | 'packBatch'>(
  runs: Server['runs'],
  { lease }: Input<Name>,
  sent: Output<Name>,
): Promise<Output<Name>> {
  if (!lease || ('isNoneLeft' in sent && sent.isNoneLeft)) return sent;
  const leased = (await play(runs, 'leaseGroups', lease as never)) as Output<'leaseGroups'>;
  return { ...sent, leased };
}

async function viewOf(name: string): Promise<RunView> {
  const { client } = await openServer();
  const run = client.workflow.getHandle(name);
  return { status: await run.query<RunStatus>('status'), events: await run.query<RunEvent[], [number]>('events', 0) };
}

function defaultFakes(run: FakeRun, tell: TellLeased): DefaultFakes {
  const measureSweepRun = () => ({ step: null, value: null });
  const sweepSandboxes = () => ({ open: 0, ended: [], orphans: [], left: [], troubles: [] });
  return {
    ...fakeTraining(run, tell),
    ...fakeEvaluations(run),
    ...fakeSearches(run),
    ...fakeRescores(),
    measureSweepRun,
    sweepSandboxes,
  };
}

/** A run that is under way, and what people ask of it. */
export interface BegunRun extends Pick<FakeRun, 'inputs' | 'order'> {
  readonly name: string;
  readonly fake: FakeRun;
  readonly client: Client;
  readonly handle: WorkflowHandleWithFirstExecutionRunId;
  /** Summary of the last execution. */
  result(): Promise<RunSummary>;
  /** Right before its end, once that has come. */
  status(): Promise<RunStatus>;
  /** At its very end. */
  ended(): Promise<RunView>;
  events(): Promise<RunView['events']>;
  /** Texts of its events of a kind. */
  told(kind: RunEvent['kind']): Promise<string[]>;
  tell(update: string, value?: unknown): Promise<string>;
  /** Resolves with the reason, once it is paused. */
  paused(): Promise<string>;
  /** Once a committed step is known. */
  atStep(step: number): Promise<void>;
}

export interface Begun {
  readonly settings?: Partial<RunSpec>;
  readonly fakes?: Fakes;
  /** A run that has been here before: what it left behind is there. */
  readonly fake?: FakeRun;
  readonly taskQueue?: string;
  /** Beside its file. */
  readonly input?: Readonly<Record<string, unknown>>;
  readonly type?: string;
  /** Timeout of a workflow task; the server's default when missing. */
  readonly taskTimeout?: '2s';
  readonly args?: readonly unknown[];
  readonly memo?: Readonly<Record<string, unknown>>;
}

let begun = 0;

/** A name that no other test has. */
export function freshName(): string {
  begun += 1;
  return `run-${process.pid}-${begun}`;
}

/** Server that answers the activities of workflows of this name. */
export async function answersFor(fake: FakeRun, fakes: Fakes = {}): Promise<Server> {
  const server = await openServer();
  const tell: TellLeased = (workflowId, held) =>
    server.client.workflow.getHandle(workflowId).signal(trainerLeasedSignalName, held);
  server.runs.set(fake.name, { fake, fakes, usual: defaultFakes(fake, tell) });
  return server;
}

/** Begins a run, or continues one. */
export async function begin(of: Begun = {}): Promise<BegunRun> {
  const fake = of.fake ?? new FakeRun(specWith(freshName(), of.settings ?? {}));
  const { name } = fake;
  fake.lastView = null;
  const { client } = await answersFor(fake, of.fakes);
  const handle = await client.workflow.start(of.type ?? 'trainRun', {
    workflowId: name,
    taskQueue: of.taskQueue ?? taskQueues.orchestrator,
    ...(of.taskTimeout ? { workflowTaskTimeout: of.taskTimeout } : {}),
    args: [...(of.args ?? [{ config: `${name}.toml`, ...of.input }])],
    ...(of.memo ? { memo: of.memo } : {}),
  });
  return begunRun(fake, client, handle);
}

function begunRun(fake: FakeRun, client: Client, handle: WorkflowHandleWithFirstExecutionRunId): BegunRun {
  const newest = client.workflow.getHandle(fake.name);
  let isOver = false;
  // A query to an ended run replays its whole history, so the last view from before its end is kept.
  const view = async (): Promise<RunView> => (isOver && fake.lastView) || viewOf(fake.name);
  const status = async (): Promise<RunStatus> => (await view()).status;
  const look = (): Promise<RunStatus | null> => status().catch(() => null); // no handler before it is open
  return {
    name: fake.name,
    fake,
    client,
    handle,
    inputs: (name) => fake.inputs(name),
    order: (...names) => fake.order(...names),
    async result() {
      const summary = (await soon('the end', handle.result())) as RunSummary;
      isOver = true;
      return summary;
    },
    ended: () => viewOf(fake.name),
    status,
    events: async () => (await view()).events,
    told: async (kind) => (await view()).events.filter((event) => event.kind === kind).map(({ text }) => text),
    tell: (update, value) => newest.executeUpdate<string, [unknown]>(update, { args: [value] }),
    async paused() {
      const isOver = (seen: RunStatus | null) => ['paused', 'finished', 'stopped'].includes(seen?.phase ?? '');
      const found = await eventually('a pause', look, isOver, patience);
      if (found!.pausedBecause === null) throw new Error('it ended without a pause');
      return found!.pausedBecause;
    },
    async atStep(step) {
      await eventually(`step ${step}`, look, (seen) => (seen?.step ?? -1) >= step, patience);
    },
  };
}
