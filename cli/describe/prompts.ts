import type { Client } from '@temporalio/client';
import { branchInPlayText } from '../../core/gepa/figures.ts';
import type { BranchFigures, PromptSearchStatus } from '../../core/gepa/prompt-search.ts';
import type { BranchUnderWay, PromptStanding, RunStatus } from '../../workflows/control/messages.ts';
import { retrying } from '../follow/follow-run.ts';

const patienceMs = 3_000;

/** Asks the branches that are under way. */
export async function askBranches(client: Client, { prompts }: RunStatus): Promise<BranchFigures> {
  const workflows = prompts.flatMap(({ branch }) => branch?.workflow ?? []);
  const asked = workflows.map(async (workflow) => {
    const handle = client.workflow.getHandle(workflow);
    const [figures, retries] = await Promise.all([
      client.withDeadline(Date.now() + patienceMs, () => handle.query<PromptSearchStatus>('status')).catch(() => null), // null: the other lines are printed without it
      retrying(handle),
    ]);
    return [workflow, { figures, retries: retries ?? [] }] as const;
  });
  return Object.fromEntries(await Promise.all(asked));
}

/**
 * Prompt lines of a run that searches for better ones: prompts in use, searches under way, and the result of the
 * newest.
 */
export function describePrompts(status: RunStatus, branches: BranchFigures, isRunning: boolean): string[] {
  const { prompts, branchesEnded = {}, run } = status;
  return prompts.flatMap((standing) => {
    const { environment, branch, offered } = standing;
    const ended = branchesEnded[environment];
    const how = [
      inUseText(standing),
      ...(branch === null ? [] : branchLines(branch, branches)),
      ...(offered === null
        ? []
        : [
            `a better one waits for a yes, ${offered.ref.key}: ${isRunning ? '' : 'train the run further, and '}npx ratchet-rl gepa adopt ${run} --env ${environment}`,
          ]),
      ...(ended === undefined ? [] : [`step ${ended.step}: ${ended.text}`]),
    ];
    return how.map((line, i) => (i === 0 ? `prompt        ${environment}: ${line}` : `              ${line}`));
  });
}

function inUseText({ inUse }: PromptStanding): string {
  return inUse === null ? "the environment's own" : `${inUse.ref.key}, found from v${inUse.foundAt}`;
}

function branchLines({ step, since, workflow, trial }: BranchUnderWay, branches: BranchFigures): string[] {
  const { figures = null, retries = [] } = (workflow === null ? undefined : branches[workflow]) ?? {};
  const far = figures === null || figures.maxCalls === 0 ? '' : `, ${figures.calls} of ${figures.maxCalls} calls`;
  const inPlay = branchInPlayText({ search: figures?.inPlay, trial });
  const best = figures?.bestScore == null ? '' : `, best ${figures.bestScore.toFixed(3)} on ${figures.bestCoverage}`;
  return [
    `a better one is looked for from v${step} since ${since}${far}${best}${workflow === null ? '' : ` (${workflow})`}`,
    ...(inPlay === null ? [] : [`  in play: ${inPlay}`]),
    ...retries.map((retry) => `  ${retry}`),
  ];
}
