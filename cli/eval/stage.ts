import type { Client } from '@temporalio/client';
import { taskQueues } from '../../core/names.ts';
import type { EvaluatedEnvironment, EvaluationResult, EvaluationsInput } from '../../core/eval/evaluation.ts';
import { variablesFor } from '../../backends/environments/variables.ts';
import type { evaluate } from '../../workflows/evaluate.ts';
import { linesOfStore } from '../../backends/store/index.ts';
import { withProcesses } from '../processes.ts';
import { grantNamed, namedByEnvironments } from '../../backends/configs/grant.ts';
import { namedByModels } from './named-models.ts';
import { otherThanAsked } from './same-input.ts';
import { type EvaluationTeller, watchEvaluation } from './watch-evaluation.ts';

/** Where evaluations of this command are carried out, until it is closed. */
export interface EvaluationStage {
  readonly client: Client;
  readonly interrupted: AbortSignal;
  /** Starts them, or attaches to those of that name, and tells of them until they end; null where they were left or failed. */
  evaluate(workflowId: string, input: EvaluationsInput): Promise<readonly EvaluationResult[] | null>;
}

/** Starts the stack of this folder where none runs, does `work`, and ends what it started. Returns an exit code. */
export async function onStage(
  {
    storeUri,
    environments,
    teller,
  }: {
    readonly storeUri: string;
    /** What is evaluated: the workers that are started see its variables. */
    readonly environments: readonly EvaluatedEnvironment[];
    readonly teller: EvaluationTeller;
  },
  work: (stage: EvaluationStage) => Promise<number>,
): Promise<number> {
  const projectFolder = process.cwd();
  const needs = { storeUri, workersSee: [], environmentsSee: environments.map(variablesFor) };
  const quiet = { say: teller.say, part: () => '' };
  const exitCode = await withProcesses(needs, quiet, ({ client, stack, interrupted, gone }) =>
    work({
      client,
      interrupted: interrupted.signal,
      async evaluate(workflowId, input): Promise<readonly EvaluationResult[] | null> {
        grantNamed(projectFolder, [
          ...namedByEnvironments(input.inputs.map(({ environment }) => environment)),
          ...(await namedByModels(input.inputs.map(({ model }) => model))),
          ...input.inputs.flatMap(({ results }) => linesOfStore(results.store)),
        ]);
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
          teller.say(
            `${workflowId} is under way for another command; this command's evaluation follows when it has ended`,
          );
        const exitCode = await watchEvaluation(handle, {
          // One table for all of them instead of a page for each.
          teller: { ...teller, print: () => undefined },
          hasOwnStack: stack !== null,
          endsWithUs: false,
          interrupted: interrupted.signal,
          gone,
          abbreviated: true,
          toPlayAgain: 'the same command',
        });
        const isLeft = interrupted.signal.aborted || gone.aborted;
        if (others.length > 0) return isLeft ? null : this.evaluate(workflowId, input);
        return exitCode === 0 ? (await handle.result()).results : null;
      },
    }),
  );
  return exitCode ?? 130;
}
