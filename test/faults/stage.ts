/** A stack of its own for the fault tests: real server, roles, store and workflow. */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { setTimeout as delay } from 'node:timers/promises';
import { Client, Connection, type WorkflowHandleWithFirstExecutionRunId } from '@temporalio/client';
import { grantNamed, namedIn } from '../../load/grants/grant.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import type { FailpointPlan, FiredFailpoint } from '../../store/failpoints.ts';
import { openRunStore, resolveStoreUri, type Store } from '../../store/index.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { connectionOptions } from '../../workers/temporal/temporal-connection.ts';
import { localTemporal, remoteTemporal } from '../../workers/temporal/temporal-settings.ts';
import { localRoles, policyUrlAt } from '../../workers/stack/roles.ts';
import { startStack, type Stack } from '../../workers/stack/supervisor.ts';
import type { StartedVllm } from '../../workers/stack/vllm-role.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import type { RunOptions } from './fake-run.ts';
import type { SampledLine } from './fake-inference.ts';
import { kindOf, type StageKind, type StageKindName, type Surroundings } from './stage-kinds.ts';
import { rolesOf, thisVersion } from './upgrade.ts';

/** A run of the stage with what it sampled. */
export interface StagedRun {
  readonly name: string;
  readonly overrides: Readonly<Record<string, string>>;
  readonly store: Store;
  readonly handle: WorkflowHandleWithFirstExecutionRunId<typeof trainRun>;
  /** Every answer the inference gave for it, where the stage's inference notes them. */
  sampled(): SampledLine[];
}

export type StartOptions = Omit<RunOptions, 'log'> & {
  /** Settings, as `--key value` on the command line. */
  readonly overrides?: Readonly<Record<string, string>>;
};

/** Options of a stage besides its kind. */
export interface StageOptions {
  /** The server suggests it in a run's second step. */
  readonly continuesAsNew?: boolean;
}

/** How often it is looked whether a run has ended before its fault. */
const endLookMs = 1_000;

/** Events of an execution after which the server suggests to continue as new: reached in the second step. */
const eventsSuggested = 100;
const suggestionSetting = 'limit.historyCount.suggestContinueAsNew';

interface Running {
  readonly stack: Stack;
  readonly connection: Connection;
  readonly client: Client;
  readonly vllm: StartedVllm | null;
}

let lastStart: Promise<unknown> = Promise.resolve();

export class FaultStage {
  readonly folder: string;
  readonly surroundings: Surroundings;
  readonly #kind: StageKind;
  readonly #serverSettings: Readonly<Record<string, string>>;
  readonly #log: string[] = [];
  #isUpgraded = false;
  #running: Running | null = null;

  private constructor(folder: string, kind: StageKind, surroundings: Surroundings, { continuesAsNew }: StageOptions) {
    this.folder = folder;
    this.surroundings = surroundings;
    this.#kind = kind;
    this.#serverSettings = continuesAsNew === true ? { [suggestionSetting]: String(eventsSuggested) } : {};
  }

  static async open(name: StageKindName = 'fake', options: StageOptions = {}): Promise<FaultStage> {
    const kind = kindOf(name);
    const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-faults-'));
    mkdirSync(failpointsIn(folder));
    const surroundings = await surround(kind, folder);
    if (options.continuesAsNew === true) surroundings.cluster?.setLimits({ [suggestionSetting]: eventsSuggested });
    const stage = new FaultStage(folder, kind, surroundings, options);
    try {
      await stage.#startStack();
      return stage;
    } catch (error) {
      await stage.close();
      throw error;
    }
  }

  /** One after another: of stacks of one process that look for ports at the same time two would find the same. */
  #startStack(): Promise<void> {
    const before = lastStart;
    const starting = before.then(() => this.#startStackNow());
    lastStart = starting.catch(() => undefined); // its caller got the failure
    return starting;
  }

  async #startStackNow(): Promise<void> {
    const { folder } = this;
    const policyPort = await choosePort(0);
    const { version, beside } = this.surroundings;
    const vllm = (await this.surroundings.vllm?.()) ?? null;
    const stack = await startStack({
      projectFolder: folder,
      policyUrl: policyUrlAt(policyPort),
      roles: rolesOf(
        (this.#isUpgraded ? undefined : version) ?? thisVersion,
        localRoles({ weightRoots: [folder], policyPort, followsMetrics: false, count: this.#kind.count ?? {}, vllm }),
      )
        .map((role) => this.#kind.changeRole?.(role) ?? role)
        .flatMap((role) => (beside && isSecond(role.name) ? rolesOf(beside, [role]) : [role])),
      environment: {
        ...process.env,
        RATCHET_CODE_ROOTS: fileURLToPath(new URL('..', import.meta.url)),
        ...this.surroundings.environment,
        RATCHET_FAILPOINTS: failpointsIn(folder),
      },
      serverSettings: this.#serverSettings,
      log: (line) => void this.#log.push(line),
    });
    const { cluster } = this.surroundings;
    const reached = cluster
      ? remoteTemporal(cluster.address, cluster.environment)
      : localTemporal(stack.temporalAddress);
    const connection = await Connection.connect(connectionOptions(reached));
    const { namespace } = reached;
    this.#running = {
      stack,
      connection,
      client: new Client({ connection, namespace, identity: `fault test ${process.pid}` }),
      vllm,
    };
  }

  async #stopStack(): Promise<void> {
    const running = this.#running;
    this.#running = null;
    await running?.connection.close();
    await running?.stack.stop();
  }

  /** Ends the stack, and starts it in the same folder again after what is done in between. */
  async restart(between: () => Promise<void>): Promise<void> {
    await this.#stopStack();
    await between();
    await this.#startStack();
  }

  /** The stack anew, now with this version's code in its roles; `false`: with that of its surroundings again. */
  async upgrade(isUpgraded: boolean): Promise<void> {
    await this.restart(async () => void (this.#isUpgraded = isUpgraded));
  }

  get stack(): Stack {
    return this.#now.stack;
  }

  get client(): Client {
    return this.#now.client;
  }

  /** The vLLM that its runs sample from, if any. */
  get vllm(): StartedVllm | null {
    return this.#now.vllm;
  }

  get #now(): Running {
    if (this.#running === null) throw new Error('the stack of this stage does not run');
    return this.#running;
  }

  /** Last lines of the supervisor, for messages. */
  get said(): string {
    return this.#log.slice(-20).join('\n');
  }

  get storeUri(): string {
    return this.surroundings.storeUri ?? resolveStoreUri('outputs', this.folder);
  }

  async start(name: string, { overrides = {}, ...options }: StartOptions): Promise<StagedRun> {
    const log = path.join(this.folder, `${name}.sampled`);
    await writeFile(path.join(this.folder, `${name}.toml`), this.#kind.run({ ...options, log }));
    const given = { ...this.surroundings.overrides, ...overrides };
    const { sampledLog = log } = this.surroundings;
    const before = readSampled(sampledLog).length; // of other runs
    const sampled = (): SampledLine[] => readSampled(sampledLog).slice(before);
    const run = { name, overrides: given, store: openRunStore(this.storeUri, name), sampled };
    return { ...run, handle: await this.#startWorkflow(run) };
  }

  /** Starts a run again like its user: it continues from its newest commit, or is attached to where it is running. */
  async startAgain(run: StagedRun): Promise<StagedRun> {
    return { ...run, handle: await this.#startWorkflow(run) };
  }

  /** Starts it as `ratchet train` does. */
  async #startWorkflow({ name, overrides }: Pick<StagedRun, 'name' | 'overrides'>): Promise<StagedRun['handle']> {
    const { spec } = await loadRunConfig(`${name}.toml`, { projectFolder: this.folder, overrides });
    grantNamed(this.folder, namedIn(spec));
    return this.client.workflow.start<typeof trainRun>('trainRun', {
      workflowId: name,
      taskQueue: 'ratchet',
      args: [{ config: `${name}.toml`, overrides }],
      workflowIdConflictPolicy: 'USE_EXISTING',
      workflowTaskTimeout: '5s',
    });
  }

  /** Forgets every failpoint before it; from now on `name` fires. */
  plan(name: string, plan: FailpointPlan): void {
    this.clear();
    this.planBeside(name, plan);
  }

  /** The same, but earlier plans stay. */
  planBeside(name: string, plan: FailpointPlan): void {
    writeFileSync(path.join(failpointsIn(this.folder), `${name}.json`), JSON.stringify(plan));
  }

  clear(): void {
    const folder = failpointsIn(this.folder);
    for (const entry of readdirSync(folder)) rmSync(path.join(folder, entry), { recursive: true, force: true });
  }

  /** Waits until it fires; null when the run ended without. */
  async fired(name: string, run: StagedRun): Promise<FiredFailpoint | null> {
    const file = path.join(failpointsIn(this.folder), `${name}.fired.1`);
    // Polled, not awaited: a wait for the end that is aborted between two polls would continue.
    for (let lookedAt = performance.now(); !existsSync(file);) {
      await delay(20);
      if (performance.now() - lookedAt < endLookMs) continue;
      lookedAt = performance.now();
      const { status } = await this.client.workflow.getHandle(run.name).describe();
      const hasEnded = status.name !== 'RUNNING' && status.name !== 'CONTINUED_AS_NEW';
      if (hasEnded && !existsSync(file)) return null;
    }
    await delay(20); // it is written at once, but not in one piece
    return JSON.parse(readFileSync(file, 'utf8')) as FiredFailpoint;
  }

  release(name: string): void {
    writeFileSync(path.join(failpointsIn(this.folder), `${name}.released`), '');
  }

  pid(role: string): number {
    const pid = this.stack.pids()[role];
    if (pid == null) throw new Error(`There is no ${role} to be killed: ${JSON.stringify(this.stack.pids())}`);
    return pid;
  }

  async close(): Promise<void> {
    await this.#stopStack();
    await this.surroundings.close?.();
    await rm(this.folder, { recursive: true, force: true });
  }
}

async function surround(kind: StageKind, folder: string): Promise<Surroundings> {
  try {
    return (await kind.surround?.(folder)) ?? {};
  } catch (error) {
    await rm(folder, { recursive: true, force: true });
    throw error;
  }
}

function failpointsIn(folder: string): string {
  return path.join(folder, 'failpoints');
}

/** Whether a worker is the second of its role. */
export function isSecond(role: string): boolean {
  return role.endsWith(' worker 2');
}

export function readSampled(log: string): SampledLine[] {
  if (!existsSync(log)) return [];
  return readFileSync(log, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as SampledLine);
}

export type { RunSummary };
