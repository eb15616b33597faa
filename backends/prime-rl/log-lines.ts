import { stripVTControlCharacters } from 'node:util';
import { GrowingFile } from './growing-file.ts';

/** Steps whose figures are kept. */
const kept = 8;

/** Figures of steps in the log of a trainer that writes them nowhere else: `SUCCESS Step 3 | Time: 0.45s | Loss: 0.0155 | …`, steps from 0. */
export class LogLines {
  readonly #file: GrowingFile;
  readonly #steps = new Map<number, Record<string, number>>();
  #hasBegun = false;

  constructor(file: string) {
    this.#file = new GrowingFile(file);
  }

  /** Whether it has loaded its weights. */
  async hasBegun(): Promise<boolean> {
    await this.#readOn();
    return this.#hasBegun;
  }

  async of(step: number): Promise<Readonly<Record<string, number>>> {
    await this.#readOn();
    return this.#steps.get(step) ?? {};
  }

  async #readOn(): Promise<void> {
    for (const line of await this.#file.lines()) this.#take(stripVTControlCharacters(line));
  }

  #take(line: string): void {
    if (line.includes('Starting training loop')) this.#hasBegun = true;
    const [, number, figures] = /SUCCESS Step (\d+) \|(.*\| LR: .*)/.exec(line) ?? [];
    if (number === undefined) return;
    const step = Number(number) + 1;
    const found = [...` |${figures}`.matchAll(/\| ([\w. ]+): ([-+\w.]+)/g)].flatMap(([, name, value]) => {
      const ours = names[name!];
      const figure = Number.parseFloat(value!);
      return ours === undefined || !Number.isFinite(figure) ? [] : [[ours, figure] as const];
    });
    this.#steps.set(step, Object.fromEntries(found));
    this.#steps.delete(step - kept);
  }
}

const names: Readonly<Record<string, string>> = {
  Time: 'time/step',
  Loss: 'loss/mean',
  Entropy: 'entropy/all/mean',
  'Mismatch KL': 'mismatch_kl/all/mean',
  'Grad. Norm': 'optim/grad_norm',
  LR: 'optim/lr',
};
