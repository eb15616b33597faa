import { present } from '../../core/present.ts';
import { generateAttemptsMax, rolloutAttemptsMax } from '../../core/limits.ts';
import { layout, lineageOf } from '../layout.ts';
import { evaluationEndedSignalName, evaluationWorkflowId } from '../../core/names.ts';
import type { PolicyVersion, Prompts, RunHandle } from '../../core/rl/run-state.ts';
import type { EvalSpec, RunSpec } from '../../config/run-spec.ts';
import type { EvaluationInput } from '../../core/eval/evaluation.ts';

/** Identity of the evaluations that a run does while it trains. */

/** An environment of `[eval]`. Fields that a stored spec may lack have their defaults. */
type Entry = EvalSpec['environments'][number];

/** `greedy` is one rollout at temperature 0, besides what `[eval]` asks for. */
export type EvaluationVariant = 'sampled' | 'greedy';

/** Whether the sampled evaluation is greedy already. */
export function isGreedy(spec: RunSpec, entry: Entry): boolean {
  return samplingOf(spec, entry).temperature === 0;
}

/** One version on one environment, as the workflow `evaluate` takes it. */
export function onlineEvaluation(
  {
    run,
    spec,
    policy,
    prompts = {},
  }: {
    readonly run: RunHandle;
    readonly spec: RunSpec;
    readonly policy: PolicyVersion;
    /** Prompts in the version's commit. */
    readonly prompts?: Prompts | undefined;
  },
  entry: Entry,
  variant: EvaluationVariant,
  notify: { readonly workflowId: string } | null,
): { readonly workflowId: string; readonly input: EvaluationInput } {
  const isSampled = variant === 'sampled';
  const sampling = samplingOf(spec, entry);
  const { id, name, args, sha256, python, program, variables, limits, budget, systemPrompt, agent, skipFirst } = entry;
  const lineage = lineageOf(policy.weights);
  const { step, replay = 0 } = policy;
  const prompt = isTrainedOn(spec, entry) ? prompts[name]?.ref : undefined;
  const suffix = isSampled ? '' : variant;
  const prefix = layout.evaluation(lineage, name, run.name, step, { replay, variant: suffix });
  return {
    workflowId: evaluationWorkflowId(run.name, name, { lineage, step, replay }, suffix),
    input: {
      environment: {
        id,
        name,
        args,
        sha256,
        python,
        program,
        variables,
        limits,
        ...present({ budget }),
        systemPrompt,
        agent,
      },
      model: {
        kind: 'version',
        model: run.name,
        run,
        policy,
        sampling: isSampled ? sampling : { ...sampling, temperature: 0 },
      },
      numExamples: entry.numExamples,
      skipExamples: skipFirst,
      rolloutsPerExample: isSampled ? entry.rolloutsPerExample : 1,
      seed: spec.seed,
      shuffleSeed: null,
      maxConcurrent: -1,
      independentScoring: false,
      maxRetries: rolloutAttemptsMax - 1,
      standstillS: generateAttemptsMax * spec.generationTimeoutS,
      results: { store: run.store, name: run.name, prefix },
      ...(prompt ? { systemPrompt: prompt } : {}),
      about: { step, ...(prompt ? { prompt: prompt.sha256 } : {}) },
      ...present({ budget: spec.eval?.budget }),
      ...(notify ? { notify: { ...notify, signal: evaluationEndedSignalName } } : {}),
    },
  };
}

function samplingOf(spec: RunSpec, entry: Entry): RunSpec['sampling'] {
  return entry.sampling ?? spec.eval?.sampling ?? spec.sampling;
}

/** Whether an environment of that name and id is trained on, so that the prompt found for it applies here. */
function isTrainedOn({ environments }: RunSpec, { id, name }: Entry): boolean {
  return environments.some((trained) => trained.name === name && trained.id === id);
}
