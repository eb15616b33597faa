import { fileURLToPath } from 'node:url';
import { standingsIn } from '../runs/lineages/standing.ts';
import type { FleetAnswer, ListedRun } from './answers.ts';
import { Evaluations } from './evaluations.ts';
import { type AskPools, type AskRun, type ListRunning, stateBy } from './run-source.ts';

/** Contents of a folder of runs, with the evaluations beside them; or of a folder that has evaluations only. And the fleet that they share. */
export class Folder {
  readonly #store: string;
  readonly #ask: AskRun;
  readonly #running: ListRunning;
  readonly #pools: AskPools;
  readonly #evaluations: Evaluations | null;

  /** `store`: absolute URI. Runs in a bucket are not listed. */
  constructor({
    store,
    ask,
    running,
    pools = () => Promise.resolve(null),
  }: {
    readonly store: string;
    readonly ask: AskRun;
    readonly running: ListRunning;
    readonly pools?: AskPools | undefined;
  }) {
    this.#store = store;
    this.#ask = ask;
    this.#running = running;
    this.#pools = pools;
    this.#evaluations = store.startsWith('file:') ? Evaluations.inFolder(fileURLToPath(store)) : null;
  }

  /** null: there is no answer of that name. */
  async answer(name: string, asked: URLSearchParams): Promise<unknown> {
    switch (name) {
      case 'runs':
        return this.#runs();
      case 'fleet':
        return { pools: await this.#pools() } satisfies FleetAnswer;
      case 'evals':
        return (await this.#evaluations?.list()) ?? { evaluations: [], incomplete: [] };
      case 'eval':
        return this.#evaluations?.rows(asked.get('id') ?? '') ?? null;
      default:
        return null;
    }
  }

  /** Their folders show their state; running ones are asked as well. */
  async #runs(): Promise<ListedRun[]> {
    const [stored, running] = await Promise.all([standingsIn(this.#store), this.#running()]);
    return Promise.all(
      stored.map(async (one): Promise<ListedRun> => {
        if (running === 'no answer') return { ...one, state: stateBy('no answer', one.state) };
        if (!running.includes(one.run)) return one;
        const told = await this.#ask(one.run);
        const status = told !== null && typeof told === 'object' ? told.status : null;
        const { step, maxSteps, pausedBecause } = status ?? { ...one, pausedBecause: null };
        return { ...one, step, maxSteps, note: pausedBecause ?? one.note, state: stateBy(told, one.state) };
      }),
    );
  }
}
