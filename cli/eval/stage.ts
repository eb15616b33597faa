import type { Client } from '@temporalio/client';
import { taskQueues } from '../../core/names.ts';
import type { EvaluatedEnvironment, EvaluationResult, EvaluationsInput } from '../../core/eval/evaluation.ts';
import type { evaluate } from '../../workflows/evaluate.ts';
import { withProcesses } from '../start/processes.ts';
import { grantNamed } from '../../load/grants/grant.ts';
import { typedByPlan, type TypedOfPlan } from './subject/named-models.ts';
import { otherThanAsked } from './same-input.ts';
import { type EvaluationReporter, watchEvaluation } from './watch-evaluation.ts';

/** Processes and client that carry out the evaluations of one command, until closed. */
export interface EvaluationStage {
  readonly client: Client;
  readonly interrupted: AbortSignal;
  /**
   * Starts evaluations, or attaches to running ones of that id, and reports on them until they end; null when
   * interrupted or failed.
   */
  evaluate(
    workflowId: string,
    input: EvaluationsInput,
    typed: TypedOfPlan,
  ): Promise<readonly EvaluationResult[] | null>;
}

/** Starts this folder's stack if none runs, does `work`, and ends what it started. Returns an exit code. */
export async function onStage(
  {
    storeUri,
    environments,
    reporter,
  }: {
    readonly storeUri: string;
    /** Environments to evaluate: workers started here receive their variables. */
    readonly environments: readonly EvaluatedEnvironment[];
    readonly reporter: EvaluationReporter;
  },
  work: (stage: EvaluationStage) => Promise<number>,
): Promise<number> {
  const projectFolder = process.cwd();
  const needs = { storeUri, workersSee: [], environments };
  const quiet = { say: reporter.say, part: () => '' };
  const exitCode = await withProcesses(needs, quiet, ({ client, stack, interrupted, gone }) =>
    work({
      client,
      interrupted: interrupted.signal,
      async evaluate(workflowId, input, typed): Promise<readonly EvaluationResult[] | null> {
        grantNamed(projectFolder, typedByPlan(input.inputs, typed));
        const handle = await client.workflow.start<typeof evaluate>('evaluate', {
          workflowId,
          taskQueue: taskQueues.orchestrator,
          args: [input],
          workflowIdConflictPolicy: 'USE_EXISTING',
          workflowIdReusePolicy: 'ALLOW_DUPLICATE',
          workflowTaskTimeout: '5s',
          staticSummary: input.title,
        });
        const others = await otherThanAsked(client, workflowId, input);
        if (others.length > 0)
          reporter.say(
            `${workflowId} is under way for another command; this command's evaluation follows when it has ended`,
          );
        const exitCode = await watchEvaluation(handle, {
          // One table for all evaluations instead of a page for each.
          reporter: { ...reporter, print: () => undefined },
          hasOwnStack: stack !== null,
          endsWithUs: false,
          interrupted: interrupted.signal,
          gone,
          abbreviated: true,
          toPlayAgain: 'the same command',
        });
        const isLeft = interrupted.signal.aborted || gone.aborted;
        if (others.length > 0) return isLeft ? null : this.evaluate(workflowId, input, typed);
        return exitCode === 0 ? (await handle.result()).results : null;
      },
    }),
  );
  return exitCode ?? 130;
}
