/** A stack of its own for the fault tests: real server and roles, a trainer and an inference that cost nothing. */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Client, Connection, type WorkflowHandle } from '@temporalio/client';
import type { FailpointPlan, FiredFailpoint } from '../../backends/failpoints.ts';
import { choosePort } from '../../workers/ports.ts';
import { localRoles, policyUrlAt } from '../../workers/roles.ts';
import { startStack, type Stack } from '../../workers/supervisor.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import type { SampledLine } from './fake-inference.ts';

const here = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

/** As short as a run may have it, so that a dead worker is soon found out. */
export const heartbeatTimeoutMs = 2_000;

export interface FakeRunOptions {
  readonly steps: number;
  /** The longest answer; others take a part of it. */
  readonly sampleMs?: number;
}

/** Seconds at full speed: 8 groups of 4 a step, a checkpoint every other step. */
export function fakeRun(options: FakeRunOptions & { readonly log: string }): string {
  return `
model = "preset:reverse-text-0.2m"
max_steps = ${options.steps}
batch_size = 32
rollouts_per_example = 4
max_async_level = 0
heartbeat_timeout = ${heartbeatTimeoutMs / 1000}
[sampling]
max_tokens = 10
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 5 }
[trainer]
kind = "module"
import = ${JSON.stringify(here('fake-trainer.ts'))}
options = { stepMs = 100 }
[inference]
kind = "module"
import = ${JSON.stringify(here('fake-inference.ts'))}
options = { log = ${JSON.stringify(options.log)}, sampleMs = ${options.sampleMs ?? 20} }
[checkpoints]
interval = 2
keep_last = 2
`;
}

/** A run of the stage with what it sampled. */
export interface StagedRun {
  readonly name: string;
  readonly handle: WorkflowHandle<typeof trainRun>;
  /** Every answer the inference gave for it. */
  sampled(): SampledLine[];
}

export class FaultStage {
  readonly folder: string;
  readonly stack: Stack;
  readonly client: Client;
  readonly #connection: Connection;
  readonly #failpoints: string;
  readonly #log: readonly string[];

  private constructor(
    folder: string,
    stack: Stack,
    connection: Connection,
    { failpoints, log }: { failpoints: string; log: readonly string[] },
  ) {
    this.folder = folder;
    this.stack = stack;
    this.#connection = connection;
    this.client = new Client({ connection, identity: `fault test ${process.pid}` });
    this.#failpoints = failpoints;
    this.#log = log;
  }

  static async open(): Promise<FaultStage> {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-faults-'));
    const failpoints = path.join(folder, 'failpoints');
    mkdirSync(failpoints);
    const log: string[] = [];
    const policyPort = await choosePort(0);
    const stack = await startStack({
      projectFolder: folder,
      policyUrl: policyUrlAt(policyPort),
      roles: localRoles({ weightRoots: [folder], policyPort }),
      environment: { ...process.env, RATCHET_FAILPOINTS: failpoints },
      log: (line) => void log.push(line),
    });
    const connection = await Connection.connect({ address: stack.temporalAddress });
    return new FaultStage(folder, stack, connection, { failpoints, log });
  }

  /** What the supervisor said, for messages. */
  get said(): string {
    return this.#log.slice(-20).join('\n');
  }

  async start(name: string, options: FakeRunOptions): Promise<StagedRun> {
    const log = path.join(this.folder, `${name}.sampled`);
    await writeFile(path.join(this.folder, `${name}.toml`), fakeRun({ ...options, log }));
    return { name, handle: await this.#startWorkflow(name), sampled: () => readSampled(log) };
  }

  /** The workflow of a run once more, as after its server's database was lost. */
  async startAgain(run: StagedRun): Promise<StagedRun> {
    return { ...run, handle: await this.#startWorkflow(run.name) };
  }

  async #startWorkflow(name: string): Promise<WorkflowHandle<typeof trainRun>> {
    return this.client.workflow.start<typeof trainRun>('trainRun', {
      workflowId: name,
      taskQueue: 'ratchet',
      args: [`${name}.toml`],
    });
  }

  /** Forgets every failpoint before it; from now on `name` fires. */
  plan(name: string, plan: FailpointPlan): void {
    this.clear();
    writeFileSync(path.join(this.#failpoints, `${name}.json`), JSON.stringify(plan));
  }

  clear(): void {
    for (const entry of readdirSync(this.#failpoints)) {
      rmSync(path.join(this.#failpoints, entry), { recursive: true, force: true });
    }
  }

  /** Waits until it fires; null when the run ended without. */
  async fired(name: string, run: StagedRun): Promise<FiredFailpoint | null> {
    const file = path.join(this.#failpoints, `${name}.fired.1`);
    let hasEnded = false;
    void run.handle.result().then(
      () => (hasEnded = true),
      () => (hasEnded = true),
    );
    while (!existsSync(file)) {
      if (hasEnded) return null;
      await delay(20);
    }
    await delay(20); // it is written at once, but not in one piece
    return JSON.parse(readFileSync(file, 'utf8')) as FiredFailpoint;
  }

  release(name: string): void {
    writeFileSync(path.join(this.#failpoints, `${name}.released`), '');
  }

  pid(role: string): number {
    const pid = this.stack.pids()[role];
    if (pid == null) throw new Error(`There is no ${role} to be killed: ${JSON.stringify(this.stack.pids())}`);
    return pid;
  }

  async close(): Promise<void> {
    await this.#connection.close();
    await this.stack.stop();
    await rm(this.folder, { recursive: true, force: true });
  }
}

export function readSampled(log: string): SampledLine[] {
  if (!existsSync(log)) return [];
  return readFileSync(log, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as SampledLine);
}

export type { RunSummary };
