import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { environmentForAll, selectEnvironment, trustedRootsVariable } from '../../core/child-environment.ts';
import { RatchetError } from '../../core/errors.ts';
import type { MaskedSample, Rows, RowSource, TrainSample } from '../../core/rl/learning/batch.ts';
import { rowsAtOnceTokensMax } from '../../core/limits.ts';
import {
  fromWire,
  type OpenArguments,
  type RemoteRows,
  type RowsAnswer,
  type RowsRequest,
  toWire,
  type TrainerCall,
  type TrainerReply,
} from './trainer-protocol.ts';
import type { OptimizerOptions } from './optimizer.ts';
import type {
  ExportOptions,
  LogprobOptions,
  SftMetrics,
  StepResult,
  SupervisedOptions,
  SupervisedSample,
  Optimizer,
  TrainResult,
  TrainOptions,
} from './types.ts';

interface Pending {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: Error) => void;
}

/**
 * A trainer in a process of its own: a forward pass blocks that process's event loop, not the owner's. When the process
 * dies, every call, pending or later, fails with EngineDied. Nothing restarts by itself, for only the owner knows the
 * checkpoint to resume from.
 */
export class TrainerProcess implements Optimizer {
  readonly #child: ChildProcess;
  readonly #tokensSentMax: number;
  readonly #pending = new Map<number, Pending>();
  /** Rows of pending calls that were not sent to the process. */
  readonly #rows = new Map<number, RowSource<MaskedSample>>();
  #nextId = 0;
  #death: RatchetError | null = null;

  private constructor(child: ChildProcess, tokensSentMax: number) {
    this.#child = child;
    this.#tokensSentMax = tokensSentMax;
    child.on('message', (message: TrainerReply | RowsRequest) => {
      if ('ask' in message) void this.#give(message);
      else this.#settle(message);
    });
    child.on('exit', (code, signal) =>
      this.#die(signal ? `it was killed by ${signal}` : `it exited with code ${code}`),
    );
    child.on('error', (error) => this.#die(error.message));
  }

  /** Rows with more than `tokensSentMax` tokens stay with the owner until they are requested. */
  static async open(
    model: string,
    options: OptimizerOptions,
    { tokensSentMax = rowsAtOnceTokensMax } = {},
  ): Promise<TrainerProcess> {
    const entry = fileURLToPath(import.meta.resolve('./trainer-main.ts'));
    const child = fork(entry, [], {
      serialization: 'advanced',
      execArgv: loaderArguments(process.execArgv, entry),
      // It may run a loss of the user's, and needs no credential of ours.
      env: selectEnvironment([...environmentForAll, trustedRootsVariable], process.env),
    });
    const trainer = new TrainerProcess(child, tokensSentMax);
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

  async sftStep(rows: Rows<SupervisedSample>, options: SupervisedOptions): Promise<StepResult<SftMetrics>> {
    return (await this.#callWith(rows, 'sftStep', options)) as StepResult<SftMetrics>;
  }

  async trainStep(rows: Rows<TrainSample>, options: TrainOptions): Promise<TrainResult> {
    return (await this.#callWith(rows, 'trainStep', options)) as TrainResult;
  }

  async forwardLogprobs(rows: Rows<MaskedSample>, options: LogprobOptions): Promise<Float32Array[]> {
    return (await this.#callWith(rows, 'forwardLogprobs', options)) as Float32Array[];
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

  /** Ends the process by closing its channel; resolves when it has exited. */
  async close(): Promise<void> {
    if (this.#death) return;
    const exit = once(this.#child, 'exit');
    if (this.#child.connected) this.#child.disconnect();
    await exit;
  }

  /** Few rows are sent with the call; of many, the process requests those that it needs. */
  async #callWith(rows: Rows<MaskedSample>, method: TrainerCall['method'], options: object): Promise<unknown> {
    if (!('read' in rows)) return this.#call(method, rows, options);
    const tokens = rows.rows.reduce((sum, row) => sum + row.tokens, 0);
    if (tokens <= this.#tokensSentMax) return this.#call(method, await rows.read([...rows.rows.keys()]), options);
    const rowsOfCall = this.#nextId++;
    this.#rows.set(rowsOfCall, rows);
    try {
      return await this.#call(method, { rowsOfCall, rows: rows.rows } satisfies RemoteRows, options);
    } finally {
      this.#rows.delete(rowsOfCall);
    }
  }

  #call(method: TrainerCall['method'], ...args: readonly unknown[]): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (this.#death) return reject(this.#death);
      const call: TrainerCall = { id: this.#nextId++, method, args };
      this.#pending.set(call.id, { resolve, reject });
      this.#send(call);
    });
  }

  async #give({ ask, rowsOfCall, places }: RowsRequest): Promise<void> {
    const read = this.#rows.get(rowsOfCall)?.read(places) ?? Promise.reject(new Error('its call is over'));
    const answer = await read.then(
      (samples): RowsAnswer => ({ ask, samples }),
      (error: unknown): RowsAnswer => ({ ask, error: toWire(error) }),
    );
    if (!this.#death) this.#send(answer);
  }

  #send(message: TrainerCall | RowsAnswer): void {
    this.#child.send(message, (error) => {
      if (error) this.#die(error.message);
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

/**
 * Node arguments with which the child can load TypeScript, even if its owner runs as a bundle; without the owner's test
 * runner or debugger.
 */
function loaderArguments(execArgv: readonly string[], entry: string): string[] {
  const own = execArgv.filter((argument) => !/^--(test|inspect|eval|print|watch)/.test(argument));
  const hasLoader = own.some((argument) => argument.includes('tsx'));
  return hasLoader || !entry.endsWith('.ts') ? own : [...own, '--import', import.meta.resolve('tsx')];
}
