/**
 * Installations of prime-rl for engine tests. RATCHET_PRIME_RL names them, separated by commas: NAME=CHECKOUT:PYTHON. The tests know `head`, the commit
 * 559b447 of August 2026, and `v0.4.0`; CHECKOUT is its sources and PYTHON a Python 3.12 with what its trainer imports:
 *
 *     head     torch 2.11, transformers 5.6.2, msgspec, prime-pydantic-config, torchtitan at 23e4dfc
 *     v0.4.0   torch 2.11, transformers 4.57.6, msgspec, torchtitan at a1fdd7e, liger-kernel, pydantic-settings, tomli, tomli-w
 *     both     numpy, beartype, jaxtyping, loguru, datasets, pyzmq, tenacity, aiolimiter, orjson, rich, setproctitle, uvloop, wandb, openai, httpx,
 *              safetensors, tyro, tensorboard, torchdata, prometheus-client, nvidia-ml-py, psutil, pandas, pybase64
 *
 * Neither vLLM nor kernels for GPUs are needed: `on-cpu/` stands in for them.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

export interface PrimeRl {
  readonly name: string;
  readonly checkout: string;
  readonly python: string;
}

const here = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

/** The installation of that name, or why it is not here. */
export function primeRl(name: string): PrimeRl | { readonly missing: string } {
  const named = process.env['RATCHET_PRIME_RL'] ?? '';
  for (const word of named.split(',')) {
    const [, given, checkout, python] = /^\s*([^=]+)=([^:]+):(.+?)\s*$/.exec(word) ?? [];
    if (given !== name) continue;
    for (const place of [path.join(checkout!, 'src/prime_rl'), python!])
      if (!existsSync(place)) throw new Error(`RATCHET_PRIME_RL: ${name}: there is no ${place}`);
    return { name, checkout: checkout!, python: python! };
  }
  return { missing: `RATCHET_PRIME_RL names no ${name} (test/engines/prime-rl/installations.ts)` };
}

/** Variables by which a Python has prime-rl on a CPU. One thread makes its sums repeat. */
function variables({ checkout }: PrimeRl): Readonly<Record<string, string>> {
  const sources = ['src', 'packages/prime-rl-configs/src'].map((name) => path.join(checkout, name));
  return {
    PYTHONPATH: [here('on-cpu'), ...sources].join(path.delimiter),
    RATCHET_PRIME_RL_ON_CPU: '1',
    OMP_NUM_THREADS: '1',
  };
}

/** A program that is a Python with that prime-rl, on a CPU. */
export function writePython(folder: string, installation: PrimeRl, before: readonly string[] = []): string {
  const file = path.join(folder, `python-${installation.name}`);
  const { PYTHONPATH, ...others } = variables(installation);
  const set = [
    `PYTHONPATH="${PYTHONPATH}\${PYTHONPATH:+:$PYTHONPATH}"`,
    ...Object.entries(others).map(([k, v]) => `${k}=${v}`),
  ];
  const command = [installation.python, ...before].map((word) => `"${word}"`).join(' ');
  writeFileSync(file, `#!/bin/sh\nexport ${set.join(' ')}\nexec ${command} "$@"\n`);
  chmodSync(file, 0o755);
  return file;
}

export interface Forks {
  /** The same program, whose trainers and launchers are forks of a parent that has imported everything. */
  readonly python: string;
  close(): Promise<void>;
}

interface Pauses {
  /** The folder by which trainers can be stopped (on-cpu/pauses.py). */
  readonly pauses?: string | undefined;
}

function variablesOfParent(installation: PrimeRl, { pauses }: Pauses): Readonly<Record<string, string>> {
  return { ...variables(installation), ...(pauses === undefined ? {} : { RATCHET_PRIME_RL_PAUSES: pauses }) };
}

/** Starts the parent; that takes half a minute. */
export async function startForks(installation: PrimeRl, pauses: Pauses = {}): Promise<Forks> {
  const folder = mkdtempSync(path.join(tmpdir(), 'prime-rl-forks-'));
  const socket = path.join(folder, 'socket');
  const parent = spawn(installation.python, ['-W', 'ignore', here('forks.py'), socket], {
    env: { ...process.env, ...variablesOfParent(installation, pauses) },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  await untilReady(parent);
  return {
    python: writeForked(folder, installation, socket),
    async close() {
      const ended = once(parent, 'exit');
      parent.stdin?.end();
      await ended;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/**
 * The same on a node that sees no processes of others: the words before a command that start it there once a parent is ready, with which it ends.
 * `folder`: an empty one.
 */
export function forksBefore(
  folder: string,
  installation: PrimeRl,
  pauses: Pauses = {},
): Omit<Forks, 'close'> & { readonly words: string[] } {
  const socket = path.join(folder, 'socket');
  const set = Object.entries(variablesOfParent(installation, pauses)).map(([name, value]) => `${name}=${value}`);
  return {
    python: writeForked(folder, installation, socket),
    words: ['env', ...set, installation.python, '-W', 'ignore', here('forks.py'), socket],
  };
}

function writeForked(folder: string, installation: PrimeRl, socket: string): string {
  const own = path.join(folder, `python-${installation.name}`);
  return writePython(folder, installation, ['-IS', here('forked.py'), socket, own, installation.python]);
}

async function untilReady(parent: ChildProcess): Promise<void> {
  const ended = once(parent, 'exit').then(([code]) => {
    throw new Error(`the parent of forks ended with ${String(code)}`);
  });
  const ready = (async () => {
    for await (const line of createInterface(parent.stdout!)) if (line === 'ready') return;
  })();
  await Promise.race([ready, ended]);
  ended.catch(() => undefined);
}
