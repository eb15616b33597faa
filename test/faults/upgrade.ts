/** Runs that are begun by another version of Ratchet, held in the middle of a step, and taken over by this one. */
import { eventually, until } from '../eventually.ts';
import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Client, Connection, type WorkflowHandle } from '@temporalio/client';
import type { FailpointPlan } from '../../store/failpoints.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import type { Role } from '../../workers/stack/supervisor.ts';
import { fakeRun, type RunOptions } from './fake-run.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));

/** A version of Ratchet that can be started: a copy of its sources over the packages that are installed here. */
export interface OtherVersion {
  readonly folder: string;
  /** Remarks on the version, for the test's report. */
  readonly notes: readonly string[];
}

/** This version with one more command before all others: no history of it can be replayed by the other. */
export async function otherOrder(within: string): Promise<OtherVersion> {
  const folder = await copyOfThis(within);
  await writeFile(
    path.join(folder, 'workflows/index.ts'),
    `import { sleep } from '@temporalio/workflow';
import { trainRun as ours } from './train-run.ts';

export async function trainRun(...input: Parameters<typeof ours>): ReturnType<typeof ours> {
  await sleep(1);
  return ours(...input);
}
`,
  );
  return { folder, notes: [] };
}

/** This version, in which a pause counts as long after two seconds, to save a minute. */
export async function shortPauses(within: string): Promise<OtherVersion> {
  const folder = await copyOfThis(within);
  const file = path.join(folder, 'core/limits.ts');
  const limits = await readFile(file, 'utf8');
  const shorter = limits.replace(/(longPauseMs) = [\d_]+;/, '$1 = 2_000;');
  if (shorter === limits) throw new Error(`${file}: there is no longPauseMs that could be made shorter`);
  await writeFile(file, shorter);
  return { folder, notes: [] };
}

/** This version with an activity removed from its rollout workers, like a version from before that activity. */
export async function withoutActivity(within: string, activity: string): Promise<OtherVersion> {
  const folder = await copyOfThis(within);
  const file = path.join(folder, 'activities/of-rollout-worker.ts');
  const all = await readFile(file, 'utf8');
  const fewer = all.replace(new RegExp(`^ *${activity}: .*\\n`, 'm'), '');
  if (fewer === all) throw new Error(`${file}: there is no ${activity} that could be left out`);
  await writeFile(file, fewer);
  return { folder, notes: [] };
}

const rooms =
  'activities backends cli client config core engine environments host learn load play runs store ui workers workflows'.split(
    ' ',
  );

async function copyOfThis(within: string): Promise<string> {
  const folder = await newTree(within);
  for (const name of rooms) {
    await cp(path.join(root, name), path.join(folder, name), { recursive: true });
  }
  for (const name of ['package.json', 'npm-shrinkwrap.json', 'tsconfig.json']) {
    await cp(path.join(root, name), path.join(folder, name));
  }
  return folder;
}

/**
 * The previous commit, or the one that RATCHET_UPGRADE_FROM names; a sentence where there is none. It runs over the
 * packages of this version: another set cannot be had without a network.
 */
export async function previousCommit(within: string): Promise<OtherVersion | string> {
  const wanted = process.env['RATCHET_UPGRADE_FROM'] ?? 'HEAD^';
  const git = (...args: string[]) => promisify(execFile)('git', args, { cwd: root });
  let commit: string;
  try {
    commit = (await git('rev-parse', '--verify', '--quiet', `${wanted}^{commit}`)).stdout.trim();
  } catch {
    return `${wanted} is not there: no git, or a clone without history`;
  }
  const folder = await newTree(within);
  const archive = path.join(folder, 'tree.tar');
  await git('archive', '--format=tar', `--output=${archive}`, commit);
  await promisify(execFile)('tar', ['-xf', archive, '-C', folder]);
  await rm(archive);
  // Versions before 28 November 2026 called it package-lock.json.
  const lockOf = (tree: string) =>
    readFile(path.join(tree, 'npm-shrinkwrap.json'), 'utf8').catch(() =>
      readFile(path.join(tree, 'package-lock.json'), 'utf8'),
    );
  const isSame = (await lockOf(folder)) === (await lockOf(root));
  const notes = [`from ${commit.slice(0, 7)}`, ...(isSame ? [] : ['its packages differ; it ran over those of today'])];
  return { folder, notes };
}

async function newTree(within: string): Promise<string> {
  const folder = path.join(within, 'other-version/');
  await mkdir(folder);
  await symlink(path.join(root, 'node_modules'), path.join(folder, 'node_modules'));
  return folder;
}

/** This version, in its present state. */
export const thisVersion: OtherVersion = { folder: root, notes: [] };

/** Roles of this version as those of another: the same programs, out of its folder. */
export function rolesOf(version: OtherVersion, roles: readonly Role[]): readonly Role[] {
  if (version === thisVersion) return roles;
  const packages = path.join(root, 'node_modules');
  const moved = (arg: string): string =>
    arg.startsWith(root) && !arg.startsWith(packages) ? version.folder + arg.slice(root.length) : arg;
  return roles.map((role) => ({ ...role, args: role.args.map(moved) }));
}

/** Node options for a program in TypeScript. */
function loaderOf(program: string): string[] {
  return program.endsWith('.ts') ? ['--import', import.meta.resolve('tsx')] : [];
}

/** A command of one version in a project folder, which runs until it is stopped. */
export class RunningCommand {
  readonly #child: ChildProcess;
  /** Its exit code. */
  readonly ended: Promise<number | null>;
  #said = '';
  #printed = '';

  constructor(
    version: OtherVersion,
    args: readonly string[],
    project: {
      readonly folder: string;
      readonly environment: NodeJS.ProcessEnv;
      /** Program of that version, in place of `ratchet`. */
      readonly program?: string;
    },
  ) {
    const program = path.join(version.folder, project.program ?? 'cli/ratchet.mjs');
    const child = spawn(process.execPath, [...loaderOf(program), program, ...args], {
      cwd: project.folder,
      env: project.environment,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#child = child;
    this.ended = new Promise((resolve) => child.once('exit', resolve));
    const hear = (chunk: Buffer): void => void (this.#said += chunk.toString('utf8'));
    child.stdout.on('data', hear);
    child.stdout.on('data', (chunk: Buffer) => void (this.#printed += chunk.toString('utf8')));
    child.stderr.on('data', hear);
  }

  get said(): string {
    return this.#said;
  }

  /** Its output on stdout. */
  get printed(): string {
    return this.#printed;
  }

  /** The first group of a pattern, once it is said. */
  async says(pattern: RegExp): Promise<string> {
    for (;;) {
      const found = pattern.exec(this.#said);
      if (found) return found[1] ?? found[0];
      if (!this.isRunning) throw new Error(`It ended without ${pattern}: ${this.#said}`);
      await delay(20);
    }
  }

  /** Whether it runs. */
  get isRunning(): boolean {
    return this.#child.exitCode === null && this.#child.signalCode === null;
  }

  /** Ends it as a machine that is lost does. */
  async kill(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.ended;
  }

  /** Stops it like Ctrl-C. */
  async stop(): Promise<void> {
    this.#child.kill('SIGTERM');
    await this.ended;
  }
}

/** A project folder whose stack is started by one version after the other. */
export class UpgradeStage {
  readonly folder: string;
  readonly #environment: NodeJS.ProcessEnv;
  #stack: RunningCommand | null = null;
  #connection: Connection | null = null;

  private constructor(folder: string) {
    this.folder = folder;
    this.#environment = {
      ...process.env,
      // The fakes' code is this version's, whichever runs.
      RATCHET_CODE_ROOTS: root,
      RATCHET_FAILPOINTS: path.join(folder, 'failpoints'),
    };
  }

  static async open(): Promise<UpgradeStage> {
    const stage = new UpgradeStage(await mkdtemp(path.join(os.tmpdir(), 'ratchet-upgrade-')));
    await mkdir(path.join(stage.folder, 'failpoints'));
    return stage;
  }

  /** `ratchet dev` of this version, in place of the one that runs. Failpoints are gone. */
  async startStack(version: OtherVersion): Promise<void> {
    await this.#stopStack();
    await rm(path.join(this.folder, 'failpoints'), { recursive: true });
    await mkdir(path.join(this.folder, 'failpoints'));
    this.#stack = this.command(version, 'dev', '--weights', this.folder);
    await this.connectTo(await this.#stack.says(/ready\. Temporal ([^\s,]+)/));
  }

  command(version: OtherVersion, ...args: readonly string[]): RunningCommand {
    return new RunningCommand(version, args, { folder: this.folder, environment: this.#environment });
  }

  async connectTo(address: string): Promise<void> {
    this.#connection = await Connection.connect({ address });
  }

  /** Output of the running stack. */
  get said(): string {
    return this.#stack?.said ?? '';
  }

  get client(): Client {
    if (!this.#connection) throw new Error('No stack runs yet.');
    return new Client({ connection: this.#connection, identity: `upgrade test ${process.pid}` });
  }

  async writeConfig(name: string, options: Omit<RunOptions, 'log'>): Promise<void> {
    const log = path.join(this.folder, `${name}.sampled`);
    await writeFile(path.join(this.folder, `${name}.toml`), fakeRun({ ...options, log }));
  }

  async start(name: string, options: Omit<RunOptions, 'log'>): Promise<void> {
    await this.writeConfig(name, options);
    await this.client.workflow.start('trainRun', {
      workflowId: name,
      taskQueue: 'ratchet',
      args: [`${name}.toml`],
    });
  }

  /** The run's newest execution, over the server that runs now. */
  handle(name: string): WorkflowHandle<typeof trainRun> {
    return this.client.workflow.getHandle<typeof trainRun>(name);
  }

  async plan(name: string, plan: FailpointPlan): Promise<void> {
    await writeFile(path.join(this.folder, 'failpoints', `${name}.json`), JSON.stringify(plan));
  }

  async fired(name: string): Promise<void> {
    await until(`the gap ${name}`, () => existsSync(path.join(this.folder, 'failpoints', `${name}.fired.1`)));
  }

  /** Waits until the run's own account of itself is as wanted. */
  async status(name: string, isWanted: (status: RunStatus) => boolean): Promise<RunStatus> {
    const seen = await eventually(
      `the wanted status of ${name}`,
      () =>
        this.handle(name)
          .query<RunStatus>('status')
          .catch(() => null), // no server answers yet
      (status) => status !== null && isWanted(status),
      { everyMs: 100 },
    );
    return seen!;
  }

  /** The newest process of a role. */
  pid(role: string): number {
    const log = readFileSync(path.join(this.folder, '.ratchet/logs', `${role}.log`), 'utf8');
    return Number([...log.matchAll(/starts as process (\d+)/g)].at(-1)![1]);
  }

  async close(): Promise<void> {
    await this.#stopStack();
    await rm(this.folder, { recursive: true, force: true });
  }

  async #stopStack(): Promise<void> {
    await this.#connection?.close();
    await this.#stack?.stop();
    [this.#connection, this.#stack] = [null, null];
  }
}
