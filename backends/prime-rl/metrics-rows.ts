import { GrowingFile } from './growing-file.ts';

/** Steps whose figures are kept. */
const kept = 8;

/** `metrics.jsonl` of one start of the trainer. Several rows of a step together have its figures. */
export class MetricsRows {
  readonly #file: GrowingFile;
  readonly #steps = new Map<number, Record<string, number>>();

  constructor(file: string) {
    this.#file = new GrowingFile(file);
  }

  /** Figures of a step so far. One that is not finite is missing: prime-rl leaves it out. */
  async of(step: number): Promise<Readonly<Record<string, number>>> {
    for (const line of await this.#file.lines()) this.#take(line);
    return this.#steps.get(step) ?? {};
  }

  #take(line: string): void {
    const row = JSON.parse(line) as Record<string, unknown>;
    const step = row['step'];
    if (typeof step !== 'number') return;
    const numbers = Object.entries(row).filter((entry): entry is [string, number] => typeof entry[1] === 'number');
    this.#steps.set(step, { ...this.#steps.get(step), ...Object.fromEntries(numbers) });
    this.#steps.delete(step - kept);
  }
}
