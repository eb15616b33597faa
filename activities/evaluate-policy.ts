import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { layout } from '../core/layout.ts';
import { generateSittingsMax } from '../core/limits.ts';
import { countOutcomes, describeFailures } from '../core/rl/failures.ts';
import { rolloutMetrics } from '../core/rl/metrics.ts';
import { resultRow, resultsMetadata } from '../core/rl/results.ts';
import type { Rollout, ScoredRollout } from '../core/rl/rollout.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import type { EvalSpec, RunSpec } from '../core/spec/run-spec.ts';
import { environments as allEnvironments } from '../backends/environments/index.ts';
import type { Environment } from '../backends/environments/types.ts';
import { failedRollout } from '../backends/environments/score.ts';
import { scoreGroup } from '../backends/environments/score-group.ts';
import { appendMetrics } from '../backends/metrics/jsonl.ts';
import { decodeJson, encodeJson, putRows } from '../backends/store/objects.ts';
import type { GenerateDependencies } from './generate-rollouts.ts';
import { withHeartbeat } from './heartbeat.ts';
import { playRollout } from './play-rollout.ts';
import { samplePlace, samplePolicy, turnSeed } from './sample-policy.ts';
import { resultsOf } from './results.ts';
import { requireCommit, servedPolicy, specOf, storeOf } from './run-access.ts';
import { Standstill } from './standstill.ts';
import { policyTokenizer } from './stored-template.ts';

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
  if (stored) return summaryIn(decodeJson<EvaluationSummary>(stored, `${prefix}metadata.json`));
  const startedAt = performance.now();

  const { environments = allEnvironments } = dependencies;
  const environment = await environments.open(entry);
  const served = await servedPolicy(run, policy);
  const inference = dependencies.inference(spec);
  const tokenizer = await policyTokenizer(run, spec, { folder: served.folder, open: dependencies.tokenizer });
  const { evalDataset } = environment;
  const count = entry.numExamples < 0 ? evalDataset.length : Math.min(entry.numExamples, evalDataset.length);

  const { generationTimeoutS } = spec;
  const usual = spec.eval?.sampling ?? spec.sampling;
  const playAll = async (temperature: number, rolloutsPerExample: number): Promise<ScoredRollout[]> => {
    const sampling = { ...usual, temperature };
    const standstill = new Standstill(generateSittingsMax * generationTimeoutS * 1000);
    const over = new AbortController();
    const stop = AbortSignal.any([signal, standstill.signal, over.signal]);
    setMaxListeners(0, stop); // every rollout listens
    const pass = randomUUID();
    const play = async (exampleId: number, index: number): Promise<Rollout> => {
      const place = { group: 0, index, exampleId };
      const playing = playRollout({
        environments,
        entry,
        dataset: 'evalDataset',
        place,
        together: { group: `${pass}/${exampleId}`, size: rolloutsPerExample },
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
      standstill.moved();
      return rollout;
    };
    const scoring = {
      timeoutMs: generationTimeoutS * 1000,
      dataset: 'evalDataset',
      onScored: () => standstill.moved(),
      signal: stop,
    } as const;
    const playExample = async (_: unknown, exampleId: number): Promise<ScoredRollout[]> => {
      const playing = Array.from({ length: rolloutsPerExample }, (_, index) => play(exampleId, index));
      const example = evalDataset.at(exampleId);
      if (environment.judge) return scoreGroup(environment, example, await Promise.all(playing), scoring);
      const each = playing.map(async (rollout) => scoreGroup(environment, example, [await rollout], scoring));
      return (await Promise.all(each)).flat();
    };
    try {
      return (await Promise.all(Array.from({ length: count }, playExample))).flat();
    } finally {
      standstill.end();
      over.abort(); // of others, where one failed
    }
  };
  const sampled = await playAll(usual.temperature, entry.rolloutsPerExample);
  const greedy = await playAll(0, 1);
  const rows = sampled.map((rollout) => {
    const example = evalDataset.at(rollout.exampleId);
    const { record } = rollout;
    return resultRow(rollout, { example, record, tools: environment.tools, place: { step: policy.step } });
  });
  await putRows(store, `${prefix}results.jsonl`, rows);
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
  const { rolloutsPerExample } = entry;
  const seconds = (performance.now() - startedAt) / 1000;
  const about = resultsOf(spec, entry, environment, { sampling: usual, rolloutsPerExample, seconds });
  const groups = Array.from({ length: count }, (_, i) =>
    sampled.slice(i * rolloutsPerExample, (i + 1) * rolloutsPerExample),
  );
  await store.put(`${prefix}metadata.json`, encodeJson({ ...resultsMetadata(groups, about), ...summary }));
  return summary;
}

/** Beside it in the file lies what verifiers says of an evaluation. */
function summaryIn({
  environment,
  step,
  rollouts,
  sampled,
  greedy,
  failures,
  says,
}: EvaluationSummary): EvaluationSummary {
  return { environment, step, rollouts, sampled, greedy, ...(failures ? { failures } : {}), says };
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
