import { currentLineage, type FoundCommit, readHead, readCommit, readLinked, type RunPlace } from '../run-access.ts';

/** A commit that was taken away, by a repair, is missed within this. */
const listAgainMs = 60_000;

/** The newest commit of a run, for repeated looks: lists the commits once, then only asks for the next one. */
export class FollowedHead {
  readonly #place: RunPlace;
  #lineage = '';
  #head: FoundCommit | null = null;
  #listedAt = 0;

  constructor(place: RunPlace) {
    this.#place = place;
  }

  async now(): Promise<{ readonly lineage: string; readonly head: FoundCommit | null }> {
    const lineage = await currentLineage(this.#place);
    const place = { ...this.#place, lineage };
    const isOld = performance.now() - this.#listedAt > listAgainMs;
    if (lineage !== this.#lineage || this.#head === null || isOld) {
      this.#listedAt = performance.now();
      [this.#lineage, this.#head] = [lineage, await readHead(place)];
      return { lineage, head: this.#head };
    }
    for (;;) {
      const next = this.#head.commit.step + 1;
      if ((await readCommit(place, next)) === null) return { lineage, head: this.#head };
      this.#head = await readLinked(place, next);
    }
  }
}
