import type { FilteredGroups } from '../../core/rl/filters/filter-groups.ts';
import { decodeRanges, type EndedRanges } from '../../core/rl/ledger.ts';
import { addLost, nothingLost, type LostWork } from '../../core/rl/lost-work.ts';
import { restrictFiltered } from '../../core/rl/rollout/played-part.ts';
import { secondsCovered } from '../../core/rl/sampling/window.ts';
import type { KeptGroups, ObjectRef, SamplingRound } from '../../core/rl/run-state.ts';
import { RoundAccount } from './round-account.ts';

/** Groups that were scored together, with the filter's result. */
interface ScoredPart {
  readonly round: SamplingRound;
  readonly scored: ObjectRef;
  readonly filtered: FilteredGroups;
  /** The scored groups that this is about. */
  readonly ordinals: readonly number[];
}

/** Times spent on them. */
interface SpentOnPart {
  /** Seconds of generation, on the worker. */
  readonly generateS: number;
  readonly scoreS: number;
  /** When its generation was over; ms since 1970. */
  readonly generatedAt: number;
}

/** Results of sampling since the last batch was taken: for the next batch, and its commit. */
export class Collected {
  readonly account = new RoundAccount();
  readonly scored: ObjectRef[] = [];
  readonly ended: EndedRanges[] = [];
  readonly #added: (readonly [ScoredPart, SpentOnPart, number])[] = [];
  readonly #issued: (readonly [first: number, last: number])[] = [];
  readonly #solved = { all: 0, none: 0 };
  readonly #generating: (readonly [fromMs: number, toMs: number])[] = [];
  readonly #spent = { scoreS: 0, adopted: 0 };
  readonly #sampled = { groups: 0, size: 0 };
  #parts: ScoredPart[] = [];
  #kept: readonly KeptGroups[] | null = null;
  #roundsWithoutBatch = 0;
  #lost = nothingLost;

  /** Ordinals, first and last of each round that was leased. */
  get issued(): readonly (readonly [first: number, last: number])[] {
    return this.#issued;
  }

  /** Groups with a signal, as they were scored together; the same list until something changes. */
  get kept(): readonly KeptGroups[] {
    this.#kept ??= this.#parts.map(({ filtered }) => filtered.kept).filter(({ ordinals }) => ordinals !== '');
    return this.#kept;
  }

  /** Number of groups that became stale. */
  get stale(): number {
    const ended = [...this.ended, ...this.#parts.map(({ filtered }) => filtered.ended)];
    return ended.reduce((sum, { stale = '' }) => sum + decodeRanges(stale).length, 0);
  }

  /** Whether any round was sampled for it. */
  get hasRounds(): boolean {
    return this.scored.length > 0;
  }

  /** Rounds since the last batch, or since a person was asked. */
  get roundsWithoutBatch(): number {
    return Math.round(this.#roundsWithoutBatch * 1e6) / 1e6; // chunks count as fractions of a round
  }

  /**
   * Mean size of a group, kept or not, in the unit of the batch size; null when nothing was sampled, or the batch is
   * counted in groups.
   */
  get sizePerGroup(): number | null {
    const { groups, size } = this.#sampled;
    return size === 0 ? null : size / groups;
  }

  get solved(): { readonly all: number; readonly none: number } {
    return this.#solved;
  }

  get lost(): LostWork {
    return this.#lost;
  }

  issue(first: number, last: number): void {
    this.#issued.push([first, last]);
  }

  /** `share`: how much of a round it is. */
  add(one: ScoredPart, spent: SpentOnPart, share: number): void {
    const { solved } = one.filtered;
    this.#added.push([one, spent, share]);
    this.#parts.push(one);
    this.#kept = null;
    this.scored.push(one.scored);
    this.#roundsWithoutBatch += share;
    this.#solved.all += solved.all;
    this.#solved.none += solved.none;
    this.#generating.push([spent.generatedAt - spent.generateS * 1000, spent.generatedAt]);
    this.#spent.scoreS += spent.scoreS;
    this.#sampled.groups += one.ordinals.length;
    this.#sampled.size += one.filtered.size ?? 0;
    this.account.add(one.filtered);
  }

  /** Adds a chunk's other figures: rollouts found in the store, and lost work. */
  spend({ adopted, lost }: { readonly adopted: number; readonly lost: LostWork }): void {
    this.#spent.adopted += adopted;
    this.#lost = addLost(this.#lost, lost);
  }

  /** Merges later results into this. */
  absorb(later: Collected): void {
    this.#issued.push(...later.issued);
    this.ended.push(...later.ended);
    for (const added of later.#added) this.add(...added);
    this.spend({ adopted: later.#spent.adopted, lost: later.lost });
  }

  /** Filters again what there is by now. Groups added meanwhile were filtered so already. */
  async judge(filter: (one: ScoredPart) => Promise<FilteredGroups>): Promise<void> {
    const count = this.#parts.length;
    const judged = await Promise.all(
      this.#parts.map(async (one) => {
        return { ...one, filtered: restrictFiltered(await filter(one), new Set(one.ordinals)) };
      }),
    );
    this.#parts = [...judged, ...this.#parts.slice(count)];
    this.#kept = null;
  }

  /** Records the groups that the filter dropped as ended. The others are the batch's, or wait elsewhere. */
  settle(): void {
    this.ended.push(...this.#parts.map(({ filtered }) => filtered.ended));
    this.#parts = [];
    this.#kept = null;
  }

  forgetRounds(): void {
    this.#roundsWithoutBatch = 0;
  }

  figures(): Record<string, number> {
    const { failedRollouts, policyFailures, rollouts } = this.account.failures;
    return {
      issued_groups: this.#issued.reduce((sum, [first, last]) => sum + last - first + 1, 0),
      solved_all: this.#solved.all,
      solved_none: this.#solved.none,
      rounds: this.#issued.length,
      failed_rollouts: failedRollouts,
      policy_failures: policyFailures,
      rollouts,
      generate_s: secondsCovered(this.#generating.map(([from, to]) => [from / 1000, to / 1000])),
      score_s: this.#spent.scoreS,
      adopted: this.#spent.adopted,
    };
  }
}
