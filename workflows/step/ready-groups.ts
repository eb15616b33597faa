import type { RunSpec } from '../../config/run-spec.ts';
import type { Baselines } from '../../core/rl/rollout/agents.ts';
import type { FilteredGroups } from '../../core/rl/filters/filter-groups.ts';
import { decodeRanges } from '../../core/rl/ledger.ts';
import { type PlayedPart, restrictFiltered } from '../../core/rl/rollout/played-part.ts';
import type { KeptGroups, RunHandle, SamplingRound } from '../../core/rl/run-state.ts';
import { batchSizeOf } from '../../core/rl/learning/selection.ts';
import { eager } from '../options.ts';
import type { CurriculumInTurn } from './curriculum-in-turn.ts';
import { Collected } from './collected.ts';

interface Options {
  readonly run: RunHandle;
  readonly spec: RunSpec;
  readonly curriculum: CurriculumInTurn;
  /** Whether groups are sampled in rounds that are decided on when they have ended. */
  readonly byRounds: boolean;
}

/** Kept groups that wait for a batch, and the results of sampling since the last one. */
export class ReadyGroups {
  readonly #options: Options;
  #surplus: readonly KeptGroups[];
  #collected = new Collected();
  #all: Record<'surplus' | 'kept' | 'all', readonly KeptGroups[]> | null = null;
  #baselines: Baselines | undefined;
  /** Whether groups are filtered with the widened bounds from here on. */
  isWidened = false;

  constructor(
    options: Options,
    { surplus, baselines }: { readonly surplus: readonly KeptGroups[]; readonly baselines?: Baselines },
  ) {
    this.#options = options;
    this.#surplus = surplus;
    this.#baselines = baselines;
  }

  get collected(): Collected {
    return this.#collected;
  }

  /** Baselines after the last batch that was taken. */
  get baselines(): Baselines | undefined {
    return this.#baselines;
  }

  /** Kept groups that no step has trained yet; the same list until something changes. */
  get all(): readonly KeptGroups[] {
    const [surplus, kept] = [this.#surplus, this.#collected.kept];
    if (this.#all?.surplus !== surplus || this.#all.kept !== kept) {
      this.#all = { surplus, kept, all: [...surplus, ...kept] };
    }
    return this.#all.all;
  }

  /** The worker's own judgement, unless the filter has changed since; examples move between pools in one order. */
  judge(round: SamplingRound, { scored, filtered, ordinals }: PlayedPart): Promise<FilteredGroups> {
    const { run, spec, curriculum } = this.#options;
    const hasPools = spec.environments.some(({ pools }) => pools !== null);
    if (!hasPools && !this.isWidened) return Promise.resolve(filtered);
    return curriculum.change(async (state, set) => {
      const widened = this.isWidened ? { widened: true } : {};
      const judged = await eager.filterGroups({ run, round, scored, curriculum: state, ...widened });
      if (judged.curriculum) set(judged.curriculum);
      return restrictFiltered(judged, new Set(decodeRanges(ordinals)));
    });
  }

  add(round: SamplingRound, part: PlayedPart, filtered: FilteredGroups): void {
    const { generateS, scoreS, scored } = part;
    const ordinals = decodeRanges(part.ordinals);
    const generatedAt = Date.now() - scoreS * 1000;
    const share = this.#shareOf(round, filtered, ordinals.length);
    this.#collected.add({ round, scored, filtered, ordinals }, { generateS, scoreS, generatedAt }, share);
  }

  /**
   * Takes a batch: `surplus` waits for the next one, together with later groups. Returns the results that the batch was
   * taken from.
   */
  take(surplus: readonly KeptGroups[]): Collected {
    const taken = this.#collected;
    this.#surplus = surplus;
    this.#collected = new Collected();
    return taken;
  }

  /** Undoes a take: its results belong to the next batch. */
  giveBack(taken: Collected): void {
    taken.absorb(this.#collected);
    this.#collected = taken;
  }

  /** The batch that was taken is one. */
  taken(baselines: Baselines | undefined): void {
    this.#baselines = baselines;
    this.isWidened = false;
  }

  /** How much of a round was sampled with a part. */
  #shareOf(round: SamplingRound, { size = 0 }: FilteredGroups, groups: number): number {
    const { spec, byRounds } = this.#options;
    const batch = batchSizeOf(spec);
    if (batch.total !== null) return size / batch.total;
    return groups / (byRounds ? round.last - round.first + 1 : batch.groups);
  }
}
