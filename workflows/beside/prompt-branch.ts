import { present } from '../../core/present.ts';
import { layout } from '../../runs/layout.ts';
import { promptBranchEndedSignalName, promptBranchWorkflowId } from '../../core/names.ts';
import type { PolicyVersion, Prompts, RunHandle } from '../../core/rl/run-state.ts';
import type { PromptBranchSpec, RunSpec } from '../../config/run-spec.ts';
import type { PromptSearchInput, PromptTrial } from '../../core/gepa/prompt-search.ts';

/**
 * Branches of a training run that look for better prompts: when one is due, its search, and the verdict on its winner.
 */

/** Whether branches begin at a committed step; at the last one they would end with the run. */
export function areBranchesDue(
  { interval, atSteps }: Pick<PromptBranchSpec, 'interval' | 'atSteps'>,
  step: number,
  lastStep: number,
): boolean {
  if (step >= lastStep) return false;
  return atSteps.includes(step) || (interval !== null && step > 0 && step % interval === 0);
}

/** One environment's, as the workflow `optimizePrompt` takes it. It samples as the run does, from that version. */
export function promptBranch(
  {
    run,
    spec,
    policy,
    prompts,
  }: {
    readonly run: RunHandle;
    readonly spec: RunSpec & { readonly gepa: PromptBranchSpec };
    readonly policy: PolicyVersion;
    readonly prompts: Prompts;
  },
  environment: string,
  notify: { readonly workflowId: string },
): { readonly workflowId: string; readonly input: PromptSearchInput } {
  const { gepa } = spec;
  const entry = spec.environments.find(({ name }) => name === environment)!;
  const { id, name, args, sha256, python, variables, limits, budget, agent, program, sampling = spec.sampling } = entry;
  const start = prompts[name];
  const { step, replay } = policy;
  const place = layout.promptBranch(run.lineage, name, run.name, [step, replay]);
  return {
    workflowId: promptBranchWorkflowId(run.name, name, run.lineage, policy),
    input: {
      environments: [{ id, name, args, sha256, python, variables, limits, ...present({ budget }), agent, program }],
      // Attempt 0, so that all attempts of the run begin the same search.
      model: { kind: 'version', model: run.name, run: { ...run, attempt: 0 }, policy, sampling },
      reflection: {
        model: gepa.reflectionModel,
        servers: [{ model: gepa.reflectionModel, baseUrl: gepa.url, apiKeyVar: gepa.apiKeyVar, headers: {} }],
        fields: {},
      },
      maxCalls: gepa.maxCalls,
      minibatchSize: gepa.minibatchSize,
      perfectScore: gepa.perfectScore,
      stateColumns: gepa.stateColumns,
      numTrain: gepa.numTrain,
      numVal: gepa.numVal,
      numTest: gepa.numTest,
      maxConcurrent: gepa.maxConcurrent,
      seed: spec.seed,
      isClassic: false,
      initialPrompt: null,
      ...(start ? { startPrompt: start.ref } : {}),
      results: { store: run.store, name: run.name, prefix: place },
      savesResults: true,
      isSmallBudgetMeant: true, // checked with the run file already; a small dataset uses fewer
      isBranch: true,
      ...present({ budget: gepa.budget }),
      notify: { ...notify, signal: promptBranchEndedSignalName },
    },
  };
}

/** Fate of a winner: taken, offered to a person, only reported, or not better after all. */
export function verdictOn(
  { difference }: PromptTrial,
  adopt: PromptBranchSpec['adopt'],
): 'taken' | 'offered' | 'told' | 'no better' {
  if (difference === null || difference.mean <= 0) return 'no better';
  if (adopt === 'if_better') return difference.low > 0 ? 'taken' : 'no better';
  return adopt === 'ask' ? 'offered' : 'told';
}
