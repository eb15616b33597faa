import { auditLineages, type LineageCommits } from '../core/rl/lineages.ts';
import type { StepOutcomes } from '../core/rl/ledger.ts';
import { firstLineage } from '../core/names.ts';
import { sealedSteps } from '../runs/versions/checkpoints.ts';
import { begunLineages, committedSteps, requireCommit, type RunPlace, storeOf } from '../runs/run-access.ts';
import type { HistoryAnswer } from './answers.ts';

/** Commits that are read at once. */
const readAtOnce = 64;

/** Lineages of a run, and the fates of all groups that they issued. Each commit is read once. */
export class History {
  readonly #place: RunPlace;
  readonly #read = new Map<string, Map<number, StepOutcomes>>();
  #reading: Promise<HistoryAnswer> | null = null;

  constructor(place: RunPlace) {
    this.#place = place;
  }

  /** Callers that ask meanwhile share the same read. */
  tell(): Promise<HistoryAnswer> {
    this.#reading ??= this.#tell().finally(() => (this.#reading = null));
    return this.#reading;
  }

  async #tell(): Promise<HistoryAnswer> {
    const begun = await begunLineages(this.#place);
    const all = [{ lineage: firstLineage, origin: null, begunAt: null }, ...begun];
    const commits: LineageCommits[] = [];
    const lineages: HistoryAnswer['lineages'][number][] = [];
    for (const { lineage, origin, begunAt } of all) {
      const outcomes = await this.#outcomesOf(lineage);
      const steps = outcomes.map(({ step }) => step);
      const within = origin?.run === this.#place.name ? { lineage: origin.lineage, step: origin.step } : null;
      commits.push({ lineage, origin: within, first: steps[0] ?? 0, commits: outcomes });
      lineages.push({
        lineage,
        from: origin && { run: origin.run, lineage: origin.lineage, step: origin.step },
        begunAt,
        first: steps[0] ?? 0,
        head: steps.at(-1) ?? 0,
        checkpoints: await sealedSteps(storeOf(this.#place), lineage),
      });
    }
    const { issued, counts, pending, superseded, timedOut, effects, isSound } = auditLineages(commits);
    return { lineages, issued, counts, pending, superseded, timedOut, effects, isSound };
  }

  async #outcomesOf(lineage: string): Promise<StepOutcomes[]> {
    const place = { ...this.#place, lineage };
    const known = this.#read.get(lineage) ?? new Map<number, StepOutcomes>();
    this.#read.set(lineage, known);
    const steps = await committedSteps(place);
    const fresh = steps.filter((step) => !known.has(step));
    for (let at = 0; at < fresh.length; at += readAtOnce) {
      const found = await Promise.all(
        fresh.slice(at, at + readAtOnce).map(async (step) => (await requireCommit(place, step)).commit.outcomes),
      );
      for (const [i, outcomes] of found.entries()) known.set(fresh[at + i]!, outcomes);
    }
    return steps.map((step) => known.get(step)!);
  }
}
