import {
  ApplicationFailure,
  type QueryDefinition,
  setHandler,
  type SignalDefinition,
  workflowInfo,
} from '@temporalio/workflow';
import type { UpdateDefinition } from '@temporalio/common';
import { received, type Shape, whole } from '../../core/shape.ts';
import { signalShapes, updateExamples, updateShapes } from './message-shapes.ts';
import { refusal } from './refusal.ts';

/*
 * Handlers for messages to a workflow. A handler that throws a TypeError fails the workflow task, which Temporal then retries for ever. So
 * each message is checked before its handler sees it. A wrong signal is ignored and shown; a wrong update or query is refused.
 */

const problemsShown = 3;

/** Handles a signal. An invalid one is ignored, and `say` gets the reason. */
export function onSignal<Args extends unknown[], Name extends keyof typeof signalShapes>(
  signal: SignalDefinition<Args, Name> | { readonly name: Name },
  handler: (...args: Args) => void,
  say: (problem: string) => void,
): void {
  const { name } = signal;
  setHandler(signal as SignalDefinition<Args>, (...args: Args) => {
    const problems = problemsOf(signalShapes[name], args);
    if (problems.length === 0) handler(...args);
    else say(`the signal ${name} was ignored: ${problems.join('; ')}`);
  });
}

/** Handles an update that is well-formed and that `validator` accepts. */
export function onUpdate<Args extends unknown[]>(
  update: UpdateDefinition<string, Args>,
  handler: (...args: NoInfer<Args>) => string | Promise<string>,
  validator: (...args: NoInfer<Args>) => void = () => undefined,
): void {
  const name = update.name as keyof typeof updateShapes;
  setHandler(update, handler, {
    validator: (...args: Args) => {
      const problem = problemOfUpdate(name, args);
      if (problem !== null) throw refusal(problem);
      validator(...args);
    },
  });
}

/** Answers a query for events after a sequence number. */
export function onEventsQuery<Result>(
  query: QueryDefinition<Result, [after: number]>,
  since: (after: number) => Result,
) {
  setHandler(query, (after = 0) => {
    const problems = whole.problems(after, 'after');
    if (problems.length > 0)
      throw ApplicationFailure.nonRetryable(`${query.name}: ${problems.join('; ')}. For example: 0`, 'InputInvalid');
    return since(after);
  });
}

function problemsOf(shapes: readonly Shape[], args: readonly unknown[]): string[] {
  const found = shapes.flatMap((shape, i) => shape.problems(args[i], shapes.length === 1 ? '' : `argument ${i + 1}`));
  return found.slice(0, problemsShown);
}

function problemOfUpdate(name: keyof typeof updateShapes, args: readonly unknown[]): string | null {
  const shapes: readonly (readonly [string, Shape])[] = Object.entries(updateShapes[name]);
  const example = updateExamples[name];
  const typed = `npx ratchet-rl temporal workflow update execute --workflow-id ${workflowInfo().workflowId} --name ${name}${example === null ? '' : ` --input '${example}'`}`;
  const extra = args.slice(shapes.length).filter((one) => one !== undefined && one !== null);
  if (extra.length > 0) {
    const takes = shapes.length === 0 ? 'no input' : 'one input';
    return `${name}: expected ${takes}, received ${extra.length === 1 ? `${received(extra[0])}${shapes.length === 0 ? '' : ' beside it'}` : `${args.length}`}. For example: ${typed}`;
  }
  const problems = shapes.flatMap(([of, shape], i) => shape.problems(args[i], of));
  return problems.length === 0
    ? null
    : `${name}: ${problems.slice(0, problemsShown).join('; ')}. For example: ${typed}`;
}
