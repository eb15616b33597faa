import { readFileSync } from 'node:fs';
import type { TrainedLine } from '../test/faults/fake-trainer.ts';
import type { WorkerLife } from './worker-processes.ts';

/** A time, milliseconds since 1970. */
export interface Window {
  readonly from: number;
  readonly to: number;
}

/** Jain's index of shares: 1 where all are equal, 1/n where one has everything. */
export function jainOf(shares: readonly number[]): number {
  const sum = shares.reduce((total, one) => total + one, 0);
  const squares = shares.reduce((total, one) => total + one * one, 0);
  return squares === 0 ? 1 : (sum * sum) / (shares.length * squares);
}

/** The steps that count: up to the newest commit, and each once, the first time that it was trained. */
export function countedSteps(lines: readonly TrainedLine[], committed: number): TrainedLine[] {
  const first = new Map<number, TrainedLine>();
  for (const line of lines) if (line.step <= committed && !first.has(line.step)) first.set(line.step, line);
  return [...first.values()];
}

/** Seconds of training within a window. */
export function busySeconds(lines: readonly TrainedLine[], { from, to }: Window): number {
  return lines.reduce((sum, line) => sum + Math.max(0, Math.min(line.until, to) - Math.max(line.from, from)), 0) / 1000;
}

export interface Speeds {
  /** Seconds of a step on a trainer. */
  readonly stepS: number;
  /** Steps a second that the rollouts of one worker are enough for. */
  readonly stepsOfWorker: number;
}

/** Steps that trainers and workers could have made in a window, by how many of each were alive at each moment. */
export function stepsPossible(
  { trainers, workers }: { readonly trainers: readonly WorkerLife[]; readonly workers: readonly WorkerLife[] },
  { stepS, stepsOfWorker }: Speeds,
  { from, to }: Window,
): number {
  const changes = [...trainers, ...workers].flatMap(({ readyAt, endedAt }) => [readyAt, endedAt]);
  const times = [from, ...changes.filter((at) => at > from && at < to).toSorted((a, b) => a - b), to];
  const alive = (lives: readonly WorkerLife[], at: number): number =>
    lives.filter(({ readyAt, endedAt }) => readyAt <= at && endedAt > at).length;
  return times.slice(1).reduce((steps, end, i) => {
    const at = times[i]!;
    return steps + ((end - at) / 1000) * Math.min(alive(trainers, at) / stepS, alive(workers, at) * stepsOfWorker);
  }, 0);
}

/** Seconds of a window in which trainers trained nothing: between two steps of one run, and while a trainer goes from one run to another. */
export interface Idle {
  readonly within_run_s: number;
  readonly steps: number;
  readonly between_runs_s: number;
  readonly hand_overs: number;
}

export function idleOf(lines: readonly (TrainedLine & { readonly run: string })[], { from, to }: Window): Idle {
  const idle = { within_run_s: 0, steps: 0, between_runs_s: 0, hand_overs: 0 };
  for (const pid of new Set(lines.map((line) => line.pid))) {
    const own = lines.filter((line) => line.pid === pid).toSorted((a, b) => a.from - b.from);
    for (const [i, line] of own.entries()) {
      const before = own[i - 1];
      if (before === undefined || before.until < from || line.from > to) continue;
      const seconds = (line.from - before.until) / 1000;
      if (before.run === line.run) {
        idle.within_run_s += seconds;
        idle.steps += 1;
      } else {
        idle.between_runs_s += seconds;
        idle.hand_overs += 1;
      }
    }
  }
  return idle;
}

/** Seconds in which trainers had not begun their first step yet, or had ended their last one. */
export function idleAtEnds(
  lines: readonly TrainedLine[],
  trainers: readonly WorkerLife[],
  { from, to }: Window,
): number {
  return trainers.reduce((sum, { pid, readyAt, endedAt }) => {
    const own = lines.filter((line) => line.pid === pid);
    const [began, ended] = [Math.max(readyAt, from), Math.min(endedAt, to)];
    const first = Math.min(ended, ...own.map((line) => Math.max(line.from, began)));
    const last = Math.max(began, ...own.map((line) => Math.min(line.until, ended)));
    return sum + Math.max(0, first - began) / 1000 + (own.length === 0 ? 0 : Math.max(0, ended - last) / 1000);
  }, 0);
}

/** How many machines there are from a second on. */
export interface TraceRow {
  readonly second: number;
  readonly trainers: number;
  readonly workers: number;
}

/** Reads `second,trainers,workers` below a line of names, in the order of seconds; the last row ends the trace. */
export function readTrace(file: string): TraceRow[] {
  const rows = readFileSync(file, 'utf8').trim().split('\n').slice(1).map((line) => line.split(',').map(Number)); // prettier-ignore
  return rows.map(([second, trainers, workers], i) => {
    const before = rows[i - 1]?.[0] ?? -1;
    if (![second, trainers, workers].every((one) => Number.isInteger(one) && one! >= 0) || second! <= before)
      throw new Error(`${file}: line ${i + 2}: expected second,trainers,workers, later than the line before`);
    return { second: second!, trainers: trainers!, workers: workers! };
  });
}
