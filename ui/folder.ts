import { fileURLToPath } from 'node:url';
import { standingsIn } from '../runs/standing.ts';
import { Evaluations } from './evaluations.ts';

/** What lies in a folder of runs: the runs, and evaluations beside them; or in a folder of evaluations alone. */
export class Folder {
  readonly #store: string;
  readonly #evaluations: Evaluations | null;

  /** `store`: its absolute URI. What lies in a bucket is not listed. */
  constructor(store: string) {
    this.#store = store;
    this.#evaluations = store.startsWith('file:') ? Evaluations.inFolder(fileURLToPath(store)) : null;
  }

  /** null: nothing of that name. */
  async answer(name: string, asked: URLSearchParams): Promise<unknown> {
    switch (name) {
      case 'runs':
        return standingsIn(this.#store);
      case 'evals':
        return (await this.#evaluations?.list()) ?? { evaluations: [], incomplete: [] };
      case 'eval':
        return this.#evaluations?.rows(asked.get('id') ?? '') ?? null;
      default:
        return null;
    }
  }
}
