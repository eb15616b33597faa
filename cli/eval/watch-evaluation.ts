import { existsSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { type Client, type WorkflowHandle, WorkflowNotFoundError } from '@temporalio/client';
import type { EvaluationResult } from '../../core/eval/evaluation.ts';
import type { evaluate } from '../../workflows/evaluate.ts';
import { onOneLine } from '../output/plain-text.ts';
import type { Reporter } from '../output/reporter.ts';
import { type WatchOptions as WatchedWorkflow, watchWorkflow } from '../temporal/watch-workflow.ts';
import {
  askEvaluation,
  describeProgress,
  type EvaluationProgress,
  evaluationProgress,
  progressOf,
} from './evaluation-progress.ts';
import { quote } from '../typed/typed-command.ts';
import { besideEvaluation, namedEvaluations } from './find.ts';
import { readEvaluation } from './read.ts';
import { describeEvaluation } from './show.ts';

/** One line of `ratchet eval run --json` between its first and its last. */
export type EvaluationLine =
  | ({ readonly type: 'progress'; readonly time: string } & EvaluationProgress)
  | ({ readonly type: 'result'; readonly time: string } & EvaluationResult);

export type EvaluationReporter = Reporter<EvaluationLine>;

interface WatchOptions extends WatchedWorkflow<EvaluationLine> {
  /** The model's server ends with this command, so the evaluation cannot continue without it. */
  readonly endsWithUs: boolean;
  /** Prints no example. */
  readonly abbreviated: boolean;
  /** Command that retries the failed rollouts. */
  readonly toPlayAgain: string;
}

const pollMs = 1_000;
/** Interval between lines: progress, or the wait. */
const toldEveryMs = 10_000;
/** Share of an evaluation after which progress is printed. */
const toldShare = 0.1;

type Handle = WorkflowHandle<typeof evaluate>;

/** Reports on an evaluation until it ends or the user leaves, then on its result; returns the exit code. */
export function watchEvaluation(handle: Handle, options: WatchOptions): Promise<number> {
  const { reporter, endsWithUs } = options;
  const warned = new Set<string>();
  return watchWorkflow(handle, options, {
    noun: 'evaluation',
    endsWithUs,
    toEnd: `npx ratchet-rl temporal workflow cancel --workflow-id ${handle.workflowId}`,
    follow: (signal) => follow(handle, { reporter, warned }, signal),
    async tellResult({ results }) {
      for (const { warnings } of await looksAt(handle)) warn(warnings, { reporter, warned }); // it may have ended between two looks
      for (const result of results) {
        reporter.emit({ type: 'result', time: now(), ...result });
        await sayResult(result, options);
      }
      return results.every(({ rollouts, failed }) => failed < rollouts) ? 0 : 1;
    },
  });
}

interface Telling {
  readonly reporter: EvaluationReporter;
  /** Warnings already printed. */
  readonly warned: Set<string>;
}

function warn(warnings: readonly string[], { reporter, warned }: Telling): void {
  for (const line of warnings) {
    if (warned.has(line)) continue;
    warned.add(line);
    reporter.say(`warning: ${onOneLine(line)}`);
  }
}

async function follow(handle: Handle, telling: Telling, signal: AbortSignal): Promise<void> {
  const { reporter } = telling;
  const told = new Map<
    string,
    { readonly at: number; readonly done: number; readonly line: string; readonly trouble: string }
  >();
  while (!signal.aborted) {
    for (const progress of await looksAt(handle)) {
      warn(progress.warnings, telling);
      const before = told.get(progress.workflow);
      const line = describeProgress(progress);
      const isMore = progress.done - (before?.done ?? -1) >= Math.max(1, (progress.of ?? 0) * toldShare);
      const isSilent = Date.now() - (before?.at ?? 0) >= toldEveryMs;
      const trouble = progress.hasTrouble ? (progress.waitingOn[0] ?? '') : '';
      const isTroubled = trouble !== '' && trouble !== before?.trouble;
      if (before?.line === line && !isSilent && !isTroubled) continue;
      if (!isMore && !isSilent && !isTroubled) continue;
      told.set(progress.workflow, { at: Date.now(), done: progress.done, line, trouble });
      reporter.say(before?.line === line || trouble !== '' ? `${line}${waits(progress)}` : line);
      reporter.emit({ type: 'progress', time: now(), ...progress });
    }
    await delay(pollMs, undefined, { signal }).catch(() => undefined); // ended: the loop ends
  }
}

/** Progress of an evaluation, or of each of several; empty while no worker answers. */
async function looksAt(handle: Handle): Promise<EvaluationProgress[]> {
  const status = await askEvaluation(handle);
  if (status === null) return [];
  if (status.parts.length === 0) return [await progressOf(handle, status)];
  const { client } = handle;
  const parts = await Promise.all(
    status.waitingOn.map((workflowId) => evaluationProgress(client.getHandle<typeof evaluate>(workflowId))),
  );
  return parts.filter((part) => part !== null);
}

function waits({ waitingOn }: EvaluationProgress): string {
  return waitingOn.length === 0 ? '' : `  waits for ${waitingOn[0]!}`;
}

/** Prints the same as `ratchet eval show` when the folder can be read here. */
async function sayResult(
  result: EvaluationResult,
  { reporter, abbreviated, toPlayAgain }: WatchOptions,
): Promise<void> {
  const { folder, failed, adopted, cost, failures } = result;
  if (existsSync(folder) && result.rollouts > 0) {
    const [found] = await namedEvaluations(folder, {});
    reporter.print(await describeEvaluation(await readEvaluation(found!), { hasExample: !abbreviated }));
  }
  if (adopted > 0) reporter.say(`${result.sampled} rollouts were sampled now, ${adopted} were stored already`);
  if (cost !== null) reporter.say(`cost $${cost.toFixed(4)}`);
  if (failed > 0) {
    reporter.say(`${failed} of ${result.rollouts} rollouts have no reward; ${toPlayAgain} plays them again`);
    for (const failure of failures) reporter.say(`  ${onOneLine(failure.split('\n')[0]!)}`);
  }
  reporter.say(`results  ${folder}`);
  const beside = await besideEvaluation(folder);
  if (beside !== null) reporter.say(`compare  npx ratchet-rl eval compare ${quote(beside.other)} ${quote(beside.own)}`);
}

/** Whether a workflow of this id is at work. */
export async function isRunning(client: Client, workflowId: string): Promise<boolean> {
  return client.workflow
    .getHandle(workflowId)
    .describe()
    .then(
      ({ status }) => status.name === 'RUNNING',
      (error: unknown) => {
        if (error instanceof WorkflowNotFoundError) return false;
        throw error;
      },
    );
}

function now(): string {
  return new Date().toISOString();
}
