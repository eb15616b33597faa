import { activityInfo } from '@temporalio/activity';
import { CancelledFailure } from '@temporalio/common';
import type { ActivityExecuteInput, ActivityInboundCallsInterceptor } from '@temporalio/worker';
import { layout } from '../../runs/layout.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import { storeOf } from '../../runs/run-access.ts';

/** Longer than this is worth a line at its start; shorter ones get one line when they are over. */
const slowActivities = new Set([
  'playGroups',
  'trainBatch',
  'warmUp',
  'broadcastWeights',
  'leaseTrainer',
  'remakeVersion',
]);

/**
 * Logs this process's work for a run in `<run>/logs/attempt_N/<role>.log`: each slow action at its start and its end.
 */
export class RunLog implements ActivityInboundCallsInterceptor {
  readonly #role: string;
  #writing: Promise<void> = Promise.resolve();

  constructor(role: string) {
    this.#role = role;
  }

  async execute(
    input: ActivityExecuteInput,
    next: (input: ActivityExecuteInput) => Promise<unknown>,
  ): Promise<unknown> {
    const [first] = input.args as [{ run?: RunHandle } | undefined];
    const run = first?.run;
    if (!run?.spec) return next(input);
    const { activityType, attempt } = activityInfo();
    const what = `${activityType} ${describe(first)}${attempt > 1 ? ` (attempt ${attempt})` : ''}`;
    if (slowActivities.has(activityType)) this.#write(run, `${what}: starts`);
    const startedAt = performance.now();
    try {
      const result = await next(input);
      this.#write(run, `${what}: done in ${((performance.now() - startedAt) / 1000).toFixed(2)} s`);
      return result;
    } catch (error) {
      this.#write(run, `${what}: ${endOf(error)}`);
      throw error;
    }
  }

  /** Written in order and not awaited: a log must neither delay nor fail the work. */
  #write(run: RunHandle, text: string): void {
    const line = `${new Date().toISOString()} ${text}\n`;
    this.#writing = this.#writing
      .then(() => storeOf(run).append(layout.log(run.attempt, this.#role), line))
      .catch((error: unknown) => void process.stderr.write(`log of ${run.name}: ${String(error)}\n${line}`));
  }
}

/**
 * An ending run releases its trainer by cancelling the activity that holds it: not a failure, and logged without a
 * stack.
 */
function endOf(error: unknown): string {
  if (error instanceof CancelledFailure) return 'ended, as it was cancelled';
  return `failed: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`;
}

/** The small parts of an activity's input: `step 3, chunk 1/2`. */
function describe(input: object | undefined): string {
  const { step, round, chunk, from, policy } = (input ?? {}) as {
    step?: number;
    round?: { step: number };
    chunk?: { index: number; count: number };
    from?: { step: number } | null;
    policy?: { step: number };
  };
  return [
    step === undefined ? [] : [`step ${step}`],
    round === undefined ? [] : [`step ${round.step}`],
    chunk === undefined ? [] : [`chunk ${chunk.index + 1}/${chunk.count}`],
    from === undefined ? [] : [`from ${from?.step ?? 'the base model'}`],
    policy === undefined ? [] : [`v${policy.step}`],
  ]
    .flat()
    .join(', ');
}
