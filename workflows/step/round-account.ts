import type { FilteredGroups } from '../../core/rl/filters/filter-groups.ts';
import { addHistograms, describeHistogram } from '../../core/rl/filters/difficulty.ts';
import {
  addFailures,
  breakerAmong,
  describeFailures,
  noFailures,
  onlyRow,
  type BreakerLimits,
  type RoundFailures,
} from '../../core/rl/failures.ts';

/**
 * Consecutive failures of each environment, over steps: a rarely drawn environment has a group or two in a step.
 * Separate for each workflow, since each has its own modules; a restarted run counts from zero.
 */
const failuresInRow = new Map<string, RoundFailures>();

/** Failures and rewards of a step's sampling rounds, in total and by environment, for the text of a pause. */
export class RoundAccount {
  #failures = noFailures;
  #means: readonly number[] = [];
  readonly #environments = new Map<string, { failures: RoundFailures; means: readonly number[] }>();

  get failures(): RoundFailures {
    return this.#failures;
  }

  add({ failures = noFailures, means = [], environments = {} }: FilteredGroups): void {
    this.#failures = addFailures(this.#failures, failures);
    this.#means = addHistograms(this.#means, means);
    for (const [name, round] of Object.entries(environments)) {
      const before = this.#environments.get(name) ?? {
        failures: onlyRow(failuresInRow.get(name) ?? noFailures),
        means: [],
      };
      const after = addFailures(before.failures, round.failures);
      this.#environments.set(name, { failures: after, means: addHistograms(before.means, round.means) });
      failuresInRow.set(name, after);
    }
  }

  /** Why the run must pause; null when it may continue. */
  breakerReason(limits: BreakerLimits, step: number): string | null {
    const environments = new Map([...this.#environments].map(([name, { failures }]) => [name, failures]));
    const found = breakerAmong(this.#failures, environments, limits);
    if (found === null) return null;
    const causes = describeFailures(found.causes).join('; ');
    const others = [...environments]
      .filter(([name, { failedRollouts }]) => name !== found.environment && failedRollouts === 0)
      .map(([name]) => name);
    const well = found.environment === null || others.length === 0 ? '' : ` ${others.join(', ')} had no failures.`;
    return `breaker: ${found.reason} for step ${step}: ${causes}.${well} Nothing of it was trained. Remove the cause, then resume.`;
  }

  /** After a pause, earlier failures say nothing about what comes. */
  forgetFailures(): void {
    this.#failures = noFailures;
    for (const [name, account] of this.#environments) {
      account.failures = noFailures;
      failuresInRow.delete(name);
    }
  }

  /** Mean rewards of the groups, and failures: reasons why so few were kept. */
  describe(): string[] {
    const several = [...this.#environments].map(([name, { means }]) => `${name} ${describeHistogram(means)}`);
    const failed = [...this.#environments].flatMap(([name, { failures }]) =>
      describeFailures(failures.causes).map((cause) => `${name}: ${cause}.`),
    );
    const hasSeveral = several.length > 0;
    return [
      `Mean rewards of the groups: ${hasSeveral ? several.join('; ') : describeHistogram(this.#means)}.`,
      ...(hasSeveral ? failed : describeFailures(this.#failures.causes).map((cause) => `${cause}.`)),
    ];
  }
}
