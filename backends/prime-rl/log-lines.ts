import { readFile } from 'node:fs/promises';
import { stripVTControlCharacters } from 'node:util';

/** Figures of steps in the log of a trainer that writes them nowhere else: `SUCCESS Step 3 | Time: 0.45s | Loss: 0.0155 | …`, steps from 0. */
export class LogLines {
  readonly #file: string;

  constructor(file: string) {
    this.#file = file;
  }

  /** What was logged so far, without colours. */
  static async read(file: string): Promise<string> {
    return stripVTControlCharacters(await readFile(file, 'utf8').catch(() => ''));
  }

  async of(step: number): Promise<Readonly<Record<string, number>>> {
    const lines = (await LogLines.read(this.#file)).split('\n');
    const line = lines.findLast((each) => each.includes(`SUCCESS Step ${step - 1} |`) && each.includes('| LR:'));
    if (line === undefined) return {};
    const found = [...line.matchAll(/\| ([\w. ]+): ([-+\w.]+)/g)].flatMap(([, name, value]) => {
      const ours = names[name!];
      const number = Number.parseFloat(value!);
      return ours === undefined || !Number.isFinite(number) ? [] : [[ours, number] as const];
    });
    return Object.fromEntries(found);
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
