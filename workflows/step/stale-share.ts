/** Of what is sampled so much may grow too old to be trained without a word. */
const shareMax = 0.05;
/** Batches that are looked at together; as many go by before it is said again. */
const batchesRemembered = 16;

interface Batch {
  readonly stale: number;
  readonly trained: number;
}

/** How much of what was sampled grew too old, for whoever can do something about it. */
export class StaleShare {
  readonly #batches: Batch[] = [];
  #sinceTold = batchesRemembered;

  /** Groups of the newest batch; what is to be said about the batches so far, or null. */
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
