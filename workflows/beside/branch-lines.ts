import type { PromptTrial } from '../../core/gepa/prompt-search.ts';
import type { PromptBranch, PromptRef } from '../../core/rl/run-state.ts';

/** Event lines about the branches that look for better prompts. */

/** Verdict on a winner, see `verdictOn` in `prompt-branch.ts`. */
type Verdict = 'taken' | 'offered' | 'told' | 'no better';

/** Results of the winner and the prompt in use in their trial, and the verdict. */
export function verdictLine(of: {
  readonly branch: PromptBranch;
  readonly trial: PromptTrial;
  /** Name of the version that both were tried on. */
  readonly version: string;
  readonly verdict: Verdict;
  readonly run: string;
}): string {
  const { branch, trial, version, verdict, run } = of;
  const { environment, step } = branch;
  const { before, after, examples, difference, prompt } = trial;
  const [was, is] = [before, after].map((score) => score?.toFixed(3) ?? 'none');
  const interval =
    difference === null
      ? ''
      : ` (${signed(difference.mean)}, 95 % ${signed(difference.low)} … ${signed(difference.high)})`;
  const next = {
    taken: 'it is in use for groups that are leased from now on',
    offered: `to use it: npx ratchet-rl gepa adopt ${run} --env ${environment}`,
    told: `the prompt in use stays (adopt = "never"): ${prompt.key}`,
    'no better': 'the prompt in use stays',
  }[verdict];
  return `gepa: a prompt for ${environment} from v${step}, played on ${version} and ${examples} examples that the search had not seen: reward ${is}, the prompt in use ${was}${interval}; ${next}`;
}

export function foundNothingLine(environment: string, version: string, calls: number): string {
  return `gepa: no better prompt for ${environment} from ${version} in ${calls} calls; it stays`;
}

export function adoptedLine(environment: string, { foundAt }: PromptRef): string {
  return `gepa: the prompt for ${environment} that was found from v${foundAt} is in use for groups that are leased from now on, as asked`;
}

export function branchFailedLine(run: string, { environment, step }: PromptBranch, reason: string): string {
  return `gepa: the branch of v${step} on ${environment} failed, and the run continues without it: ${reason} Once that is repaired: npx ratchet-rl gepa branch ${run} --env ${environment}`;
}

/** Why a run leaves its branches behind. */
export type LeftBecause = 'end' | 'failure' | 'rewind';

export function branchCancelledLine({ environment, step }: PromptBranch, because: LeftBecause): string {
  const why = {
    end: 'the run ends. Its paid answers are stored: trained further, the run continues the search',
    failure: 'the run failed. Its paid answers are stored: trained again, the run continues the search',
    rewind: 'the run continues from an earlier step',
  }[because];
  return `gepa: the branch of v${step} on ${environment} is cancelled: ${why}`;
}

/** Printed when a run ends with an unanswered offer. */
export function unansweredLine(run: string, environment: string, { ref, foundAt }: PromptRef): string {
  return `gepa: no answer came: the prompt for ${environment} that was found from v${foundAt} is not in use (${ref.key}); a run that is trained further still offers it: npx ratchet-rl gepa adopt ${run} --env ${environment}`;
}

/** Servers that hold one version serve only the branch, or load versions back and forth. */
export function oneVersionLine(environment: string, version: string, isAlone: boolean): string {
  const what = isAlone
    ? 'no training rollout is sampled while it runs'
    : 'they are brought back and forth between it and the training ([eval] when = "beside")';
  return `gepa: the inference servers sample from one version at a time, and ${version} is searched from on ${environment}: ${what}`;
}

function signed(value: number): string {
  return `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(3)}`;
}
