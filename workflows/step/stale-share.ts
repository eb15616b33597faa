/** Share of the sampled groups that may become stale without a warning. */
const shareMax = 0.05;
/** Batches that are looked at together; the warning repeats after as many. */
const batchesRemembered = 16;

interface Batch {
  readonly stale: number;
  readonly trained: number;
}

/** Share of the sampled groups that became stale, for a warning to the user. */
export class StaleShare {
  readonly #batches: Batch[] = [];
  #sinceTold = batchesRemembered;

  /** Records the newest batch; returns a warning about the batches so far, or null. */
  note(batch: Batch, maxOffPolicySteps: number): string | null {
    this.#batches.push(batch);
    if (this.#batches.length > batchesRemembered) this.#batches.shift();
    this.#sinceTold += 1;
    const sum = (of: keyof Batch): number => this.#batches.reduce((total, one) => total + one[of], 0);
    const [stale, all] = [sum('stale'), sum('stale') + sum('trained')];
    const isKnown = this.#batches.length >= batchesRemembered / 2;
    if (!isKnown || this.#sinceTold <= batchesRemembered || stale <= shareMax * all) return null;
    this.#sinceTold = 0;
    return `${stale} of ${all} groups (${Math.round((100 * stale) / all)}%) were sampled and grew too old to be trained: some rollouts take longer than max_off_policy_steps = ${maxOffPolicySteps} steps. Raise it, bound the rollouts (max_tokens, max_turns, timeout), or add servers; a lower max_async_level wastes less where sampling is ahead.`;
  }
}
