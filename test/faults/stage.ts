/** A stack of its own for the fault tests: real server, roles, store and workflow. */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { Client, Connection, type WorkflowHandle } from '@temporalio/client';
import type { FailpointPlan, FiredFailpoint } from '../../backends/failpoints.ts';
import { openRunStore, resolveStoreUri, type Store } from '../../backends/store/index.ts';
import { choosePort } from '../../workers/ports.ts';
import { localRoles, policyUrlAt } from '../../workers/roles.ts';
import { startStack, type Stack } from '../../workers/supervisor.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import type { RunOptions } from './fake-run.ts';
import type { SampledLine } from './fake-inference.ts';
import { kindOf, type StageKind, type StageKindName, type Surroundings } from './stage-kinds.ts';

/** A run of the stage with what it sampled. */
export interface StagedRun {
  readonly name: string;
  readonly store: Store;
  readonly handle: WorkflowHandle<typeof trainRun>;
  /** Every answer the inference gave for it, where the stage's inference notes them. */
  sampled(): SampledLine[];
}

export type StartOptions = Omit<RunOptions, 'log'> & {
  /** As `--key value` on the command line. */
  readonly overrides?: Readonly<Record<string, string>>;
};

export class FaultStage {
  readonly folder: string;
  readonly stack: Stack;
  readonly client: Client;
  readonly surroundings: Surroundings;
  readonly #kind: StageKind;
  readonly #connection: Connection;
  readonly #log: readonly string[];

  private constructor(
    place: { readonly folder: string; readonly kind: StageKind; readonly surroundings: Surroundings },
    running: { readonly stack: Stack; readonly connection: Connection; readonly log: readonly string[] },
  ) {
    this.folder = place.folder;
    this.surroundings = place.surroundings;
    this.#kind = place.kind;
    this.stack = running.stack;
    this.#connection = running.connection;
    this.client = new Client({ connection: running.connection, identity: `fault test ${process.pid}` });
    this.#log = running.log;
  }

  static async open(name: StageKindName = 'fake'): Promise<FaultStage> {
    const kind = kindOf(name);
    const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-faults-'));
    mkdirSync(failpointsIn(folder));
    const surroundings = (await kind.surround?.(folder)) ?? {};
    const log: string[] = [];
    const policyPort = await choosePort(0);
    const roles = localRoles({ weightRoots: [folder], policyPort, count: kind.count ?? {} });
    const stack = await startStack({
      projectFolder: folder,
      policyUrl: policyUrlAt(policyPort),
      roles: roles.map((role) => kind.changeRole?.(role) ?? role),
      environment: { ...process.env, ...surroundings.environment, RATCHET_FAILPOINTS: failpointsIn(folder) },
      log: (line) => void log.push(line),
    });
    const connection = await Connection.connect({ address: stack.temporalAddress });
    return new FaultStage({ folder, kind, surroundings }, { stack, connection, log });
  }

  /** What the supervisor said, for messages. */
  get said(): string {
    return this.#log.slice(-20).join('\n');
  }

  get storeUri(): string {
    return this.surroundings.storeUri ?? resolveStoreUri('outputs', this.folder);
  }

  async start(name: string, { overrides = {}, ...options }: StartOptions): Promise<StagedRun> {
    const log = path.join(this.folder, `${name}.sampled`);
    await writeFile(path.join(this.folder, `${name}.toml`), this.#kind.run({ ...options, log }));
    const handle = await this.client.workflow.start<typeof trainRun>('trainRun', {
      workflowId: name,
      taskQueue: 'ratchet',
      args: [{ config: `${name}.toml`, overrides: { ...this.surroundings.overrides, ...overrides } }],
    });
    return { name, store: openRunStore(this.storeUri, name), handle, sampled: () => readSampled(log) };
  }

  /** Forgets every failpoint before it; from now on `name` fires. */
  plan(name: string, plan: FailpointPlan): void {
    this.clear();
    writeFileSync(path.join(failpointsIn(this.folder), `${name}.json`), JSON.stringify(plan));
  }

  clear(): void {
    const folder = failpointsIn(this.folder);
    for (const entry of readdirSync(folder)) rmSync(path.join(folder, entry), { recursive: true, force: true });
  }

  /** Waits until it fires; null when the run ended without. */
  async fired(name: string, run: StagedRun): Promise<FiredFailpoint | null> {
    const file = path.join(failpointsIn(this.folder), `${name}.fired.1`);
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
    writeFileSync(path.join(failpointsIn(this.folder), `${name}.released`), '');
  }

  pid(role: string): number {
    const pid = this.stack.pids()[role];
    if (pid == null) throw new Error(`There is no ${role} to be killed: ${JSON.stringify(this.stack.pids())}`);
    return pid;
  }

  async close(): Promise<void> {
    await this.#connection.close();
    await this.stack.stop();
    await this.surroundings.close?.();
    await rm(this.folder, { recursive: true, force: true });
  }
}

function failpointsIn(folder: string): string {
  return path.join(folder, 'failpoints');
}

function readSampled(log: string): SampledLine[] {
  if (!existsSync(log)) return [];
  return readFileSync(log, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as SampledLine);
}

export type { RunSummary };
