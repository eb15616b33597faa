import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { choosePort } from '../../../workers/stack/ports.ts';
import type { StandInOptions } from './options.ts';

/** The stand-in as a process that can be killed, and started again on the same folder and port. */
export class StandInProcess {
  readonly url: string;
  readonly #options: StandInOptions;
  #child: ChildProcess | null = null;

  private constructor(options: StandInOptions) {
    this.#options = options;
    this.url = `http://127.0.0.1:${options.port}`;
  }

  static async start(options: Omit<StandInOptions, 'port'>): Promise<StandInProcess> {
    const made = new StandInProcess({ ...options, port: await choosePort(0) });
    await made.start();
    return made;
  }

  async start(): Promise<void> {
    const main = fileURLToPath(import.meta.resolve('./main.ts'));
    const { folder, model, port, ...more } = this.#options;
    const loading = main.endsWith('.ts') ? ['--import', import.meta.resolve('tsx')] : [];
    const args = [...loading, main, folder, model, String(port), JSON.stringify(more)];
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    this.#child = child;
    const [line] = (await Promise.race([once(child.stdout, 'data'), once(child, 'exit')])) as [unknown];
    if (child.exitCode !== null) throw new Error(`The stand-in ended with ${String(line)}.`);
  }

  async kill(): Promise<void> {
    const child = this.#child;
    this.#child = null;
    if (!child || child.exitCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
}
