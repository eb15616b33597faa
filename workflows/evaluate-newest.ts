import {
  ApplicationFailure,
  executeChild,
  getExternalWorkflowHandle,
  ParentClosePolicy,
  setCurrentDetails,
  upsertMemo,
  workflowInfo,
} from '@temporalio/workflow';
import { plainMarkdown } from '../core/markdown.ts';
import type { EvaluationResult } from '../core/eval/evaluation.ts';
import { describeRegression, type Regression } from '../core/eval/regression.ts';
import { memoKeys, versionName } from '../core/names.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import type { EvalSpec } from '../config/run-spec.ts';
import { evaluationParts, memoOfPoolHere } from './options.ts';
import { evaluate } from './evaluate.ts';
import { onceItsIdIsFree } from './beside/child-work.ts';
import { readEvaluateNewestInput } from './inputs.ts';
import { type FoundRegression, regressionFoundSignal } from './control/messages.ts';

/** Evaluations to carry out at each scheduled time. */
export interface EvaluateNewestInput {
  /** A file of evaluations; null = the run's own `[eval]`. */
  readonly config: string | null;
  /** Run whose newest sealed checkpoint is evaluated, and its store; null = the model that the file names. */
  readonly run: { readonly name: string; readonly store: string } | null;
  readonly onRegression: EvalSpec['onRegression'];
}

export interface EvaluatedNewest {
  /** null = the file's model. */
  readonly step: number | null;
  readonly results: readonly Pick<
    EvaluationResult,
    'environment' | 'avgReward' | 'passAtK' | 'rollouts' | 'sampled' | 'folder'
  >[];
  /** One line for each environment that got worse. */
  readonly regressions: readonly string[];
}

/**
 * Evaluates the newest checkpoint whenever a Temporal Schedule asks for it, and compares it with the best earlier one.
 * A checkpoint evaluated before costs nothing; a worse one raises a flag, here and at its run, and pauses or stops the
 * run if requested.
 */
export async function evaluateNewest(...given: [EvaluateNewestInput]): Promise<EvaluatedNewest> {
  const input = readEvaluateNewestInput(given);
  const { workflowId } = workflowInfo();
  const { config, run } = input;
  const child = {
    workflowId: `${workflowId}.evaluations`,
    parentClosePolicy: ParentClosePolicy.REQUEST_CANCEL,
    ...memoOfPoolHere(),
  };
  if (run === null) {
    const { results } = await onceItsIdIsFree(() => executeChild(evaluate, { ...child, args: [{ config: config! }] }));
    return judged(results.map((result) => ({ result, version: null })));
  }
  const planned = await evaluationParts.planNewest.executeWithOptions({ summary: run.name }, [{ run, config }]);
  const { results } = await onceItsIdIsFree(() =>
    executeChild(evaluate, {
      ...child,
      args: [
        {
          inputs: planned.map(({ input: one }) => one),
          names: planned.map(({ name }) => name),
          title: `the newest checkpoint of ${run.name}`,
        },
      ],
    }),
  );
  return judged(results.map((result, i) => ({ result, version: versionIn(planned[i]!.input.model) })));

  async function judged(
    evaluated: readonly {
      readonly result: EvaluationResult;
      readonly version: { readonly run: RunHandle; readonly policy: PolicyVersion } | null;
    }[],
  ): Promise<EvaluatedNewest> {
    const lines: string[] = [];
    for (const { result, version } of evaluated) {
      const { environment, model } = result;
      const regression = await evaluationParts.judgeEvaluation.executeWithOptions({ summary: environment }, [
        { result, version, environments: evaluated.length },
      ]);
      if (regression?.isWorse !== true) continue;
      const name = version === null ? model : versionName(version.policy);
      lines.push(describeRegression(environment, name, regression));
      if (version) await tellRun({ environment, version: name, step: version.policy.step, regression });
    }
    if (lines.length > 0) upsertMemo({ [memoKeys.regression]: lines });
    const lost = evaluated.filter(({ result }) => result.failed === result.rollouts);
    if (lost.length > 0) throw nothingCameOf(lost.map(({ result }) => result));
    const step = evaluated[0]?.version?.policy.step ?? null;
    setCurrentDetails(
      [...lines, ...evaluated.map(({ result }) => lineOf(result))].map((line) => `- ${plainMarkdown(line)}`).join('\n'),
    );
    return { step, results: evaluated.map(({ result }) => smallOf(result)), regressions: lines };
  }

  /** An ended run needs no signal: the flag is recorded here. */
  async function tellRun(found: Omit<FoundRegression, 'action'> & { readonly regression: Regression }): Promise<void> {
    await getExternalWorkflowHandle(run!.name)
      .signal(regressionFoundSignal, { ...found, action: input.onRegression })
      .catch(() => undefined);
  }
}

/** The next time would fail the same way, so the schedule pauses. */
function nothingCameOf(lost: readonly EvaluationResult[]): ApplicationFailure {
  const each = lost.map(({ environment, rollouts, failures, folder }) => {
    return `all ${rollouts} rollouts of ${environment} failed (${folder}): ${failures.join('; ')}`;
  });
  return ApplicationFailure.nonRetryable(each.join('\n'), 'EvaluationFailed');
}

function versionIn(model: EvaluationModel) {
  return model.kind === 'version' ? { run: model.run, policy: model.policy } : null;
}
type EvaluationModel = Awaited<ReturnType<typeof evaluationParts.planNewest>>[number]['input']['model'];

function lineOf({ environment, model, avgReward, rollouts }: EvaluationResult): string {
  return `${environment} with ${model}: ${avgReward?.toFixed(3) ?? '–'} over ${rollouts} rollouts`;
}

function smallOf({ environment, avgReward, passAtK, rollouts, sampled, folder }: EvaluationResult) {
  return { environment, avgReward, passAtK, rollouts, sampled, folder };
}
