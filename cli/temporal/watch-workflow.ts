import type { Workflow, WorkflowHandle, WorkflowResultType } from '@temporalio/client';
import { type Ending, endingOf, type Leaving } from '../follow/ending.ts';
import { isTakenOver } from '../follow/follow-run.ts';
import { resultOf } from '../../workers/temporal/result-of.ts';
import { rootMessage } from '../../workers/temporal/root-message.ts';
import type { EndLine, Reporter } from '../output/reporter.ts';

export interface WatchOptions<Line> extends Leaving {
  readonly reporter: Reporter<Line>;
  /** The processes are this command's: they end with it. */
  readonly hasOwnStack: boolean;
}

/** Wording and callbacks for one kind of workflow. */
interface Story<T extends Workflow> {
  /** Name for users: evaluation, search. */
  readonly noun: string;
  /** Reports progress until the signal. */
  readonly follow: (signal: AbortSignal) => Promise<void>;
  /** Reports the result; returns the exit code. */
  readonly tellResult: (result: WorkflowResultType<T>) => Promise<number>;
  /** Command that ends the workflow after the user has left. */
  readonly toEnd: string;
  /** The workflow cannot continue without this command, and is cancelled when the user leaves. */
  readonly endsWithUs?: boolean;
}

/** Reports on an evaluation or a search until it ends or the user leaves, then on its result; returns the exit code. */
export async function watchWorkflow<T extends Workflow, Line>(
  handle: WorkflowHandle<T>,
  options: WatchOptions<Line>,
  story: Story<T>,
): Promise<number> {
  const { reporter, interrupted, gone } = options;
  reporter.emit({ type: 'started', time: now(), workflow: handle.workflowId, attached: !options.hasOwnStack });
  const ended = new AbortController();
  const left = AbortSignal.any([interrupted, gone]);
  const following = story.follow(AbortSignal.any([ended.signal, left]));
  const end = (outcome: EndLine['outcome'], exitCode: number, message: string | null): number => {
    if (message !== null) reporter.say(message);
    reporter.emit({ type: 'end', time: now(), outcome, exit_code: exitCode, message });
    return exitCode;
  };
  try {
    const result = await endOf(handle, left);
    ended.abort();
    await following;
    return end('finished', await story.tellResult(result), null);
  } catch (error) {
    ended.abort();
    await following;
    const ending = endingOf(error, options);
    if (ending === 'interrupted' && story.endsWithUs) await handle.cancel().catch(() => undefined); // it is done for anyway, once its server ends
    const staysBehind = !options.hasOwnStack && !story.endsWithUs;
    return end(...describeEnding(ending, { error, staysBehind, ...story }));
  }
}

/** Result of the workflow; after an upgrade, of the new execution. */
async function endOf<T extends Workflow>(handle: WorkflowHandle<T>, left: AbortSignal): Promise<WorkflowResultType<T>> {
  for (let watched = handle; ; watched = handle.client.getHandle<T>(handle.workflowId)) {
    try {
      return await resultOf(watched, left);
    } catch (error) {
      if (left.aborted || !(await isTakenOver(watched, error))) throw error;
    }
  }
}

function describeEnding(
  ending: Ending,
  {
    noun,
    error,
    staysBehind,
    toEnd,
  }: { readonly noun: string; readonly error: unknown; readonly staysBehind: boolean; readonly toEnd: string },
): [EndLine['outcome'], number, string] {
  const kept = 'the same command continues it';
  switch (ending) {
    case 'interrupted':
      return staysBehind
        ? ['detached', 0, `detached. The ${noun} continues; the same command comes back to it. To end it: ${toEnd}`]
        : ['stopped', 130, `stopped. What is finished is stored: ${kept}`];
    case 'gone':
      return ['lost', 1, `the processes this ${noun} used have ended; ${kept}`];
    case 'unknown':
      return [
        'lost',
        1,
        `this Temporal server does not know the ${noun} (any more); its results are still there: ${kept}`,
      ];
    case 'cancelled':
      return [
        'stopped',
        1,
        `the ${noun} was cancelled; what is finished is stored: the same command continues from there`,
      ];
    case 'failed':
      return ['failed', 1, `the ${noun} failed: ${rootMessage(error)}`];
    default:
      return ending satisfies never;
  }
}

function now(): string {
  return new Date().toISOString();
}
