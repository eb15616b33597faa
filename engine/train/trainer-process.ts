import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { environmentForAll, selectEnvironment, trustedRootsVariable } from '../../core/child-environment.ts';
import { RatchetError } from '../../core/errors.ts';
import type { TrainBatch } from '../../core/rl/batch.ts';
import type { MaskedSample } from './micro-batches.ts';
import { fromWire, type OpenArguments, type TrainerCall, type TrainerReply } from './trainer-protocol.ts';
import type { OptimizerOptions } from './optimizer.ts';
import type {
  ExportOptions,
  LogprobOptions,
  SftMetrics,
  SftOptions,
  StepResult,
  Optimizer,
  TrainMetrics,
  TrainOptions,
} from './types.ts';

interface Pending {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: Error) => void;
}

/**
 * A trainer in a process of its own: a forward pass blocks that process's event loop, not the owner's. When the process
 * dies, every call, pending or later, fails with EngineDied; nothing restarts by itself, for only the owner knows which
 * checkpoint to go on from.
 */
export class TrainerProcess implements Optimizer {
  readonly #child: ChildProcess;
  readonly #pending = new Map<number, Pending>();
  #nextId = 0;
  #death: RatchetError | null = null;

  private constructor(child: ChildProcess) {
    this.#child = child;
    child.on('message', (reply: TrainerReply) => this.#settle(reply));
    child.on('exit', (code, signal) =>
      this.#die(signal ? `it was killed by ${signal}` : `it exited with code ${code}`),
    );
    child.on('error', (error) => this.#die(error.message));
  }

  static async open(model: string, options: OptimizerOptions): Promise<TrainerProcess> {
    const entry = fileURLToPath(import.meta.resolve('./trainer-main.ts'));
    const child = fork(entry, [], {
      serialization: 'advanced',
      execArgv: loaderArguments(process.execArgv, entry),
      // It may run a loss of the user's, and needs no credential of ours.
      env: selectEnvironment([...environmentForAll, trustedRootsVariable], process.env),
    });
    const trainer = new TrainerProcess(child);
    try {
      await trainer.#call('open', { model, options } satisfies OpenArguments);
    } catch (error) {
      await trainer.close();
      throw error;
    }
    return trainer;
  }

  /** Undefined when the process could not be started. */
  get pid(): number | undefined {
    return this.#child.pid;
  }

  get isAlive(): boolean {
    return this.#death === null;
  }

  async sftStep(samples: readonly MaskedSample[], options: SftOptions): Promise<StepResult<SftMetrics>> {
    return (await this.#call('sftStep', samples, options)) as StepResult<SftMetrics>;
  }

  async trainStep(batch: TrainBatch, options: TrainOptions): Promise<StepResult<TrainMetrics>> {
    return (await this.#call('trainStep', batch, options)) as StepResult<TrainMetrics>;
  }

  async forwardLogprobs(samples: readonly MaskedSample[], options: LogprobOptions): Promise<Float32Array[]> {
    return (await this.#call('forwardLogprobs', samples, options)) as Float32Array[];
  }

  async digest(): Promise<string> {
    return (await this.#call('digest')) as string;
  }

  async exportWeights(folder: string, options: ExportOptions = {}): Promise<string> {
    return (await this.#call('exportWeights', folder, options)) as string;
  }

  async loadWeights(folder: string): Promise<string> {
    return (await this.#call('loadWeights', folder)) as string;
  }

  async saveState(): Promise<Uint8Array> {
    return (await this.#call('saveState')) as Uint8Array;
  }

  async restoreState(state: Uint8Array): Promise<void> {
    await this.#call('restoreState', state);
  }

  async resetMoments(): Promise<void> {
    await this.#call('resetMoments');
  }

  /** Ends the process by closing its channel; resolves when it is gone. */
  async close(): Promise<void> {
    if (this.#death) return;
    const exit = once(this.#child, 'exit');
    if (this.#child.connected) this.#child.disconnect();
    await exit;
  }

  #call(method: TrainerCall['method'], ...args: readonly unknown[]): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (this.#death) return reject(this.#death);
      const call: TrainerCall = { id: this.#nextId++, method, args };
      this.#pending.set(call.id, { resolve, reject });
      this.#child.send(call, (error) => {
        if (error) this.#die(error.message);
      });
    });
  }

  #settle(reply: TrainerReply): void {
    const pending = this.#pending.get(reply.id);
    this.#pending.delete(reply.id);
    if ('error' in reply) pending?.reject(fromWire(reply.error));
    else pending?.resolve(reply.result);
  }

  #die(how: string): void {
    this.#death ??= new RatchetError(
      'EngineDied',
      `The trainer process ${this.#child.pid ?? ''} is gone: ${how}. Open a new one from the last checkpoint.`,
    );
    for (const pending of this.#pending.values()) pending.reject(this.#death);
    this.#pending.clear();
  }
}

/** What the child needs to load TypeScript, also where its owner is the program as built; without the owner's test runner or debugger. */
function loaderArguments(execArgv: readonly string[], entry: string): string[] {
  const own = execArgv.filter((argument) => !/^--(test|inspect|eval|print|watch)/.test(argument));
  const hasLoader = own.some((argument) => argument.includes('tsx'));
  return hasLoader || !entry.endsWith('.ts') ? own : [...own, '--import', import.meta.resolve('tsx')];
}
