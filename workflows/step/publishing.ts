import { versionName } from '../../core/names.ts';
import type { ObjectRef, PolicyVersion } from '../../core/rl/run-state.ts';
import { awaitedLater } from '../beside/beside.ts';
import type { RunContext } from '../run-parts.ts';
import type { Recoveries } from './recoveries.ts';
import type { TrainerLease } from './trainer-lease.ts';

/**
 * Committed versions on their way into the store, one after another, beside the steps that follow. A version whose maker
 * is lost before the upload is made again from stored batches by whoever holds the run next.
 */
export class Publishing {
  readonly #context: RunContext;
  readonly #lease: TrainerLease;
  readonly #recoveries: Recoveries;
  #last: Promise<unknown> = Promise.resolve();
  readonly #pending = new Map<number, Promise<PolicyVersion>>();

  constructor(context: RunContext, lease: TrainerLease, recoveries: Recoveries) {
    this.#context = context;
    this.#lease = lease;
    this.#recoveries = recoveries;
  }

  /** Resolves to the version that is in the store now: another one where its replay differed. */
  publish(policy: PolicyVersion, optimizer: ObjectRef | null): Promise<PolicyVersion> {
    const before = this.#last;
    const publishing = awaitedLater(before.then(() => this.#publish(policy, optimizer)));
    this.#last = publishing;
    this.#pending.set(policy.step, publishing);
    void publishing.then(
      () => {
        if (this.#pending.get(policy.step) === publishing) this.#pending.delete(policy.step);
      },
      () => undefined,
    ); // whoever awaits it has its failure
    return publishing;
  }

  /** Resolves once what is on its way now has arrived. */
  async allBefore(): Promise<void> {
    await this.#last;
  }

  /** Waits for a version's upload, if there is one under way; null when it is stored. */
  async of(step: number): Promise<PolicyVersion | null> {
    return (await this.#pending.get(step)) ?? null;
  }

  async #publish(policy: PolicyVersion, optimizer: ObjectRef | null): Promise<PolicyVersion> {
    const { step } = policy;
    const summary = `weights of ${versionName(policy)} to the store`;
    let [asked, state] = [policy, optimizer];
    for (;;) {
      // Both on one lease: what was made again is pending at the worker that made it.
      const outcome = await this.#context.control.waitFor(
        `upload ${summary}`,
        this.#lease.use(async ({ epoch, steps, uploads }) => {
          const input = { run: this.#context.run, policy: asked, optimizer: state, epoch };
          if (await uploads.publishVersion.executeWithOptions({ summary }, [input])) return 'published';
          return steps.remakeVersion.executeWithOptions({ summary: `${versionName(asked)} again` }, [
            { run: this.#context.run, policy: asked, epoch },
          ]);
        }),
      );
      if (outcome === 'published') return asked;
      if (outcome.recovery) this.#recoveries.tell(step + 1, outcome.recovery);
      if (outcome.replay) [asked, state] = [outcome.replay, null];
    }
  }
}
