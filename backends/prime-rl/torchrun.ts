import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { open } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { pythonEnvironment } from './environment.ts';
import { requireEnded } from './place.ts';
import { folderVariable } from './processes.mjs';

const guardProgram = fileURLToPath(new URL('./processes.mjs', import.meta.url));
/** torchrun ends with some 3,000 characters of its own; what a rank said stands before them. */
const tailBytes = 6_000;

/** What all nodes of one start are told alike; paths are the same on each. */
export const Launch = z.looseObject({
  /** Folder of the start. */
  folder: z.string(),
  /** Ranks on each node. */
  ranks: z.int().min(1),
  gpuIds: z.array(z.int().min(0)).readonly().optional(),
  /** Of new adapters. */
  seed: z.int(),
  /** Folder of the batches, and the trainer’s own number of the first one that it reads. */
  rollouts: z.string(),
  firstStep: z.int(),
  /** Where the ranks of several nodes find one another, and which node this is. */
  nodes: z.object({ count: z.int(), index: z.int(), address: z.string(), port: z.int() }).optional(),
});
export type Launch = z.infer<typeof Launch>;

export function settingsFileOf(folder: string): string {
  return path.join(folder, 'trainer.toml');
}

/** torchrun with the ranks of one node, and a guard that ends them when this process is gone. */
export class Torchrun {
  readonly #cwd: string;
  readonly #guard: ChildProcess;

  /** `cwd`: a folder that nothing else works in. `onEnd` hears once how it has ended, and with 0 or not. */
  constructor(
    python: string,
    launch: Launch,
    {
      cwd,
      log,
      networkInterface,
      onEnd,
    }: {
      readonly cwd: string;
      readonly log: string;
      readonly networkInterface: string | undefined;
      readonly onEnd: (how: string, isDone: boolean) => void;
    },
  ) {
    const { folder, gpuIds, rollouts, firstStep, seed } = launch;
    this.#cwd = cwd;
    this.#guard = startGuard(cwd);
    const output = openSync(log, 'a', 0o600);
    const run = ['-m', 'torch.distributed.run', ...placeOf(launch), `--nproc-per-node=${launch.ranks}`];
    const child = spawn(python, [...run, '-m', 'prime_rl.trainer.rl.train', '@', settingsFileOf(folder)], {
      cwd,
      detached: true, // a group of its own: a Ctrl-C is for this process to answer
      stdio: ['ignore', output, output],
      env: {
        ...(networkInterface === undefined
          ? {}
          : { GLOO_SOCKET_IFNAME: networkInterface, NCCL_SOCKET_IFNAME: networkInterface }),
        ...pythonEnvironment(),
        ...(gpuIds === undefined ? {} : { CUDA_VISIBLE_DEVICES: gpuIds.join(',') }),
        [folderVariable]: cwd,
        RATCHET_PRIME_RL_ROLLOUTS: rollouts,
        RATCHET_PRIME_RL_FIRST_STEP: String(firstStep),
        RATCHET_PRIME_RL_SEED: String(seed),
      },
    });
    closeSync(output);
    child.on('error', (error) => onEnd(`cannot be started: ${error.message}`, false));
    child.on('exit', (code, signal) =>
      onEnd(signal ? `was killed by ${signal}` : `ended with exit code ${code}`, code === 0),
    );
    child.unref();
  }

  /** Ends it with its ranks, and proves that they are gone. */
  async end(): Promise<void> {
    await requireEnded(this.#cwd);
    this.#guard.stdin?.end();
  }
}

/** The first node keeps what ranks find one another by. */
function placeOf({ nodes }: Launch): string[] {
  if (nodes === undefined) return ['--standalone'];
  const { count, index, address, port } = nodes;
  return [`--nnodes=${count}`, `--node-rank=${index}`, `--master-addr=${address}`, `--master-port=${port}`];
}

/** The last words in a log, for messages. */
export async function tailOf(log: string): Promise<string> {
  const handle = await open(log, 'r').catch(() => null);
  if (handle === null) return '';
  try {
    const { size } = await handle.stat();
    const buffer = Buffer.alloc(Math.min(size, tailBytes));
    await handle.read(buffer, 0, buffer.length, size - buffer.length);
    const said = buffer.toString('utf8').trim();
    return said === '' ? '' : ` It said last:\n${said}`;
  } finally {
    await handle.close();
  }
}

/** Ends the processes of a folder when this process is gone, however it ends. */
function startGuard(folder: string): ChildProcess {
  const guard = spawn(process.execPath, [guardProgram, folder], {
    cwd: path.parse(folder).root,
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
    env: { PATH: process.env['PATH'] ?? '' },
  });
  guard.on('error', () => undefined); // the next start looks for what is left
  guard.stdin.on('error', () => undefined);
  guard.unref();
  (guard.stdin as unknown as { unref?: () => void }).unref?.();
  return guard;
}
