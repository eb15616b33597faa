import {
  ApplicationFailure,
  condition,
  defineQuery,
  setCurrentDetails,
  setHandler,
  workflowInfo,
} from '@temporalio/workflow';
import type { JudgeUse, RescoredChunk, RescoreHandle, RescoreInput, RescoreResult, RescoreStatus } from '../core/eval/rescore.ts'; // prettier-ignore
import { rescoreChunksAtOnce } from '../core/limits.ts';
import { rescoreAsked, rescored } from '../core/eval/rescore-asked.ts';
import { recordingItsCancel } from './beside/recorded.ts';
import { describeRescore } from './control/rescore-lines.ts';
import { readRescoreInput } from './inputs.ts';
import { evaluationChunks, evaluationParts } from './options.ts';

const rescoreStatusQuery = defineQuery<RescoreStatus>('status');

/**
 * Other rewards for stored rollouts: opens the rescore, scores chunk after chunk, closes it. No policy is asked. What
 * is killed continues: a group that was scored is not scored again.
 */
export async function rescore(...given: [RescoreInput]): Promise<RescoreResult> {
  const input = readRescoreInput(given);
  return recordingItsCancel(rescored(input), () => scoreAgain(input), rescoreAsked(input));
}

async function scoreAgain(input: RescoreInput): Promise<RescoreResult> {
  const { workflowId, runId } = workflowInfo();
  const startedAt = Date.now();
  const budget = new JudgeBudget(input.limit ?? {});
  const open = new Set<number>();
  const done: RescoredChunk[] = [];
  let phase: RescoreStatus['phase'] = 'opening';
  let handle: RescoreHandle | null = null;
  const sum = (read: (chunk: RescoredChunk) => number): number => done.reduce((total, chunk) => total + read(chunk), 0);
  const status = (): RescoreStatus => ({
    name: handle?.name ?? '',
    rubric: handle?.rubric ?? '',
    phase,
    chunks: { done: done.length, of: handle?.chunks ?? null },
    rollouts: {
      done: sum(({ rollouts }) => rollouts),
      changed: sum(({ changed }) => changed),
      failed: sum(({ failed }) => failed),
    },
    judge: budget.spent,
    waitingOn: [...open].map((chunk) => `chunk ${chunk + 1} of ${handle?.chunks ?? 0}`),
    warnings: handle?.warnings ?? [],
  });
  const tell = (next: RescoreStatus['phase']): void => {
    phase = next;
    setCurrentDetails(describeRescore(status()));
  };
  setHandler(rescoreStatusQuery, status);
  tell('opening');

  handle = await evaluationParts.openRescore({ input });
  const opened = handle;
  tell('rescoring');
  await sideBySide(opened.chunks, async (chunk) => {
    open.add(chunk);
    try {
      done.push(await rescoreWhole(chunk));
    } finally {
      open.delete(chunk);
    }
    tell('rescoring');
  });

  tell('closing');
  const seconds = (Date.now() - startedAt) / 1000;
  const result = await evaluationParts.closeRescore({ handle: opened, judge: budget.spent, seconds });
  tell('finished');
  return result;

  /** With a limit, a chunk asks for more once what it was allowed is spent, until nothing is left. */
  async function rescoreWhole(chunk: number): Promise<RescoredChunk> {
    const summary = `chunk ${chunk + 1} of ${opened.chunks}`;
    for (;;) {
      const allowed = await budget.reserve(chunk);
      if (allowed === 'over') throw overBudget(input, budget.spent);
      const asked = { handle: opened, chunk, request: `${workflowId}/${runId}`, ...(allowed && { allowed }) };
      const result = await evaluationChunks(1).rescoreChunk.executeWithOptions({ summary }, [asked]);
      budget.settle(chunk, result.use);
      if (!result.isOver) return result;
    }
  }
}

/** Divides what judges may be asked among chunks: reserved before a chunk begins, settled when it has ended. */
class JudgeBudget {
  readonly #limit: Partial<JudgeUse>;
  /** By chunk: what it has spent, and what it may spend in all while it is under way. */
  readonly #spent = new Map<number, JudgeUse>();
  readonly #reserved = new Map<number, JudgeUse>();

  constructor(limit: Partial<JudgeUse>) {
    this.#limit = limit;
  }

  get spent(): JudgeUse {
    return [...this.#spent.values()].reduce(addUse, { calls: 0, tokens: 0 });
  }

  /** Null: no limit. Waits for what others have reserved, if nothing else is left. */
  async reserve(chunk: number): Promise<JudgeUse | null | 'over'> {
    if (this.#limit.calls === undefined && this.#limit.tokens === undefined) return null;
    let share = this.#share();
    // Another chunk may take what came back before this one goes on.
    while (share === null && this.#reserved.size > 0) {
      await condition(() => this.#share() !== null || this.#reserved.size === 0);
      share = this.#share();
    }
    if (share === null) return 'over';
    this.#reserved.set(chunk, share);
    return addUse(share, this.#spent.get(chunk) ?? { calls: 0, tokens: 0 });
  }

  settle(chunk: number, use: JudgeUse): void {
    this.#reserved.delete(chunk);
    this.#spent.set(chunk, use);
  }

  /** A part of what is left, since others begin beside it; null: nothing is left. */
  #share(): JudgeUse | null {
    const { calls, tokens } = [...this.#reserved.values()].reduce(addUse, this.spent);
    const room = Math.max(1, rescoreChunksAtOnce - this.#reserved.size);
    const share = {
      calls: Math.ceil(((this.#limit.calls ?? Number.MAX_SAFE_INTEGER) - calls) / room),
      tokens: Math.ceil(((this.#limit.tokens ?? Number.MAX_SAFE_INTEGER) - tokens) / room),
    };
    return share.calls > 0 && share.tokens > 0 ? share : null;
  }
}

function addUse(a: JudgeUse, b: JudgeUse): JudgeUse {
  return { calls: a.calls + b.calls, tokens: a.tokens + b.tokens };
}

function overBudget({ limit = {} }: RescoreInput, { calls, tokens }: JudgeUse): ApplicationFailure {
  const most = [
    ...(limit.calls === undefined ? [] : [`${limit.calls} judge calls`]),
    ...(limit.tokens === undefined ? [] : [`${limit.tokens} judge tokens`]),
  ].join(' and ');
  return ApplicationFailure.nonRetryable(
    `The limit of ${most} is reached (${calls} calls, ${tokens} tokens). What was scored is stored; the same command continues, with as much again.`,
    'LimitReached',
  );
}

/** Starts 0 … count−1 in order. Throws the first failure once those under way have ended. */
async function sideBySide(count: number, work: (i: number) => Promise<void>): Promise<void> {
  const failures: unknown[] = [];
  let next = 0;
  const lane = async (): Promise<void> => {
    while (next < count && failures.length === 0) {
      await work(next++).catch((reason: unknown) => void failures.push(reason));
    }
  };
  await Promise.all(Array.from({ length: Math.min(count, rescoreChunksAtOnce) }, lane));
  if (failures.length > 0) throw failures[0];
}
