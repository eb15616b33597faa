import type { StoreMissed } from '../../core/rl/run-state.ts';
import { onSignal } from './listen.ts';
import { storeMissedSignal, type WorkerAway } from './messages.ts';

/** Workers repeat the signal every few minutes. A worker without a signal for longer has ended. */
const heardMs = 900_000;

/** Workers that report that they cannot see the run's store, or read its contents: they get no tasks until they can. */
export class StoresMissed {
  readonly #away = new Map<string, { readonly since: number; heard: number; why: string }>();
  readonly #emit: (line: string, isBack: boolean) => void;

  constructor(emit: (line: string, isBack: boolean) => void, ignored: (problem: string) => void) {
    this.#emit = emit;
    onSignal(storeMissedSignal, (told: StoreMissed) => this.#hear(told), ignored);
  }

  read(): readonly WorkerAway[] {
    return [...this.#away]
      .filter(([, { heard }]) => !isOld(heard))
      .map(([worker, { since, why }]) => ({ worker, since: new Date(since).toISOString(), why }));
  }

  #hear({ worker, why, isOlder }: StoreMissed): void {
    this.#forget();
    const known = this.#away.get(worker);
    if (why === null) {
      if (this.#away.delete(worker)) this.#emit(`the ${worker} ${isOlder ? 'goes on' : 'sees the store again'}`, true);
    } else if (known) {
      Object.assign(known, { heard: Date.now(), why });
    } else {
      this.#away.set(worker, { since: Date.now(), heard: Date.now(), why });
      this.#emit(`passed over until it ${isOlder ? 'is of the newer version' : 'sees the store'}: ${why}`, false);
    }
  }

  #forget(): void {
    for (const [worker, { heard }] of this.#away) if (isOld(heard)) this.#away.delete(worker);
  }
}

function isOld(heard: number): boolean {
  return Date.now() - heard > heardMs;
}
