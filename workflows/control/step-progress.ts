import { countGroups } from '../../core/rl/selection.ts';
import { decodeRanges, type EndedRanges } from '../../core/rl/ledger.ts';
import type { KeptGroups, PolicyVersion } from '../../core/rl/run-state.ts';
import { versionName } from '../../core/names.ts';
import type { CollectProgress, GroupsInPlay, StepProgress } from './messages.ts';

/** What is finished of the steps being made, for whoever watches. It decides nothing and is in no history. */
export class ProgressOfSteps {
  #collecting: CollectProgress | null = null;
  #training: StepProgress['training'] = null;
  /** As {@link StepProgress} has it. */
  quarantinedServers: readonly string[] = [];

  /** What is in play right now. */
  inPlay: () => readonly GroupsInPlay[] = () => [];

  read(): StepProgress {
    const quarantined = this.quarantinedServers.length === 0 ? {} : { quarantinedServers: this.quarantinedServers };
    return { collecting: this.#collecting, inPlay: this.inPlay(), training: this.#training, ...quarantined };
  }

  /** The batch of a step is collected from here on: `inPlay` rollouts are in play, and `kept` groups wait. */
  collects(batch: Pick<CollectProgress, 'step' | 'needed' | 'kept'> & { readonly inPlay: number }): void {
    const { inPlay, ...rest } = batch;
    const policyStep = this.#collecting?.policyStep ?? 0;
    this.#collecting = {
      ...rest,
      policyStep,
      round: 0,
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

  /** The batch of the step is packed: what became of its groups stays to be seen until the next are leased. */
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
