import type { EvaluationResult } from '../core/eval/evaluation.ts';
import { measuredRow, promptOf, usedByRows } from '../core/eval/measured-row.ts';
import type { Regression } from '../core/eval/regression.ts';
import { lineageOf } from '../runs/layout.ts';
import { costMetrics } from '../core/rl/cost.ts';
import { measuredMetrics } from '../core/rl/metrics.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import { appendMetrics } from '../runs/metrics/metrics.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { Inference } from '../backends/inference/index.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import { createReleaseVersion } from './hold-version.ts';
import { regressionOf, judgedRows } from './evaluation/judge-evaluation.ts';
import { specOf, storeOf } from '../runs/run-access.ts';

export interface EvaluationSummary {
  readonly environment: string;
  readonly step: number;
  readonly rollouts: number;
  /** The system prompt that a branch found, and whether there is a version before to compare with under it; absent: the environment's own. */
  readonly prompt?: { readonly sha256: string; readonly isHeldAgainst: boolean };
  /** Sampled as in [eval.sampling] or [sampling], and greedily. A reward is null when every rollout failed. */
  readonly sampled: { readonly reward: number | null; readonly exact: number | null };
  readonly greedy: { readonly reward: number | null; readonly exact: number | null };
  /** From sampled rollouts; absent with one rollout per example. */
  readonly passAtK?: Readonly<Record<string, number>>;
  /** One line for each cause of failed rollouts, in both; absent when none failed. */
  readonly failures?: readonly string[];
  /** The model's answer to the first held-out example, sampled. Its reward is null if that rollout failed. */
  readonly says: {
    readonly prompt: string;
    readonly completion: string;
    readonly answer: string;
    readonly reward: number | null;
  };
}

interface RecordInput {
  readonly run: RunHandle;
  readonly policy: PolicyVersion;
  /** Name under which the servers held the version. */
  readonly holder: string;
  readonly sampled: EvaluationResult;
  /** null when the sampling is greedy already. */
  readonly greedy: EvaluationResult | null;
}

export interface RecordedEvaluation {
  readonly summary: EvaluationSummary;
  /** Comparison with the best earlier version under the same prompt; null without one. */
  readonly regression: Regression | null;
}

/**
 * Writes an evaluation's row into the run's metrics, compares it with the best earlier one, and releases the version at
 * the servers. Idempotent, since it reads stored objects.
 */
export const createRecordEvaluation =
  (inference: (spec: RunSpec) => Inference) =>
  async (input: RecordInput): Promise<RecordedEvaluation> =>
    withHeartbeat(async () => {
      const recorded = await recordRow(input);
      await createReleaseVersion(inference)(input);
      return recorded;
    });

async function recordRow({ run, policy, sampled, greedy }: RecordInput): Promise<RecordedEvaluation> {
  const store = storeOf(run);
  const { environment, rolloutsPerExample, passAtK } = sampled;
  const rows = await judgedRows(sampled.place);
  const { cost, eval: evaluating } = await specOf(run);
  const regression = await regressionOf(run, policy, sampled, Math.max(1, evaluating?.environments.length ?? 1));
  const own = measuredMetrics(rows.map(measuredRow));
  const prompt = rows[0] && promptOf(rows[0]);
  const under = prompt === undefined ? {} : { prompt: { sha256: prompt, isHeldAgainst: regression !== null } };
  const summary = { ...summaryOf(policy, sampled, greedy), ...under };
  const all = greedy === null ? rows : [...rows, ...(await judgedRows(greedy.place))];
  const numbers: Record<string, number | null> = {
    policy_version: policy.step,
    ...own,
    'greedy/reward/mean': summary.greedy.reward,
    'greedy/metrics/exact_match': summary.greedy.exact,
    // prime-rl's names.
    [`avg@${rolloutsPerExample}`]: own['reward/mean'] ?? null,
    ...Object.fromEntries(Object.entries(passAtK).map(([k, value]) => [`pass@${k}`, value])),
    ...(regression === null
      ? {}
      : { 'vs_best/difference': regression.difference.mean, 'vs_best/is_worse': Number(regression.isWorse) }),
  };
  await appendMetrics(store, {
    step: policy.step,
    lineage: lineageOf(policy.weights),
    ...costMetrics(usedByRows(all), cost, `eval/${environment}/`),
    ...Object.fromEntries(
      Object.entries(numbers).flatMap(([name, value]) =>
        value === null ? [] : [[`eval/${environment}/${name}`, value]],
      ),
    ),
  });
  return { summary, regression };
}

function summaryOf(
  policy: PolicyVersion,
  sampled: EvaluationResult,
  greedy: EvaluationResult | null,
): EvaluationSummary {
  const headline = ({ avgReward, avgMetrics }: EvaluationResult) => ({
    reward: avgReward,
    exact: avgMetrics['exact_match'] ?? null,
  });
  const failures = [...sampled.failures, ...(greedy?.failures ?? []).map((line) => `greedy: ${line}`)];
  const { says } = sampled;
  return {
    environment: sampled.environment,
    step: policy.step,
    rollouts: sampled.rollouts,
    sampled: headline(sampled),
    greedy: headline(greedy ?? sampled),
    ...(Object.keys(sampled.passAtK).length === 0 ? {} : { passAtK: sampled.passAtK }),
    ...(failures.length === 0 ? {} : { failures }),
    says: {
      prompt: says?.prompt ?? '',
      completion: says?.completion ?? '',
      answer: says?.answer ?? '',
      reward: says?.reward ?? null,
    },
  };
}
