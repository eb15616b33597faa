import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import type { Socket } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { environmentForAll, environmentForVerifiers, selectEnvironment } from '../../core/child-environment.ts';
import { type ErrorCode, RatchetError } from '../../core/errors.ts';
import { watchChild } from '../../host/child-progress.ts';
import { LineReader } from '../environments/verifiers/line-reader.ts';
import { codeNamed, type Fatal, lineBytesMax, readMessage } from './protocol.ts';

/** `python -m ratchet_torch` finds itself here. */
const pythonFolder = fileURLToPath(new URL('../../python/', import.meta.url)).replace(/\/$/, '');

/** Variables by which PyTorch and its libraries know where and how to compute. */
const environmentForTorch = ['TORCH*', 'PYTORCH_*', 'NCCL_*', 'GLOO_*', 'TRITON_*', 'MKL_*', 'KMP_*'];

const tailCharsMax = 2_000;

const hosts = new Map<string, TorchHost>();

/** The host of a Python in this process, started when it is first wanted, and again when it has died. */
export function hostOf(python: string): TorchHost {
  const found = hosts.get(python);
  if (found?.isAlive) return found;
  const host = new TorchHost(python);
  hosts.set(python, host);
  return host;
}

/**
 * A Python process that has imported PyTorch, and forks groups of ranks: importing takes many seconds, a group without it one. It does not keep
 * this process from ending, and ends with it, however that ends.
 */
export class TorchHost {
  /** Resolves with the cause of its death. */
  readonly ended: Promise<RatchetError>;
  readonly #process: ChildProcess;
  readonly #folder = mkdtempSync(path.join(os.tmpdir(), 'ratchet-torch-')); // only its user can enter
  readonly #listening: Promise<string>;
  #tellListening: (socketPath: string) => void = () => undefined;
  #end: (error: RatchetError) => void = () => undefined;
  #said = '';
  #isAlive = true;

  constructor(python: string, environment: Readonly<NodeJS.ProcessEnv> = process.env) {
    this.ended = new Promise((resolve) => (this.#end = resolve));
    this.#listening = new Promise((resolve) => (this.#tellListening = resolve));
    const { PYTHONPATH: inherited, ...seen } = selectEnvironment(
      [...environmentForAll, ...environmentForVerifiers, ...environmentForTorch],
      environment,
    );
    this.#process = spawn(python, ['-P', '-m', 'ratchet_torch', this.#socketPath], {
      env: {
        ...seen,
        // A process that has computed on several threads cannot fork; ranks are told their number of threads.
        OMP_NUM_THREADS: '1',
        TOKENIZERS_PARALLELISM: 'false',
        // A process that has asked CUDA for its devices cannot fork ranks that use them; NVML can be asked.
        PYTORCH_NVML_BASED_CUDA_CHECK: '1',
        PYTHONPATH: [pythonFolder, inherited].filter(Boolean).join(path.delimiter),
      },
      stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    });
    const control = this.#process.stdio[3] as Socket | undefined; // "pipe" is a pair of sockets; none where it could not be started
    const lines = new LineReader(lineBytesMax, (line) => this.#hear(line));
    control?.on('data', (chunk: Buffer) => lines.add(chunk));
    for (const stream of [this.#process.stdout, this.#process.stderr])
      stream?.on('data', (chunk: Buffer) => (this.#said = (this.#said + chunk.toString('utf8')).slice(-tailCharsMax)));
    this.#process.on('error', (error) =>
      this.#die(`${python} cannot be started: ${error.message}`, 'ServerUnavailable'),
    );
    this.#process.on('exit', (code, signal) => {
      const how = signal ? `was killed by ${signal}` : `ended with exit code ${code}`;
      // Its last words may still be in the pipes.
      setImmediate(() => this.#die(`The PyTorch trainer ${how}.${this.tail()}`));
    });
    this.#process.unref();
    for (const stream of [control, this.#process.stdout, this.#process.stderr]) (stream as Socket | undefined)?.unref();
    process.once('exit', () => rmSync(this.#folder, { recursive: true, force: true }));
  }

  get isAlive(): boolean {
    return this.#isAlive;
  }

  /** Path of the socket that starts groups, once the host listens. Throws the cause of its death. */
  async listening(): Promise<string> {
    const watch = watchChild(this.#process.pid);
    this.#process.ref(); // somebody waits for it
    try {
      const answer = await Promise.race([this.#listening, this.ended, watch.over.then((why) => ({ why }))]);
      if (typeof answer === 'string') return answer;
      if (answer instanceof RatchetError) throw answer;
      this.kill();
      throw new RatchetError('EngineDied', `The PyTorch trainer was not ready: ${answer.why}.${this.tail()}`);
    } finally {
      watch.end();
      this.#process.unref();
    }
  }

  /** The last output of the host and its ranks, for messages. */
  tail(): string {
    const tail = this.#said.trim();
    return tail === '' ? '' : ` It said last:\n${tail}`;
  }

  /** Its ranks end with it. */
  kill(): void {
    this.#process.kill('SIGKILL');
  }

  get #socketPath(): string {
    return path.join(this.#folder, 'groups');
  }

  #hear(line: string): void {
    const message = readMessage(line);
    if (!('event' in message)) return;
    if (message.event === 'listening') this.#tellListening(this.#socketPath);
    if (message.event === 'fatal') this.#die((message as Fatal).message, codeNamed((message as Fatal).code));
  }

  /** The first cause stays. */
  #die(message: string, code: ErrorCode = 'EngineDied'): void {
    this.#isAlive = false;
    this.#end(new RatchetError(code, message));
  }
}
