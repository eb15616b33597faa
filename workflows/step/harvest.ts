import { patched } from '@temporalio/workflow';
import type { FilteredGroups } from '../../core/rl/filter-groups.ts';
import type { EndedRanges } from '../../core/rl/ledger.ts';
import { addLost, nothingLost, type LostWork } from '../../core/rl/lost-work.ts';
import { restrictFiltered } from '../../core/rl/played-part.ts';
import { secondsCovered } from '../../core/rl/window.ts';
import type { KeptGroups, ObjectRef, SamplingRound } from '../../core/rl/run-state.ts';
import { RoundAccount } from './round-account.ts';

/** Groups that have been scored together, and what the filter made of them. */
interface ScoredPart {
  readonly round: SamplingRound;
  readonly scored: ObjectRef;
  readonly filtered: FilteredGroups;
  /** Of all that were scored, those that it is about. */
  readonly ordinals: readonly number[];
}

/** What they took. */
interface SpentOnPart {
  /** Of generation, on the worker. */
  readonly generateS: number;
  readonly scoreS: number;
  /** When its generation was over; ms since 1970. */
  readonly generatedAt: number;
}

/** What came of sampling since a batch was taken last: for the next batch, and its commit. */
export class Harvest {
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
  #fruitless = 0;
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

  /** Whether anything was sampled for it. */
  get hasRounds(): boolean {
    return this.scored.length > 0;
  }

  /** Rounds since there was a batch, or somebody was asked what to do. */
  get fruitlessRounds(): number {
    return Math.round(this.#fruitless * 1e6) / 1e6; // chunks of a round are fractions of it
  }

  /** Of a group, kept or not, on average, in what a batch is counted in; null where nothing was sampled, or a batch is so many groups. */
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
    this.#fruitless += share;
    this.#solved.all += solved.all;
    this.#solved.none += solved.none;
    this.#generating.push([spent.generatedAt - spent.generateS * 1000, spent.generatedAt]);
    this.#spent.scoreS += spent.scoreS;
    this.#sampled.groups += one.ordinals.length;
    this.#sampled.size += one.filtered.size ?? 0;
    this.account.add(one.filtered);
  }

  /** What a chunk took beside: how many rollouts lay in the store already, and what was lost of it. */
  spend({ adopted, lost }: { readonly adopted: number; readonly lost: LostWork }): void {
    this.#spent.adopted += adopted;
    this.#lost = addLost(this.#lost, lost);
  }

  /** Takes what came after it. */
  absorb(later: Harvest): void {
    this.#issued.push(...later.issued);
    this.ended.push(...later.ended);
    for (const added of later.#added) this.add(...added);
    this.spend({ adopted: later.#spent.adopted, lost: later.lost });
  }

  /** Judges anew what there is by now. What is added while that is done has been judged so already. */
  async judge(filter: (one: ScoredPart) => Promise<FilteredGroups>): Promise<void> {
    const count = this.#parts.length;
    const judged = await Promise.all(
      this.#parts.map(async (one) => {
        return { ...one, filtered: restrictFiltered(await filter(one), new Set(one.ordinals)) };
      }),
    );
    const later = this.#parts.slice(count);
    this.#parts = later.length > 0 && patched('judged-while-played') ? [...judged, ...later] : judged;
    this.#kept = null;
  }

  /** What the filter did not keep has ended. The rest is the batch's, or waits outside of this. */
  settle(): void {
    this.ended.push(...this.#parts.map(({ filtered }) => filtered.ended));
    this.#parts = [];
    this.#kept = null;
  }

  forgetFruitless(): void {
    this.#fruitless = 0;
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
