import { differencesOf } from '../core/eval/same-evaluation.ts';
import type { EvaluationPlace, EvaluationResult, StoredEvaluation } from '../core/eval/evaluation.ts';
import { measuredRow, rewardRow } from '../core/eval/measured-row.ts';
import { judgeRegression, type Regression, rewardsByExample } from '../core/eval/regression.ts';
import { layout, lineageOf, stepOf } from '../core/layout.ts';
import { measuredMetrics } from '../core/rl/metrics.ts';
import type { RolloutRow } from '../core/rl/rollout.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import { appendMetrics, readMetrics } from '../backends/metrics/jsonl.ts';
import { decodeJson, decodeRows } from '../backends/store/objects.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import type { Inference } from '../backends/inference/index.ts';
import { withHeartbeat } from './heartbeat.ts';
import { createReleaseVersion } from './hold-version.ts';
import { evaluationKeys } from './evaluation/evaluation-store.ts';
import { storeOf, stretchesOf } from './run-access.ts';

export interface EvaluationSummary {
  readonly environment: string;
  readonly step: number;
  readonly rollouts: number;
  /** Sampled as [eval.sampling] or [sampling] says, and greedily. A reward is null where every rollout failed. */
  readonly sampled: { readonly reward: number | null; readonly exact: number | null };
  readonly greedy: { readonly reward: number | null; readonly exact: number | null };
  /** Of the sampled rollouts; absent where each example had one. */
  readonly passAtK?: Readonly<Record<string, number>>;
  /** One line for each cause of failed rollouts, of both; absent where none failed. */
  readonly failures?: readonly string[];
  /** What the model says: the first held-out example, sampled. Its reward is null where that rollout failed. */
  readonly says: {
    readonly prompt: string;
    readonly completion: string;
    readonly answer: string;
    readonly reward: number | null;
  };
}

export interface RecordInput {
  readonly run: RunHandle;
  readonly policy: PolicyVersion;
  /** Who kept the version at the servers for it. */
  readonly holder: string;
  readonly sampled: EvaluationResult;
  /** null where the sampling is greedy already. */
  readonly greedy: EvaluationResult | null;
}

export interface RecordedEvaluation {
  readonly summary: EvaluationSummary;
  /** Beside the best version before it; null where there is none to compare with. */
  readonly regression: Regression | null;
}

/**
 * Writes an evaluation's row into the run's metrics, holds it against the best before it, and lets go of the version at the servers.
 * From stored objects, so twice is once.
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
  const rows = await rowsOf(sampled.place);
  const regression = await regressionOf(run, policy, sampled, rows);
  const own = measuredMetrics(rows.map(measuredRow));
  const summary = summaryOf(policy, sampled, greedy);
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
    ...Object.fromEntries(
      Object.entries(numbers).flatMap(([name, value]) => (value === null ? [] : [[`eval/${environment}/${name}`, value]])),
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

/** The best of the versions before this one that led to it and were evaluated in the same way. */
async function regressionOf(
  run: RunHandle,
  policy: PolicyVersion,
  { environment, place }: EvaluationResult,
  rows: readonly RolloutRow[],
): Promise<Regression | null> {
  const own = await storedAt(run, place.prefix);
  const stretches = await stretchesOf(run);
  const metrics = (await readMetrics(storeOf(run)))
    .filter(({ lineage, step }) => {
      const stretch = stretches.find((one) => one.lineage === lineage);
      return stretch !== undefined && step <= stretch.upTo && step < policy.step;
    })
    .flatMap((row) => {
      const reward = row[`eval/${environment}/reward/mean`];
      return typeof reward === 'number' ? [{ step: row.step, lineage: row.lineage, reward }] : [];
    })
    .sort((a, b) => b.reward - a.reward || a.step - b.step);
  for (const { lineage, step } of metrics) {
    const prefix = await folderOf(run, lineage, environment, step);
    const stored = prefix === null ? null : await storedAt(run, prefix);
    if (prefix === null || stored === null || own === null || !isComparable(stored, own)) continue;
    const best = { step, rewards: rewardsByExample((await rowsOf({ ...place, prefix })).map(rewardRow)) };
    const evaluated = { step: policy.step, rewards: rewardsByExample(rows.map(rewardRow)) };
    const judged = judgeRegression(evaluated, [best], [run.name, environment]);
    if (judged !== null) return judged;
  }
  return null;
}

/** Whether the two differ in nothing but the version and the number of examples. */
function isComparable(before: StoredEvaluation, now: StoredEvaluation): boolean {
  const differences = differencesOf(before.input, now.input, { before: 0, now: 0 });
  return differences.every((line) => line.startsWith('policy '));
}

/** Of a step, whichever replay of it was evaluated; null where its results are gone. */
async function folderOf(run: RunHandle, lineage: string, environment: string, step: number): Promise<string | null> {
  const all = layout.evaluations(lineage, environment, run.name);
  const keys = await storeOf(run).list(all);
  const folders = new Set(keys.map((key) => key.slice(0, key.indexOf('/', all.length) + 1)));
  return [...folders].find((folder) => stepOf(folder) === step && /\/step_\d+(?:\.r\d+)?\/$/.test(folder)) ?? null;
}

async function storedAt(run: RunHandle, prefix: string): Promise<StoredEvaluation | null> {
  const place = { store: run.store, name: run.name, prefix };
  const attempts = evaluationKeys.attempts(place);
  const numbers = (await storeOf(run).list(attempts)).map((key) => Number.parseInt(key.slice(attempts.length), 10));
  if (numbers.length === 0) return null;
  const key = evaluationKeys.attempt(place, Math.max(...numbers));
  const bytes = await storeOf(run).read(key);
  return bytes && decodeJson<StoredEvaluation>(bytes, key);
}

async function rowsOf(place: EvaluationPlace): Promise<RolloutRow[]> {
  const key = evaluationKeys.results(place);
  return decodeRows<RolloutRow>((await storeOf(place).read(key)) ?? Buffer.of(), key);
}
