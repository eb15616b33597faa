import { open } from 'node:fs/promises';

/** `metrics.jsonl` of one start of the trainer, read as it grows. Several rows of a step together have its figures. */
export class MetricsRows {
  readonly #file: string;
  readonly #steps = new Map<number, Record<string, number>>();
  #at = 0;
  #rest = '';

  constructor(file: string) {
    this.#file = file;
  }

  /** Figures of a step so far. One that is not finite is missing: prime-rl leaves it out. */
  async of(step: number): Promise<Readonly<Record<string, number>>> {
    await this.#readOn();
    return this.#steps.get(step) ?? {};
  }

  async #readOn(): Promise<void> {
    const handle = await open(this.#file, 'r').catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return null;
      throw error;
    });
    if (handle === null) return;
    try {
      const buffer = Buffer.allocUnsafe(256 * 1024);
      for (;;) {
        const { bytesRead } = await handle.read(buffer, 0, buffer.length, this.#at);
        if (bytesRead === 0) break;
        this.#at += bytesRead;
        // Its lines are ASCII.
        const lines = (this.#rest + buffer.toString('latin1', 0, bytesRead)).split('\n');
        this.#rest = lines.pop()!;
        for (const line of lines) this.#take(line);
      }
    } finally {
      await handle.close();
    }
  }

  #take(line: string): void {
    const row = JSON.parse(line) as Record<string, unknown>;
    const step = row['step'];
    if (typeof step !== 'number') return;
    const numbers = Object.entries(row).filter((entry): entry is [string, number] => typeof entry[1] === 'number');
    this.#steps.set(step, { ...this.#steps.get(step), ...Object.fromEntries(numbers) });
    this.#steps.delete(step - 8);
  }
}
