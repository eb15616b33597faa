import { AsyncLocalStorage } from 'node:async_hooks';
import type { JudgeUse } from '../../core/eval/rescore.ts';

/**
 * Counts what judges are asked on behalf of one piece of work, and refuses further questions at a limit. An answer that
 * a process still has costs nothing. A budget over several kinds of cost would be reserved and settled here.
 */
export class JudgeMeter {
  readonly #limit: Partial<JudgeUse>;
  #calls: number;
  #tokens: number;
  /** Whether a question of this work was refused. */
  isOver = false;

  /** `spent` counts against the limit. */
  constructor(limit: Partial<JudgeUse> = {}, spent: JudgeUse = { calls: 0, tokens: 0 }) {
    this.#limit = limit;
    this.#calls = spent.calls;
    this.#tokens = spent.tokens;
  }

  get use(): JudgeUse {
    return { calls: this.#calls, tokens: this.#tokens };
  }

  hasRoom(): boolean {
    const { calls = Infinity, tokens = Infinity } = this.#limit;
    return this.#calls < calls && this.#tokens < tokens;
  }

  begin(): void {
    this.#calls += 1;
  }

  settle(tokens: number): void {
    this.#tokens += tokens;
  }

  /** Judges asked in `work` are counted here, and in what it is part of. */
  measure<T>(work: () => Promise<T>): Promise<T> {
    return current.run([this, ...(current.getStore() ?? [])], work);
  }
}

/** On the global object: a user's file may have another copy of this module than the worker. */
const name = Symbol.for('ratchet.judgeMeters');
const holder = globalThis as { [name]?: AsyncLocalStorage<readonly JudgeMeter[]> };
const current = (holder[name] ??= new AsyncLocalStorage<readonly JudgeMeter[]>());

/**
 * Counts a question on all work that it is part of, before it is sent; throws at a limit. What it returns is told the
 * tokens afterwards: questions under way may go beyond a limit of tokens.
 */
export function beginQuestion(): (tokens: number) => void {
  const meters = current.getStore() ?? [];
  if (!meters.every((meter) => meter.hasRoom())) {
    for (const meter of meters) meter.isOver = true;
    throw new Error('the limit of judge calls or tokens is reached');
  }
  for (const meter of meters) meter.begin();
  return (tokens) => meters.forEach((meter) => meter.settle(tokens));
}
