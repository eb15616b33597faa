import { CancellationScope, patched } from '@temporalio/workflow';
import type { TryPromptInput } from '../../activities/prompt-search/try-prompt.ts';
import { versionName } from '../../core/names.ts';
import type { PromptTrial, SearchInPlay } from '../../core/gepa/prompt-search.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { orchestratorFor, rolloutsFor } from '../options.ts';
import { SearchLeases } from '../search-leases.ts';

/**
 * Winners of branches and the prompts in use, played once more: leased to all rollout workers where that takes long. Whatever is killed, what
 * lies in the store of a trial is not played again.
 */
export class PromptTrials {
  /** Of those under way, by environment. */
  readonly #leases = new Map<string, SearchLeases>();
  readonly #scope = new CancellationScope();

  async of(environment: string, spec: RunSpec, asked: TryPromptInput): Promise<PromptTrial> {
    const summary = `${environment} on ${versionName(asked.policy)}`;
    const compare = () => rolloutsFor(spec).tryPrompt.executeWithOptions({ summary }, [asked]);
    if (!patched('leased-trials')) return compare();
    return this.#scope.run(async () => {
      await this.#lease(environment, spec, { asked, summary });
      return compare();
    });
  }

  /** null: no lease is. */
  inPlay(environment: string): SearchInPlay | null {
    return this.#leases.get(environment)?.inPlay ?? null;
  }

  /** Nobody wants to know any more. */
  leave(): void {
    this.#scope.cancel();
  }

  async #lease(
    environment: string,
    spec: RunSpec,
    { asked, summary }: { readonly asked: TryPromptInput; readonly summary: string },
  ): Promise<void> {
    const { handle, asked: rollouts } = await orchestratorFor(spec).openTrial.executeWithOptions({ summary }, [asked]);
    // What failed is not counted: a pair without both scores is left out.
    const leases = new SearchLeases(handle, { failedRollouts: () => undefined }, { policy: asked.policy });
    this.#leases.set(environment, leases);
    try {
      await leases.playSlow(rollouts, `rollouts of its trial on ${versionName(asked.policy)}`);
    } finally {
      this.#leases.delete(environment);
    }
  }
}
