import type { CommitInput } from '../../activities/commit-step.ts';
import type { PolicyVersion, RunHandle, RunState } from '../../core/rl/run-state.ts';
import { eager } from '../options.ts';

/** Results of a step, besides the state after it. */
type Made = Omit<CommitInput, 'run' | 'parent' | 'state'>;

/** The run's position: its newest commit. Nothing has happened until it is committed here. */
export class Head {
  readonly #run: RunHandle;
  #state: RunState | null;
  #parent: string | null;

  constructor(run: RunHandle, start: { readonly state: RunState; readonly parent: string } | null) {
    this.#run = run;
    this.#state = start?.state ?? null;
    this.#parent = start?.parent ?? null;
  }

  /** Whether anything is committed yet. */
  get isCommitted(): boolean {
    return this.#parent !== null;
  }

  get state(): RunState {
    if (this.#state === null) throw new Error('nothing is committed yet');
    return this.#state;
  }

  /** sha256 of the newest commit. */
  get parent(): string {
    if (this.#parent === null) throw new Error('nothing is committed yet');
    return this.#parent;
  }

  get step(): number {
    return this.state.step;
  }

  get policy(): PolicyVersion {
    return this.state.policy;
  }

  /** The commit is the fence. Returns whether the version is in the store already, and needs no upload. */
  async commit(state: RunState, made: Made): Promise<{ isPublished: boolean }> {
    this.#state = state;
    const parent = this.#parent;
    const { sha256, isPublished } = await eager.commitStep({ run: this.#run, parent, ...made, state });
    this.#parent = sha256;
    return { isPublished };
  }

  /** Replaces the version: it was made again with other weights. */
  replace(lost: PolicyVersion, replay: PolicyVersion): void {
    if (lost.digest === replay.digest) return;
    const { policy, reference } = this.state;
    this.#state = {
      ...this.state,
      policy: policy.digest === lost.digest ? replay : policy,
      reference: reference.digest === lost.digest ? replay : reference,
    };
  }
}
