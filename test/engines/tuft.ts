import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

/** The variable that names a Python with TuFT: its package asks for vLLM's CUDA build, so it is not installed here. */
const variable = 'RATCHET_TUFT_PYTHON';

/** A Python that has TuFT; or why there is none. */
export async function findTuft(): Promise<{ readonly python: string } | { readonly missing: string }> {
  const python = process.env[variable];
  if (!python) return { missing: `${variable} names no Python with TuFT` };
  try {
    await promisify(execFile)(python, ['-c', 'import tuft.server, ray, torch'], { timeout: 120_000 });
    return { python };
  } catch (error) {
    return { missing: `${python} does not import TuFT: ${String(error).slice(0, 300)}` };
  }
}

export const tuftKey = 'tml-of-a-test';
export const tuftModel = 'tiny';

interface TuftOptions {
  /** Folder of its state, checkpoints and log. */
  readonly folder: string;
  readonly model: string;
  readonly port: number;
}

/** TuFT's training half on the CPU, with its state in a file. Kill and start it as often as wanted. */
export class Tuft {
  readonly url: string;
  readonly checkpointDir: string;
  readonly #python: string;
  readonly #options: TuftOptions;
  #child: ChildProcess | null = null;

  constructor(python: string, options: TuftOptions) {
    this.url = `http://127.0.0.1:${options.port}`;
    this.checkpointDir = path.join(options.folder, 'checkpoints');
    this.#python = python;
    this.#options = options;
  }

  async start(): Promise<void> {
    const { folder, model, port } = this.#options;
    await mkdir(this.checkpointDir, { recursive: true });
    const config = path.join(folder, 'config.yaml');
    await writeFile(
      config,
      JSON.stringify({
        checkpoint_dir: this.checkpointDir,
        model_owner: 'someone',
        // alpha = rank · 8 is 32 with the rank of these tests, the alpha of every other server.
        supported_models: [
          { model_name: tuftModel, model_path: model, max_model_len: 256, capabilities: ['training'], lora_alpha_ratio: 8, micro_batch_size: 4 }, // prettier-ignore
        ],
        authorized_users: { [tuftKey]: 'someone' },
        persistence: { mode: 'FILE', file_path: path.join(folder, 'state.json') },
        telemetry: { enabled: false },
      }),
    );
    const program = fileURLToPath(new URL('../data/tinker/tuft-on-a-cpu.py', import.meta.url));
    const log = openSync(path.join(folder, 'tuft.log'), 'a');
    const env = { ...process.env, HOME: folder, RAY_TMPDIR: folder.length < 40 ? folder : '/tmp', HF_HUB_OFFLINE: '1' };
    this.#child = spawn(this.#python, [program, config, String(port)], { stdio: ['ignore', log, log], detached: true, env }); // prettier-ignore
    closeSync(log);
    for (let waitedMs = 0; !(await this.#answers()); waitedMs += 500) {
      if (this.#child.exitCode !== null || waitedMs > 180_000)
        throw new Error(`TuFT did not start: ${(await readFile(path.join(folder, 'tuft.log'), 'utf8')).slice(-2_000)}`);
      await delay(500);
    }
  }

  /** With SIGKILL: the server, and the processes of Ray below it. */
  async kill(): Promise<void> {
    const child = this.#child;
    this.#child = null;
    if (child?.pid === undefined || child.exitCode !== null) return;
    const below = await processesBelow(child.pid);
    process.kill(child.pid, 'SIGKILL');
    for (const pid of below) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // It ended with its parent.
      }
    }
  }

  async #answers(): Promise<boolean> {
    const answer = await fetch(`${this.url}/api/v1/healthz`).catch(() => null);
    return answer?.ok === true;
  }
}

async function processesBelow(parent: number): Promise<number[]> {
  const { stdout } = await promisify(execFile)('ps', ['-eo', 'pid=,ppid=']);
  const pairs = stdout.trim().split('\n').map((line) => line.trim().split(/\s+/).map(Number) as [number, number]); // prettier-ignore
  const found = new Set([parent]);
  for (let before = 0; before < found.size;) {
    before = found.size;
    for (const [pid, of] of pairs) if (found.has(of)) found.add(pid);
  }
  found.delete(parent);
  return [...found];
}
