import { type FailureCount, whereItFailed } from '../rl/failures.ts';
import type { FailedOutcome, Outcome, RolloutRow } from '../rl/rollout/rollout.ts';
import type { EvaluationTally } from './evaluation.ts';
import { passThreshold } from './pass-at-k.ts';

export const emptyTally: EvaluationTally = {
  rollouts: 0,
  failed: 0,
  rewards: 0,
  metrics: {},
  usage: {},
  usageCount: 0,
  truncated: 0,
  policyFailures: 0,
  examplesByRight: [],
  causes: {},
};

/** Tallies rows of whole examples, `[example][rollout]`, in the given order, after those of `before`. */
export function tallyOf(
  groups: readonly (readonly RolloutRow[])[],
  rolloutsPerExample: number,
  before: EvaluationTally = emptyTally,
): EvaluationTally {
  let { rollouts, failed, rewards, usageCount, truncated, policyFailures } = before;
  const metrics: Record<string, [number, number]> = {};
  for (const [name, [sum, count]] of Object.entries(before.metrics)) metrics[name] = [sum, count];
  const usage: Record<string, number> = { ...before.usage };
  const causes: Partial<Record<FailedOutcome, FailureCount>> = { ...before.causes };
  const examplesByRight = Array.from(
    { length: rolloutsPerExample + 1 },
    (_, right) => before.examplesByRight[right] ?? 0,
  );
  for (const group of groups) {
    let [rewarded, right] = [0, 0];
    for (const row of group) {
      rollouts += 1;
      const { reward } = row;
      if (typeof row['token_usage'] === 'object' && row['token_usage'] !== null) {
        usageCount += 1;
        for (const [key, tokens] of Object.entries(row['token_usage'])) {
          if (typeof tokens === 'number') usage[key] = (usage[key] ?? 0) + tokens;
        }
      }
      if (typeof reward !== 'number') {
        failed += 1;
        const outcome = outcomeOf(row) as FailedOutcome;
        const known = causes[outcome];
        causes[outcome] = {
          count: (known?.count ?? 0) + 1,
          first:
            known?.first ?? whereItFailed(typeof row['long_error_chain'] === 'string' ? row['long_error_chain'] : ''),
        };
        continue;
      }
      rewarded += 1;
      rewards += reward;
      right += Number(reward >= passThreshold);
      truncated += Number(row['is_truncated'] === true);
      policyFailures += Number(outcomeOf(row) === 'policy_failure');
      for (const [name, value] of Object.entries((row['metrics'] ?? {}) as Record<string, unknown>)) {
        if (typeof value !== 'number') continue;
        const sum = (metrics[name] ??= [0, 0]);
        sum[0] += value;
        sum[1] += 1;
      }
    }
    if (rewarded === rolloutsPerExample) examplesByRight[right]! += 1;
  }
  return { rollouts, failed, rewards, metrics, usage, usageCount, truncated, policyFailures, examplesByRight, causes };
}

/** The sum of both. */
export function addTallies(a: EvaluationTally, b: EvaluationTally): EvaluationTally {
  const metrics: Record<string, readonly [number, number]> = { ...a.metrics };
  for (const [name, [sum, count]] of Object.entries(b.metrics)) {
    const [knownSum, knownCount] = metrics[name] ?? [0, 0];
    metrics[name] = [knownSum + sum, knownCount + count];
  }
  const usage: Record<string, number> = { ...a.usage };
  for (const [key, tokens] of Object.entries(b.usage)) usage[key] = (usage[key] ?? 0) + tokens;
  const causes: Partial<Record<FailedOutcome, FailureCount>> = { ...a.causes };
  for (const [outcome, { count, first }] of Object.entries(b.causes) as [FailedOutcome, FailureCount][]) {
    const known = causes[outcome];
    causes[outcome] = { count: (known?.count ?? 0) + count, first: known?.first ?? first };
  }
  const length = Math.max(a.examplesByRight.length, b.examplesByRight.length);
  return {
    rollouts: a.rollouts + b.rollouts,
    failed: a.failed + b.failed,
    rewards: a.rewards + b.rewards,
    metrics,
    usage,
    usageCount: a.usageCount + b.usageCount,
    truncated: a.truncated + b.truncated,
    policyFailures: a.policyFailures + b.policyFailures,
    examplesByRight: Array.from(
      { length },
      (_, right) => (a.examplesByRight[right] ?? 0) + (b.examplesByRight[right] ?? 0),
    ),
    causes,
  };
}

/** Mean reward of rewarded rollouts; null without any. */
export function averageReward({ rollouts, failed, rewards }: EvaluationTally): number | null {
  return rollouts === failed ? null : rewards / (rollouts - failed);
}

export function averageMetrics({ metrics }: EvaluationTally): Record<string, number> {
  return Object.fromEntries(Object.entries(metrics).map(([name, [sum, count]]) => [name, sum / count]));
}

/** The share of rollouts with an error: those without a reward, and those in which the policy itself failed. */
export function averageError({ rollouts, failed, policyFailures }: EvaluationTally): number {
  return rollouts === 0 ? 0 : (failed + policyFailures) / rollouts;
}

/** Mean tokens of a rollout; null without data. */
export function averageUsage({ usage, usageCount }: EvaluationTally): Record<string, number> | null {
  if (usageCount === 0) return null;
  return Object.fromEntries(Object.entries(usage).map(([key, tokens]) => [key, tokens / usageCount]));
}

/** US dollars for all of its tokens; null without prices or token counts. */
export function costOf(
  { usage, usageCount }: EvaluationTally,
  prices: { readonly input: number; readonly output: number } | undefined,
): { readonly input: number; readonly output: number } | null {
  if (prices === undefined || usageCount === 0) return null;
  const perMillion = 1e6;
  return {
    input: ((usage['input_tokens'] ?? 0) * prices.input) / perMillion,
    output: ((usage['output_tokens'] ?? 0) * prices.output) / perMillion,
  };
}

/** verifiers' own rows name an exception in place of an outcome. */
function outcomeOf(row: RolloutRow): Outcome {
  const { ratchet } = row;
  const said = typeof ratchet === 'object' && ratchet !== null && !Array.isArray(ratchet) ? ratchet['outcome'] : null;
  return typeof said === 'string' ? (said as Outcome) : 'infra_failure';
}
