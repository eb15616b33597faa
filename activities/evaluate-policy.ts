import { setMaxListeners } from 'node:events';
import { layout } from '../core/layout.ts';
import { generateSittingsMax } from '../core/limits.ts';
import { countOutcomes, describeFailures } from '../core/rl/failures.ts';
import { rolloutMetrics } from '../core/rl/metrics.ts';
import type { ScoredRollout } from '../core/rl/rollout.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import type { EvalSpec, RunSpec } from '../core/spec/run-spec.ts';
import { environments as allEnvironments } from '../backends/environments/index.ts';
import type { Environment } from '../backends/environments/types.ts';
import { failedRollout, scoreRollout } from '../backends/environments/score.ts';
import { appendMetrics } from '../backends/metrics/jsonl.ts';
import { decodeJson, encodeJson, putRows } from '../backends/store/objects.ts';
import type { GenerateDependencies } from './generate-rollouts.ts';
import { withHeartbeat } from './heartbeat.ts';
import { playRollout } from './play-rollout.ts';
import { samplePlace, samplePolicy, turnSeed } from './sample-policy.ts';
import { requireCommit, servedPolicy, specOf, storeOf } from './run-access.ts';
import { Standstill } from './standstill.ts';

export interface EvaluationSummary {
  readonly environment: string;
  readonly step: number;
  readonly rollouts: number;
  /** Sampled as [eval.sampling] or [sampling] says, and greedily. A reward is null where every rollout failed. */
  readonly sampled: { readonly reward: number | null; readonly exact: number | null };
  readonly greedy: { readonly reward: number | null; readonly exact: number | null };
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

/**
 * Evaluates one version on held-out examples, sampled and greedily. An evaluation that is stored is not done again. Rollouts that
 * are left when none has ended for as long as a training rollout may take in all (`generation_timeout` of each sitting) are
 * given up as `timeout`: an environment that hangs keeps no run from its end.
 */
export const createEvaluatePolicy =
  (dependencies: GenerateDependencies) =>
  async (input: {
    readonly run: RunHandle;
    readonly step: number;
    /** What took the committed version's place, where something did. */
    readonly policy?: PolicyVersion;
  }): Promise<EvaluationSummary[]> =>
    withHeartbeat(async (signal) => {
      const { run, step } = input;
      const spec = await specOf(run);
      const policy = input.policy ?? (await requireCommit(run, step)).commit.policy;
      // Side by side, each stored when it is done: one that is slow or fails keeps no other from its end.
      const evaluations = (spec.eval?.environments ?? []).map((entry) =>
        evaluateOne(dependencies, { run, policy }, spec, entry, signal),
      );
      await Promise.allSettled(evaluations);
      return Promise.all(evaluations);
    });

async function evaluateOne(
  dependencies: GenerateDependencies,
  { run, policy }: { readonly run: RunHandle; readonly policy: PolicyVersion },
  spec: RunSpec,
  entry: EvalSpec['environments'][number],
  signal: AbortSignal,
): Promise<EvaluationSummary> {
  const store = storeOf(run);
  const prefix = layout.evaluation(run.lineage, entry.name, run.name, policy.step);
  const stored = await store.read(`${prefix}metadata.json`);
  if (stored) return decodeJson<EvaluationSummary>(stored, `${prefix}metadata.json`);

  const { environments = allEnvironments } = dependencies;
  const environment = await environments.open(entry);
  const served = await servedPolicy(run, policy);
  const inference = dependencies.inference(spec);
  const tokenizer = await dependencies.tokenizer(served.folder);
  const { evalDataset } = environment;
  const count = entry.numExamples < 0 ? evalDataset.length : Math.min(entry.numExamples, evalDataset.length);

  const { generationTimeoutS } = spec;
  const usual = spec.eval?.sampling ?? spec.sampling;
  const playAll = async (temperature: number, rolloutsPerExample: number): Promise<ScoredRollout[]> => {
    const sampling = { ...usual, temperature };
    const places = Array.from({ length: count * rolloutsPerExample }, (_, i) => ({
      exampleId: i % count,
      index: Math.floor(i / count),
    }));
    const standstill = new Standstill(generateSittingsMax * generationTimeoutS * 1000);
    const stop = AbortSignal.any([signal, standstill.signal]);
    setMaxListeners(0, stop); // every rollout listens
    const play = async ({ exampleId, index }: (typeof places)[number]): Promise<ScoredRollout> => {
      const place = { group: 0, index, exampleId };
      const playing = playRollout({
        environments,
        entry,
        dataset: 'evalDataset',
        place,
        signal: stop,
        // Not keyed by the step: the same random numbers at every evaluation make the curve smoother.
        openPolicy: () =>
          samplePolicy(
            {
              inference,
              tokenizer,
              served,
              sampling,
              signal: stop,
              place: samplePlace([served.name, 'eval', entry.name, exampleId], index),
            },
            (turn) => turnSeed('eval', spec.seed, entry.name, exampleId, index, turn),
          ),
      });
      const rollout = await playing.catch((reason: unknown) => {
        if (signal.aborted || !standstill.isOver) throw reason;
        return failedRollout({ ...place, turns: [] }, 'timeout', gaveUp(generationTimeoutS));
      });
      const timeoutMs = generationTimeoutS * 1000;
      const scored = await scoreRollout(environment, evalDataset.at(exampleId), rollout, { timeoutMs });
      standstill.moved();
      return scored;
    };
    try {
      return await Promise.all(places.map(play));
    } finally {
      standstill.end();
    }
  };
  const sampled = await playAll(usual.temperature, entry.rolloutsPerExample);
  const greedy = await playAll(0, 1);
  await putRows(store, `${prefix}results.jsonl`, sampled);
  const summary: EvaluationSummary = {
    environment: entry.name,
    step: policy.step,
    rollouts: sampled.length,
    sampled: headline(sampled),
    greedy: headline(greedy),
    ...failuresIn([...sampled, ...greedy]),
    says: saying(environment, sampled[0]!),
  };
  await appendMetrics(store, {
    step: policy.step,
    lineage: run.lineage,
    [`eval/${entry.name}/policy_version`]: policy.step,
    ...Object.fromEntries(
      Object.entries(rolloutMetrics(sampled)).map(([name, value]) => [`eval/${entry.name}/${name}`, value]),
    ),
    ...(summary.greedy.reward === null ? {} : { [`eval/${entry.name}/greedy/reward/mean`]: summary.greedy.reward }),
    ...(summary.greedy.exact === null
      ? {}
      : { [`eval/${entry.name}/greedy/metrics/exact_match`]: summary.greedy.exact }),
  });
  // Last: an evaluation whose summary is there is not done again, and its metrics row must not be missing then.
  await store.put(`${prefix}metadata.json`, encodeJson(summary));
  return summary;
}

function gaveUp(generationTimeoutS: number): string {
  const seconds = generateSittingsMax * generationTimeoutS;
  return `Not finished when the evaluation was given up: none of its rollouts had ended for ${seconds} s (${generateSittingsMax} × generation_timeout).`;
}

function failuresIn(rollouts: readonly ScoredRollout[]): Pick<EvaluationSummary, 'failures'> {
  const failures = describeFailures(countOutcomes(rollouts));
  return failures.length === 0 ? {} : { failures };
}

function headline(rollouts: readonly ScoredRollout[]): { reward: number | null; exact: number | null } {
  const metrics = rolloutMetrics(rollouts);
  return { reward: metrics['reward/mean'] ?? null, exact: metrics['metrics/exact_match'] ?? null };
}

function saying(environment: Environment, rollout: ScoredRollout): EvaluationSummary['says'] {
  const example = environment.evalDataset.at(rollout.exampleId);
  return {
    prompt: example.prompt.at(-1)?.content ?? '',
    completion: rollout.turns.at(-1)?.text ?? '',
    answer: example.answer,
    reward: rollout.reward,
  };
}
