import { Worker } from 'node:worker_threads';

/** An object that a thread puts into an opened folder. */
export interface Put {
  /** Path of the opened folder, valid in this process. */
  readonly at: string;
  /** File descriptor of the folder. */
  readonly folder: number;
  readonly name: string;
  /** An object that is there already stays. Else it is replaced. */
  readonly ifAbsent: boolean;
  /** Bytes, or the file descriptor of a file to copy. */
  readonly content: Uint8Array | number;
}

export interface PutDone {
  /** False: another one was there. */
  readonly isStored: boolean;
  readonly bytes: number;
  /** Empty for a put `ifAbsent`. */
  readonly sha256: string;
}

/** What a thread answers. */
export type PutEnd =
  | PutDone
  | { readonly failure: Pick<NodeJS.ErrnoException, 'message' | 'code' | 'errno' | 'syscall'> };

interface Job {
  readonly put: Put;
  readonly done: (end: PutEnd) => void;
  readonly failed: (error: unknown) => void;
}

interface Thread {
  readonly worker: Worker;
  isUp: boolean;
  job: Job | null;
}

/** Puts that reach the disk at the same time. */
const threadsMax = 4;

/** The threads of this process that put objects. One is added while all are busy; they do not keep the process alive. */
class PutThreads {
  readonly #threads: Thread[] = [];
  readonly #waiting: Job[] = [];

  /** Rejects as Node's functions for files do. */
  async put(put: Put): Promise<PutDone> {
    const end = await new Promise<PutEnd>((done, failed) => {
      this.#waiting.push({ put, done, failed });
      this.#next();
    });
    if ('failure' in end) throw Object.assign(new Error(end.failure.message), end.failure);
    return end;
  }

  #next(): void {
    for (;;) {
      const free = this.#threads.find(({ isUp, job }) => isUp && job === null);
      const job = free && this.#waiting.shift();
      if (!job) break;
      this.#begin(free, job);
    }
    const isStarting = this.#threads.some(({ isUp }) => !isUp);
    if (this.#waiting.length > 0 && !isStarting && this.#threads.length < threadsMax) this.#start();
  }

  #begin(thread: Thread, job: Job): void {
    const { content } = job.put;
    // A view would take all of its buffer along.
    const own = typeof content === 'number' ? content : Uint8Array.prototype.slice.call(content);
    thread.job = job;
    thread.worker.ref();
    thread.worker.postMessage({ ...job.put, content: own }, typeof own === 'number' ? [] : [own.buffer]);
  }

  #start(): void {
    // Other options of this process (a debugger, a profiler, a loader) must not pass to the thread.
    const worker = new Worker(new URL('./put-thread.mjs', import.meta.url), { execArgv: [], env: {} });
    const thread: Thread = { worker, isUp: false, job: null };
    this.#threads.push(thread);
    worker.once('online', () => {
      thread.isUp = true;
      if (this.#waiting.length === 0) worker.unref();
      this.#next();
    });
    worker.on('message', (end: PutEnd) => {
      thread.job!.done(end);
      thread.job = null;
      worker.unref();
      this.#next();
    });
    worker.once('error', (error) => this.#lose(thread, error));
    worker.once('exit', (code) =>
      this.#lose(thread, new Error(`The thread that writes to the store exited with code ${code}.`)),
    );
  }

  #lose(thread: Thread, error: unknown): void {
    const at = this.#threads.indexOf(thread);
    if (at < 0) return;
    this.#threads.splice(at, 1);
    // One that never came up would be started again and again.
    const lost = thread.isUp ? [thread.job] : this.#waiting.splice(0);
    for (const job of lost) job?.failed(error);
    this.#next();
  }
}

export const putThreads = new PutThreads();
