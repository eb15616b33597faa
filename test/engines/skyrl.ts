import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { ensureEngine, type Installed, run } from './install.ts';

/** SkyRL's Tinker server on its JAX backend. */
export function ensureSkyrl(): Promise<Installed> {
  return ensureEngine({
    name: 'skyrl-0.3.0',
    variable: 'RATCHET_SKYRL_PYTHON',
    packages: ['skyrl[tinker,jax]==0.3.0'],
    diskBytes: 9e9,
    memoryBytes: 5e9,
    mend: takeTypedDictFromExtensions,
  });
}

/** On Python 3.11 pydantic takes no other. */
async function takeTypedDictFromExtensions(python: string): Promise<void> {
  const where = 'import importlib.util as u; print(u.find_spec("skyrl").submodule_search_locations[0])';
  const { stdout } = await run(python, ['-c', where]);
  const file = path.join(stdout.trim(), 'tinker/types.py');
  const text = await readFile(file, 'utf8');
  const mended = text.replace(/^from typing import (.*)$/m, (line, names: string) => {
    const others = names
      .split(',')
      .map((name) => name.trim())
      .filter((name) => name !== 'TypedDict');
    return names.includes('TypedDict')
      ? `from typing import ${others.join(', ')}\nfrom typing_extensions import TypedDict`
      : line;
  });
  await writeFile(file, mended);
}

export interface Skyrl {
  readonly url: string;
  /** Kills all of its processes with SIGKILL. */
  kill(): void;
  /** Restarts it on its folder, which keeps checkpoints but no models. */
  start(): void;
}

export interface SkyrlOptions {
  /** Folder of its database, checkpoints and log. */
  readonly folder: string;
  readonly model: string;
  readonly port: number;
  readonly adaptersMax?: number;
}

/** uv starts it, since the server looks for its own `uv run` to start its engine with. */
export function startSkyrl(
  { python, uv }: { readonly python: string; readonly uv: string },
  { folder, model, port, adaptersMax = 8 }: SkyrlOptions,
): Skyrl {
  let child: ChildProcess;
  const backend = {
    max_lora_adapters: adaptersMax,
    max_lora_rank: 8,
    tensor_parallel_size: 1,
    train_micro_batch_size: 8,
    sample_max_num_sequences: 8,
  };
  const args = ['run', '--no-project', '--active', '-m', 'skyrl.tinker.api', '--base-model', model];
  const more = [
    '--backend',
    'jax',
    '--backend-config',
    JSON.stringify(backend),
    '--host',
    '127.0.0.1',
    '--port',
    String(port),
  ];
  const places = [
    '--checkpoints-base',
    path.join(folder, 'checkpoints'),
    '--database-url',
    `sqlite:///${path.join(folder, 'tinker.db')}`,
  ];
  const venv = path.dirname(path.dirname(python));
  const env = {
    ...process.env,
    PATH: `${path.dirname(uv)}${path.delimiter}${process.env['PATH'] ?? ''}`, // the server starts its engine by it
    VIRTUAL_ENV: venv,
    HF_HUB_OFFLINE: '1',
    TRANSFORMERS_OFFLINE: '1',
    JAX_PLATFORMS: 'cpu',
  };
  const start = (): void => {
    const log = openSync(path.join(folder, 'skyrl.log'), 'a');
    child = spawn(uv, [...args, ...more, ...places], { stdio: ['ignore', log, log], detached: true, env, cwd: folder });
    closeSync(log);
  };
  start();
  return { url: `http://127.0.0.1:${port}`, start, kill: () => void process.kill(-child.pid!, 'SIGKILL') };
}
