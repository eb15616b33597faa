import { versionName } from '../../core/names.ts';
import type { ObjectRef, PolicyVersion } from '../../core/rl/run-state.ts';
import { awaitedLater } from '../beside/beside.ts';
import type { RunContext } from '../run-context.ts';
import type { Recoveries } from './recoveries.ts';
import type { TrainerLease } from './trainer-lease.ts';

/**
 * Uploads of committed versions, one after another, beside later steps. If a version's worker is lost before the
 * upload, the next worker that holds the run makes it again from stored batches.
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

  /** Resolves to the version in the store: another one if its replay differed. */
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
    ); // the caller gets the failure
    return publishing;
  }

  /** Resolves once all uploads under way have ended. */
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
      // Both on one lease: a version made again is pending at the worker that made it.
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
      if (outcome.recovery) this.#recoveries.emit(step + 1, outcome.recovery);
      if (outcome.replay) [asked, state] = [outcome.replay, null];
    }
  }
}
