import { randomBytes } from 'node:crypto';
import { RatchetError } from '../../core/errors.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';

/** The one lease that a GPU process gives: a run has it, or it is free. */
export class ProcessLease {
  /** Unique to this process; its queues are named after it. */
  readonly holder: string;
  #taken: {
    readonly owner: string;
    readonly run: string;
    readonly workflowId: string;
    readonly epoch: number;
    readonly ousted: AbortController;
  } | null = null;
  #waiting: (() => void)[] = [];
  #isClosed = false;

  constructor(host: string) {
    // Characters that are not safe in a queue name are replaced.
    const name = host.replaceAll(/[^A-Za-z0-9.-]/g, '-').slice(0, 40);
    this.holder = `${name}-${process.pid}-${randomBytes(3).toString('hex')}`;
  }

  get isFree(): boolean {
    return this.#taken === null && !this.#isClosed;
  }

  /** The workflow of the run that has it; null: none has. */
  get heldBy(): string | null {
    return this.#taken?.workflowId ?? null;
  }

  /** The same run may take it again, which ends its hold before; another one is refused. */
  take(
    run: RunHandle,
    { workflowId, epoch }: { readonly workflowId: string; readonly epoch: number },
  ): { readonly ousted: AbortSignal; readonly leave: () => void } {
    const owner = ownerOf(run);
    if (this.#isClosed) throw new RatchetError('TrainerBusy', `This GPU worker (${this.holder}) ends.`);
    if (this.#taken && this.#taken.owner !== owner) {
      throw new RatchetError(
        'TrainerBusy',
        `This GPU worker (${this.holder}) is busy with the run ${this.#taken.run}.`,
      );
    }
    this.#taken?.ousted.abort();
    const taken = { owner, run: run.name, workflowId, epoch, ousted: new AbortController() };
    this.#taken = taken;
    return {
      ousted: taken.ousted.signal,
      leave: () => {
        if (this.#taken === taken) this.#taken = null;
        this.tellChange();
      },
    };
  }

  /** Refuses new runs; the present holder keeps the process until `clear`. */
  close(): void {
    this.#isClosed = true;
  }

  clear(): void {
    this.#taken?.ousted.abort();
  }

  /** Ends the hold on a run, with the reason, because this process cannot continue it. Another process may then take the run. */
  lose(owner: string, why: Error): void {
    if (this.#taken?.owner === owner) this.#taken.ousted.abort(why);
  }

  /** Ends the hold that a run has under this epoch; any other stays. */
  giveBack(run: RunHandle, epoch: number): void {
    if (this.#taken?.owner === ownerOf(run) && this.#taken.epoch === epoch) this.#taken.ousted.abort();
  }

  tellChange(): void {
    for (const look of this.#waiting.splice(0)) look();
  }

  /** Resolves when a run has left it, so that it may be taken again. */
  change(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true });
      this.#waiting.push(resolve);
    });
  }
}

function ownerOf({ store, name }: RunHandle): string {
  return `${store}${name}`;
}
