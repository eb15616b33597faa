import { CancellationScope } from '@temporalio/workflow';
import type { TrialInput } from '../../activities/prompt-search/record-trial.ts';
import { versionName } from '../../core/names.ts';
import type { PromptTrial, SearchInPlay } from '../../core/gepa/prompt-search.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { orchestratorFor } from '../options.ts';
import { SearchLeases } from '../search-leases.ts';

/**
 * Trials of branches' winners against the prompts in use: leased to all rollout workers when they take long. Rollouts
 * that a trial has stored are never generated again.
 */
export class PromptTrials {
  /** Leases of trials under way, by environment. */
  readonly #leases = new Map<string, SearchLeases>();
  readonly #scope = new CancellationScope();

  async of(environment: string, spec: RunSpec, asked: TrialInput): Promise<PromptTrial> {
    const summary = `${environment} on ${versionName(asked.policy)}`;
    return this.#scope.run(async () => {
      await this.#lease(environment, spec, { asked, summary });
      return orchestratorFor(spec).recordTrial.executeWithOptions({ summary }, [asked]);
    });
  }

  /** null without leases. */
  inPlay(environment: string): SearchInPlay | null {
    return this.#leases.get(environment)?.inPlay ?? null;
  }

  leave(): void {
    this.#scope.cancel();
  }

  async #lease(
    environment: string,
    spec: RunSpec,
    { asked, summary }: { readonly asked: TrialInput; readonly summary: string },
  ): Promise<void> {
    const { handle, asked: rollouts } = await orchestratorFor(spec).openTrial.executeWithOptions({ summary }, [asked]);
    // Failures are not counted: a pair without both scores is left out.
    const leases = new SearchLeases(handle, { failedRollouts: () => undefined }, { policy: asked.policy });
    this.#leases.set(environment, leases);
    try {
      await leases.play(rollouts, `rollouts of its trial on ${versionName(asked.policy)}`);
    } finally {
      this.#leases.delete(environment);
    }
  }
}
