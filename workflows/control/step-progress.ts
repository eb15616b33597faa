import { countGroups } from '../../core/rl/learning/selection.ts';
import { decodeRanges, type EndedRanges } from '../../core/rl/ledger.ts';
import type { KeptGroups, PolicyVersion } from '../../core/rl/run-state.ts';
import { versionName } from '../../core/names.ts';
import type { CollectProgress, GroupsInPlay, StepProgress } from './messages.ts';

/** Progress of the steps being made, for watchers. It influences no decision and is in no history. */
export class ProgressOfSteps {
  #collecting: CollectProgress | null = null;
  #training: StepProgress['training'] = null;
  /** Same as in {@link StepProgress}. */
  quarantinedServers: readonly string[] = [];

  /** Returns the groups in flight. */
  inPlay: () => readonly GroupsInPlay[] = () => [];

  read(): StepProgress {
    const quarantined = this.quarantinedServers.length === 0 ? {} : { quarantinedServers: this.quarantinedServers };
    return { collecting: this.#collecting, inPlay: this.inPlay(), training: this.#training, ...quarantined };
  }

  /** The batch of a step is collected from here on: `inPlay` rollouts of so many rounds are in play, and `kept` groups wait. */
  collects(batch: Pick<CollectProgress, 'step' | 'needed' | 'kept' | 'round'> & { readonly inPlay: number }): void {
    const { inPlay, ...rest } = batch;
    const policyStep = this.#collecting?.policyStep ?? 0;
    this.#collecting = {
      ...rest,
      policyStep,
      doing: 'generate',
      rollouts: { done: 0, of: inPlay },
      dropped: {},
    };
  }

  /** A sampling round begins. */
  leased({ policyStep, rollouts }: { readonly policyStep: number; readonly rollouts: number }): void {
    this.#now(({ round, rollouts: { done, of } }) => {
      return { round: round + 1, doing: 'generate', policyStep, rollouts: { done, of: of + rollouts } };
    });
  }

  /** Rollouts have been generated and scored. */
  played(rollouts: number): void {
    this.#now(({ rollouts: { done, of } }) => ({ rollouts: { done: done + rollouts, of } }));
  }

  filtered(kept: readonly KeptGroups[], ended: EndedRanges): void {
    this.#now(({ dropped }) => ({ doing: 'filter', kept: countGroups(kept), dropped: addCounts(dropped, ended) }));
  }

  /** The step's batch is packed: the fates of its groups stay visible until the next are leased. */
  collected(): void {
    this.#now(() => ({ doing: 'nothing' }));
  }

  trains(training: { readonly step: number; readonly from: PolicyVersion; readonly rows: number } | null): void {
    this.#training =
      training === null ? null : { ...training, from: versionName(training.from), since: new Date().toISOString() };
  }

  #now(change: (before: CollectProgress) => Partial<CollectProgress>): void {
    if (this.#collecting !== null) this.#collecting = { ...this.#collecting, ...change(this.#collecting) };
  }
}

function addCounts(counts: Readonly<Record<string, number>>, ended: EndedRanges): Record<string, number> {
  const sum: Record<string, number> = { ...counts };
  for (const [state, ranges = ''] of Object.entries(ended)) {
    sum[state] = (sum[state] ?? 0) + decodeRanges(ranges).length;
  }
  return sum;
}
