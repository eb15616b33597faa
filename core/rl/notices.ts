/** Notes by operators, and notices by the run itself. */

export const noticeKinds = [
  'note',
  'breaker',
  'paused',
  'failed',
  'entropy',
  'length',
  'mismatch',
  'held-out',
] as const;
export type NoticeKind = (typeof noticeKinds)[number];

export interface Notice {
  readonly kind: NoticeKind;
  readonly lineage: string;
  /** The step in question; for a note, the last committed step when it was written. */
  readonly step: number;
  /** ISO time; for metrics, that of the step's commit. */
  readonly time: string;
  readonly text: string;
  /** Only for held-out scores. */
  readonly environment?: string;
}

/** A notice in the run's folder. A second notice of the same finds the first. */
export interface StoredNotice extends Notice {
  /** Names it in the folder, and to who is sent it. */
  readonly id: string;
}

export interface NoticeLimits {
  readonly entropyShare: number;
  readonly lengthFactor: number;
  /** Nats per token. */
  readonly mismatchKl: number;
  readonly evalFall: number;
}

/** A row of `metrics.jsonl`. */
export type WatchedRow = Readonly<Record<string, number | string>> & {
  readonly step: number;
  readonly lineage: string;
};

/** Steps of a mean: now, at the beginning of the run, and before a jump. */
const [stepsNow, stepsOfBeginning, stepsBefore] = [5, 10, 20];
/** Share of groups solved by all of their rollouts from which low entropy is expected. */
const solvedShare = 0.5;
/** A condition must recede by this factor before it is reported again. */
const over = 2;

interface Point {
  readonly step: number;
  readonly value: number;
}

/**
 * Watches the metrics of one lineage, ascending by step, and reports each matter for a person once:
 *
 * - entropy: m₅ < `entropy_share` · b, where m₅ is the mean entropy of the last 5 steps and b that of the first 10. A
 *   policy without entropy gains no more reward (Cui et al. 2025, arXiv:2505.22617, §2). Reported again after m₅ ≥ 2 ·
 *   `entropy_share` · b. Not reported while half of the groups are solved by all of their rollouts, in the mean of
 *   these steps: then certainty is what was learned.
 * - length: m₅ > `length_factor` · p, where p is the mean length of the up to 20 steps before those, 10 at least.
 *   Reported again after m₅ ≤ p · (1 + `length_factor`) / 2.
 * - mismatch: m₅ > `mismatch_kl`, where m₅ is the mean of the last 5 steps of the KL divergence, per token, of the
 *   training policy from the sampling one. Correction leaves little weight on samples from so far away: 4 versions
 *   apart at 0.3 nats, the demo needs 2.6 times the samples (bench/README.md). Reported again after m₅ ≤ `mismatch_kl`
 *   / 2.
 * - held-out: an evaluation of step k has a mean reward e(k) ≤ e(best) − `eval_fall`, where best < k is the best
 *   evaluation of the same environment, and the mean training reward of the 5 steps up to k is above that of the 5
 *   steps up to best. If the evaluations were compared example by example, the fall must be beyond chance
 *   (`vs_best/is_worse`). Reported again after another best.
 *
 * Deterministic: the same rows give the same notices.
 */
export class LineageWatch {
  readonly #limits: NoticeLimits;
  readonly #entropy: Point[] = [];
  readonly #solved: Point[] = [];
  readonly #lengths: Point[] = [];
  readonly #mismatch: Point[] = [];
  readonly #rewards = new Map<string, Point[]>();
  readonly #evals = new Map<string, Point[]>();
  readonly #told = new Set<string>();
  #time = '';

  constructor(limits: NoticeLimits) {
    this.#limits = limits;
  }

  take(row: WatchedRow): Notice[] {
    const { time } = row;
    if (typeof time === 'string') this.#time = time;
    return [...this.#entropyIn(row), ...this.#lengthIn(row), ...this.#mismatchIn(row), ...this.#heldOutIn(row)];
  }

  *#entropyIn(row: WatchedRow): Iterable<Notice> {
    isAdded(this.#solved, row, 'train/agg/all/solved_all');
    if (!isAdded(this.#entropy, row, 'entropy')) return;
    if (this.#entropy.length < stepsOfBeginning + stepsNow) return;
    const [begun, now] = [meanOf(this.#entropy.slice(0, stepsOfBeginning)), meanOf(this.#entropy.slice(-stepsNow))];
    const least = this.#limits.entropyShare * begun;
    if (now >= over * least) this.#told.delete('entropy');
    if (begun <= 0 || now >= least || this.#isSolved() || !this.#isNew('entropy')) return;
    const share = ((now / begun) * 100).toPrecision(2);
    const text = `entropy fell to ${now.toPrecision(3)} nats per token, ${share} % of the ${begun.toPrecision(3)} that the run began with: samples of an example become alike`;
    yield this.#noticed('entropy', row, text);
  }

  #isSolved(): boolean {
    const solved = this.#solved.slice(-stepsNow);
    return solved.length > 0 && meanOf(solved) >= solvedShare;
  }

  *#lengthIn(row: WatchedRow): Iterable<Notice> {
    if (!isAdded(this.#lengths, row, 'train/agg/all/num_output_tokens/mean')) return;
    const before = this.#lengths.slice(-stepsNow - stepsBefore, -stepsNow);
    if (before.length < stepsBefore / 2) return;
    const [earlier, now] = [meanOf(before), meanOf(this.#lengths.slice(-stepsNow))];
    const { lengthFactor } = this.#limits;
    if (now <= (earlier * (1 + lengthFactor)) / 2) this.#told.delete('length');
    if (earlier <= 0 || now <= lengthFactor * earlier || !this.#isNew('length')) return;
    const cut = row['train/agg/all/is_truncated/mean'];
    const truncated = typeof cut === 'number' ? `; ${Math.round(cut * 100)} % were cut` : '';
    const text = `answers grew to ${Math.round(now)} tokens, ${(now / earlier).toFixed(1)} times the ${Math.round(earlier)} of the ${before.length} steps before${truncated}`;
    yield this.#noticed('length', row, text);
  }

  *#mismatchIn(row: WatchedRow): Iterable<Notice> {
    if (!isAdded(this.#mismatch, row, 'mismatch_kl') || this.#mismatch.length < stepsOfBeginning) return;
    const now = meanOf(this.#mismatch.slice(-stepsNow));
    const { mismatchKl } = this.#limits;
    if (now <= mismatchKl / over) this.#told.delete('mismatch');
    if (now <= mismatchKl || !this.#isNew('mismatch')) return;
    const behind = row['off_policy/mean'];
    const isBehind = typeof behind === 'number' && behind > 0;
    const text = isBehind
      ? `rollouts come from a policy ${now.toPrecision(2)} nats per token away from the one that trains, ${behind.toFixed(1)} versions behind: they teach less; max_mismatch_kl bounds it, and a lower learning_rate or max_async_level brings them closer`
      : `the sampler and the trainer are ${now.toPrecision(2)} nats per token apart at the same weights: compare their precision, chat template and sampling settings`;
    yield this.#noticed('mismatch', row, text);
  }

  *#heldOutIn(row: WatchedRow): Iterable<Notice> {
    for (const [name, value] of Object.entries(row)) {
      if (typeof value !== 'number') continue;
      const reward = name === 'train/reward' ? '' : /^reward\/(.+)\/mean$/.exec(name)?.[1];
      if (reward !== undefined) pointsOf(this.#rewards, reward).push({ step: row.step, value });
      // Excludes `eval/ENV/greedy/reward/mean`, another evaluation of these examples.
      const environment = /^eval\/([^/]+)\/reward\/mean$/.exec(name)?.[1];
      if (environment !== undefined) yield* this.#evaluated(environment, { step: row.step, value }, row);
    }
  }

  *#evaluated(environment: string, evaluated: Point, row: WatchedRow): Iterable<Notice> {
    const all = pointsOf(this.#evals, environment);
    const before = all.filter(({ step }) => step < evaluated.step);
    all.push(evaluated);
    const [first, ...others] = before;
    if (first === undefined) return;
    const best = others.reduce((a, b) => (b.value > a.value ? b : a), first);
    const isByChance = row[`eval/${environment}/vs_best/is_worse`] === 0;
    if (isByChance || evaluated.value > best.value - this.#limits.evalFall) return;
    const rewards = this.#rewards.get(environment) ?? this.#rewards.get('') ?? [];
    const [then, now] = [meanUpTo(rewards, best.step), meanUpTo(rewards, evaluated.step)];
    if (then === null || now === null || now <= then || !this.#isNew(`held-out ${environment} ${best.step}`)) return;
    const text = `held-out ${environment} fell from ${best.value.toFixed(3)} at step ${best.step} to ${evaluated.value.toFixed(3)} while the reward in training rose from ${then.toFixed(3)} to ${now.toFixed(3)}: the policy may be learning the reward rather than the task`;
    yield { ...this.#noticed('held-out', row, text), environment };
  }

  #isNew(what: string): boolean {
    const isNew = !this.#told.has(what);
    this.#told.add(what);
    return isNew;
  }

  #noticed(kind: NoticeKind, { lineage, step }: WatchedRow, text: string): Notice {
    return { kind, lineage, step, time: this.#time, text };
  }
}

/** Whether the row has the metric for a later step than the points. */
function isAdded(points: Point[], row: WatchedRow, name: string): boolean {
  const value = row[name];
  const last = points.at(-1)?.step ?? -1;
  if (typeof value !== 'number' || row.step <= last) return false;
  points.push({ step: row.step, value });
  return true;
}

function pointsOf(all: Map<string, Point[]>, name: string): Point[] {
  const points = all.get(name) ?? [];
  all.set(name, points);
  return points;
}

/** Mean over the last steps up to `step`. */
function meanUpTo(points: readonly Point[], step: number): number | null {
  const found = points.filter((point) => point.step <= step).slice(-stepsNow);
  return found.length === 0 ? null : meanOf(found);
}

function meanOf(points: readonly Point[]): number {
  return points.reduce((sum, { value }) => sum + value, 0) / points.length;
}
