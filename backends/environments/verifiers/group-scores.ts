import { RatchetError } from '../../../core/errors.ts';
import type { RolloutPlace } from '../types.ts';

/** Result of an excluded rollout. */
interface Unscored {
  readonly error: string;
}

/** A finished rollout that waits for the others of its group. */
interface Waiting<Live, Score> {
  readonly live: Live;
  readonly resolve: (score: Score | Unscored) => void;
  readonly reject: (reason: Error) => void;
}

interface Group<Live, Score> {
  readonly waiting: Map<number, Waiting<Live, Score>>;
  /** Indices of rollouts that will not come. */
  readonly gone: Set<number>;
}

/**
 * Collects the rollouts of a group whose states are in one child: after the last one, all are scored at once. Scoring
 * apart from the group would give another reward.
 */
export class GroupScores<Live, Score extends object> {
  readonly #groups = new Map<string, Group<Live, Score>>();
  readonly #score: (members: readonly Live[]) => Promise<readonly Score[]>;

  /** `score` returns one score for each, in order; its error is thrown for all of them. */
  constructor(score: (members: readonly Live[]) => Promise<readonly Score[]>) {
    this.#score = score;
  }

  /** The score of this rollout, once its group is complete. Rejects when the place's signals rule that out. */
  wait(place: RolloutPlace, live: Live): Promise<Score | Unscored> {
    const group = this.#groupOf(place);
    return new Promise<Score | Unscored>((resolve, reject) => {
      const stop = (): void => {
        const reason: unknown = place.signal.aborted ? place.signal.reason : brokenOff();
        if (group.waiting.get(place.index)?.live === live) group.waiting.delete(place.index);
        this.#forgetEmpty(place.group, group);
        settled();
        reject(reason);
      };
      const signals = [place.signal, ...(place.brokenOff ? [place.brokenOff] : [])];
      const settled = (): void => signals.forEach((signal) => signal.removeEventListener('abort', stop));
      for (const signal of signals) signal.addEventListener('abort', stop, { once: true });
      group.waiting.set(place.index, {
        live,
        resolve: (score) => (settled(), resolve(score)),
        reject: (reason) => (settled(), reject(reason)),
      });
      if (signals.some(({ aborted }) => aborted)) stop();
      else void this.#scoreComplete(place, group);
    });
  }

  /** Announces that the rollout of this place will not come: the others are scored without it. */
  withdraw(place: RolloutPlace): void {
    const group = this.#groupOf(place);
    group.gone.add(place.index);
    void this.#scoreComplete(place, group);
  }

  async #scoreComplete({ group: name, size }: RolloutPlace, group: Group<Live, Score>): Promise<void> {
    if (group.waiting.size + group.gone.size < size) return;
    this.#groups.delete(name); // rollouts repeated after a failure wait anew
    const members = [...group.waiting].toSorted(([a], [b]) => a - b).map(([, waiting]) => waiting);
    if (members.length === 0) return;
    try {
      const scores = await this.#score(members.map(({ live }) => live));
      members.forEach(({ resolve }, i) =>
        resolve(scores[i] ?? { error: 'The environment gave no judgement of this rollout.' }),
      );
    } catch (error) {
      if (group.gone.size > 0) this.#groups.set(name, { waiting: new Map(), gone: group.gone });
      for (const { reject } of members) reject(error as Error);
    }
  }

  #groupOf({ group: name }: RolloutPlace): Group<Live, Score> {
    const known = this.#groups.get(name) ?? { waiting: new Map(), gone: new Set() };
    this.#groups.set(name, known);
    return known;
  }

  #forgetEmpty(name: string, group: Group<Live, Score>): void {
    if (group.waiting.size === 0 && this.#groups.get(name) === group) this.#groups.delete(name);
  }
}

/** This rollout is sound and will be repeated with its group. */
function brokenOff(): RatchetError {
  return new RatchetError('ServerUnavailable', 'Others of its group could not be played, and its reward needs them.');
}
