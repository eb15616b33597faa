import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { access } from 'node:fs/promises';
import { createInterface, type Interface } from 'node:readline';
import { CannotMeasure, type Bench } from './measurement.ts';
import { runProgram } from './run-project.ts';

/** The versions the peers were written for; bench/peers/README.md says more. */
const pip = 'pip install torch==2.15.0 transformers==5.23.0 peft==0.21.2 safetensors==0.8.0';

/** The Python that RATCHET_TORCH_PYTHON names, once it has shown that it has `modules`. */
export async function findTorchPython(bench: Bench, modules: readonly string[]): Promise<string> {
  const python = process.env['RATCHET_TORCH_PYTHON'];
  const advice = `Make an environment and name its interpreter:\n  ${pip}\n  RATCHET_TORCH_PYTHON=…/bin/python npm run bench -- NAME`;
  if (!python) throw new CannotMeasure(`RATCHET_TORCH_PYTHON is not set. ${advice}`);
  try {
    await access(python);
    bench.doing(`importing ${modules.join(', ')} with ${python}`);
    await runProgram(bench, python, ['-c', `import ${modules.join(', ')}`], process.cwd());
  } catch (error) {
    throw new CannotMeasure(
      `RATCHET_TORCH_PYTHON=${python} cannot import ${modules.join(', ')}: ${String(error)}\n${advice}`,
    );
  }
  return python;
}

/** A program that answers each line of JSON with one line of JSON and waits, so that two sides can take turns. */
export class PeerProcess {
  readonly #child: ChildProcessWithoutNullStreams;
  readonly #lines: Interface;
  readonly #answers: AsyncIterator<string>;
  #complaints = '';

  constructor(bench: Bench, program: string, args: readonly string[], env: NodeJS.ProcessEnv) {
    this.#child = spawn(program, args, { env, signal: bench.signal, stdio: 'pipe' });
    this.#child.on('error', (error) => (this.#complaints += String(error))); // an abort, or no such program
    this.#child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#complaints = (this.#complaints + text).slice(-complaintsMax);
    });
    this.#lines = createInterface({ input: this.#child.stdout });
    this.#answers = this.#lines[Symbol.asyncIterator]();
  }

  async ask(request: Readonly<Record<string, unknown>>): Promise<unknown> {
    this.#child.stdin.write(`${JSON.stringify(request)}\n`);
    return this.#next(`it was asked to ${JSON.stringify(request)}`);
  }

  /** A line that it writes unasked, such as that it is ready. */
  hear(): Promise<unknown> {
    return this.#next('it started');
  }

  async #next(during: string): Promise<unknown> {
    const answer = await this.#answers.next();
    if (answer.done) throw new Error(`The peer ended while ${during}:\n${this.#complaints}`);
    return JSON.parse(answer.value);
  }

  /** It ends when nothing more can be asked. */
  async close(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = new Promise((resolve) => this.#child.once('close', resolve));
    this.#child.stdin.end();
    await ended;
  }
}

const complaintsMax = 10_000;
