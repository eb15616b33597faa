import { createHash, randomUUID } from 'node:crypto';
import { RatchetError } from '../../../core/errors.ts';
import { programOutputBytesMax, programSecondsMax } from '../../../core/limits.ts';
import type { Budget } from '../../../core/settings/budgets.ts';
import { type AgentProgram, sandboxLifeS } from '../../../core/settings/programs.ts';
import type { CommandResult, LeasedSandbox, Sandbox, SandboxFile, SandboxProvider } from '../../sandboxes/types.ts';
import { ofThisProcess, type SnapshotRef } from '../../../core/settings/sandboxes.ts';
import type { RolloutSandboxes } from '../types.ts';
import { type ReservedSandbox, reserveSandbox } from './sandbox-budget.ts';
import type { Task } from './tasks.ts';

/** The sandbox of a rollout: its files, its set-up, and what is kept of that. */

/** Port of the rollout's address inside, where the kind lets us choose. */
const routePort = 4010;

export interface WantedSandbox {
  readonly program: AgentProgram;
  readonly task: Task;
  /** Of the run file: for every sandbox. */
  readonly files: readonly SandboxFile[];
  /** Unix socket of the rollout's address. */
  readonly socket: string;
  /** Seconds the program may take; null = no limit of its own. */
  readonly seconds: number | null;
  /** The rollout's budget; missing: nothing is limited. */
  readonly budget: Budget | undefined;
  readonly signal: AbortSignal;
  /** The work folder at its start; missing = its files, and what its set-up makes of them. */
  readonly snapshot?: SnapshotRef | undefined;
}

/** A sandbox with what its rollout's budget made of its time. */
export interface ProgramSandbox extends LeasedSandbox, Pick<ReservedSandbox, 'cut'> {
  /** On the clock of `performance.now()`: set-up and program come after it. */
  readonly takenAt: number;
}

/** Set-ups that failed: the message is for people. */
export class SetupFailed extends Error {
  override readonly name = 'SetupFailed';
}

/** Snapshots after set-up by what was set up, of this process. */
const setups = new Map<string, Promise<SnapshotRef | null>>();
const setupsMax = 256;

/** A sandbox with all files of its task, set up. Throws `SetupFailed`, and what the provider throws. */
export async function takeProgramSandbox(sandboxes: RolloutSandboxes, wanted: WantedSandbox): Promise<ProgramSandbox> {
  const { program } = wanted;
  if (wanted.snapshot !== undefined) return take(sandboxes, wanted, wanted.snapshot);
  const { setup, snapshot } = program.sandbox;
  if (setup === null) return take(sandboxes, wanted, null);
  const digest = snapshot ? setupDigest(wanted) : null;
  const known = digest === null ? null : await (setups.get(digest) ?? null);
  if (known !== null && digest !== null) {
    const taken = await take(sandboxes, wanted, known).catch((error: unknown) => {
      if (!isGone(error)) throw error;
      setups.delete(digest); // a sweep, or a person, has removed it: it is made anew
      return null;
    });
    if (taken !== null) return taken;
  }
  const isFirst = digest !== null && !setups.has(digest);
  const taken = await take(sandboxes, wanted, null);
  const saved = setUp(taken.sandbox, wanted, isFirst ? digest : null);
  if (isFirst) remember(digest, saved);
  try {
    await saved;
    return taken;
  } catch (error) {
    await taken.end();
    throw error;
  }
}

function isGone(error: unknown): boolean {
  return error instanceof RatchetError && error.code === 'CheckpointDamaged';
}

/** A set-up that fails is tried again by the next rollout. */
function remember(digest: string, saving: Promise<SnapshotRef | null>): void {
  const settled = saving.catch(() => {
    setups.delete(digest);
    return null;
  });
  setups.set(digest, settled);
  if (setups.size > setupsMax) setups.delete(setups.keys().next().value!);
}

/** What the work folder is after set-up. */
function setupDigest({ program: { sandbox }, task, files }: WantedSandbox): string {
  const digest = createHash('sha256').update(
    JSON.stringify([sandbox.pool.provider, imageOf(sandbox, task), sandbox.setup]),
  );
  for (const { path, bytes, mode } of [...files, ...task.files] as SandboxFile[])
    digest.update(JSON.stringify([path, mode, createHash('sha256').update(bytes).digest('hex')]));
  return digest.digest('hex');
}

function imageOf({ image }: AgentProgram['sandbox'], task: Task): string | null {
  return task.image ?? image;
}

async function take(
  sandboxes: RolloutSandboxes,
  wanted: WantedSandbox,
  snapshot: SnapshotRef | null,
): Promise<ProgramSandbox> {
  const { program, seconds, budget, signal } = wanted;
  const { setup, setupTimeoutS } = program.sandbox;
  const setupS = setup === null ? 0 : setupTimeoutS;
  const scoreS = program.score.command === null ? 0 : program.score.timeoutS;
  const lifeS = sandboxLifeS(seconds, { setupS, scoreS });
  const reserved = await reserveSandbox(budget, { program, lifeS, signal });
  const startedAt = performance.now();
  const elapsedS = (): number => (performance.now() - startedAt) / 1000;
  try {
    const taken = await sandboxes.take(requestOf(wanted, snapshot, reserved.lifeS), {
      deadlineS: reserved.lifeS,
      waitS: programSecondsMax,
      signal,
    });
    return { ...taken, cut: reserved.cut, takenAt: performance.now(), end: () => endWithin(taken, reserved, elapsedS) };
  } catch (error) {
    // One that was never answered may have been there for a while.
    const isRefused = error instanceof RatchetError && error.code === 'SandboxRefused';
    reserved.settle(isRefused || signal.aborted ? undefined : elapsedS());
    throw error;
  }
}

/** A sandbox that stood ready is paid for by the rollout from the moment on at which it got it. */
async function endWithin(
  taken: LeasedSandbox,
  reserved: ReservedSandbox,
  elapsedS: () => number,
): ReturnType<LeasedSandbox['end']> {
  let seconds = Infinity;
  try {
    const bill = await taken.end();
    seconds = bill.seconds;
    return bill;
  } finally {
    reserved.settle(Math.min(seconds, elapsedS()));
  }
}

function requestOf(
  { program: { sandbox }, task, files, socket }: WantedSandbox,
  snapshot: SnapshotRef | null,
  seconds: number,
): Parameters<RolloutSandboxes['take']>[0] {
  const { memoryMb, diskMb, cpus, network } = sandbox;
  const image = imageOf(sandbox, task);
  return {
    ...(image === null ? {} : { image }),
    ...(snapshot === null ? { files: [...files, ...task.files] } : { snapshot }),
    limits: { memoryMb, diskMb, ...(cpus === null ? {} : { cpus }), seconds },
    route: { socket, port: routePort },
    network,
  };
}

/** Runs the set-up; with a digest, keeps what it made. null = it is not kept, and each rollout is set up anew. */
async function setUp(
  sandbox: Sandbox,
  { program, signal }: WantedSandbox,
  digest: string | null,
): Promise<SnapshotRef | null> {
  const { setup, setupTimeoutS, diskMb } = program.sandbox;
  const argv = setup as [string, ...string[]];
  const result = await sandbox.exec({ argv, timeoutS: setupTimeoutS, outputBytesMax: programOutputBytesMax }, signal);
  const why = result.isTimedOut ? `did not end within ${setupTimeoutS} s` : howItFailed(result);
  if (why !== null) {
    const said = `${result.stderr.trimEnd()}\n${result.stdout.trimEnd()}`.trim().slice(-2_000);
    throw new SetupFailed(`sandbox.setup ${JSON.stringify(argv)} ${why}.\n${said}`);
  }
  if (digest === null || !sandbox.snapshot) return null;
  try {
    return await sandbox.snapshot({ key: `${ofThisProcess}setup-${digest}`, bytesMax: diskMb * 2 ** 20 });
  } catch (error) {
    if (!(error instanceof RatchetError && error.code === 'SandboxRefused')) throw error;
    process.stderr.write(
      `sandbox.setup: what it made cannot be kept, so each rollout is set up anew: ${error.message}\n`,
    );
    return null;
  }
}

/** null = it ended well. */
export function howItFailed({ code, signal }: Pick<CommandResult, 'code' | 'signal'>): string | null {
  if (code === 0) return null;
  if (code === null) return `was ended by ${signal ?? 'a signal'}`;
  return code === noProgram ? `ended with exit code ${code}: ${itsPrograms}` : `ended with exit code ${code}`;
}

const noProgram = 127;
const itsPrograms =
  'a program was not found. Its sandbox has those of its image (of kind "namespace" those of /usr of this machine), and what `sandbox.files` and `sandbox.setup` put there';

/** Sandboxes of a provider without leases: for a person who looks at an environment, and for tests. */
export function unleased(provider: SandboxProvider): RolloutSandboxes {
  return {
    snapshotPrefix: `look/${randomUUID()}/`,
    removeSnapshots: () => Promise.resolve(), // they are in memory, and few
    async take(request, { signal }) {
      const name = `ratchet-${randomUUID()}`;
      const startedAt = performance.now();
      const labels = { project: 'none', owner: 'a look at an environment' };
      const sandbox = await provider.create({ ...request, name, labels }, signal);
      return {
        sandbox,
        lease: { name, deadlineAtMs: Infinity },
        async end() {
          await provider.destroy(name);
          return { seconds: (performance.now() - startedAt) / 1000, cost: 0 };
        },
      };
    },
  };
}
