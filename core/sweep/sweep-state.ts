import type { RungDecision, RungResult } from './halving.ts';
import { rungSteps } from './halving.ts';
import { present } from '../present.ts';
import type { MeasuredSweepRun, SweepInput, SweepResult, SweepRung, SweepRunStatus, SweepStatus } from './sweep.ts';
import type { SweepRun } from './table.ts';

/** A run of a sweep with how it stands. */
export interface StandingRun extends SweepRun {
  state: SweepRunStatus['state'];
  step: number;
  value: number | null;
  failure?: string;
  changed?: readonly string[] | undefined;
}

/** A sweep for continue-as-new: anything missing here is lost. */
export interface CarriedSweep {
  readonly continued: { readonly input: SweepInput; readonly state: CarriedSweepState };
}

/** What one execution of a sweep hands to the next. */
interface CarriedSweepState {
  readonly decided: readonly SweepRung[];
  readonly runs: readonly SweepRunStatus[];
  readonly pausedBecause: string | null;
}

/** How a sweep stands: its rungs, and how far each of its runs is. */
export class SweepState {
  pausedBecause: string | null = null;
  readonly #input: SweepInput;
  readonly #steps: readonly number[];
  readonly #runs: readonly StandingRun[];
  #decided: readonly SweepRung[] = [];

  constructor(input: SweepInput, carried: CarriedSweepState | null) {
    this.#input = input;
    this.#steps = rungSteps(input.maxSteps, input.halving);
    const before = new Map(carried?.runs.map((run) => [run.name, run]));
    const fresh = { state: 'waiting', step: 0, value: null } as const;
    this.#runs = input.runs.map((run) => ({ ...run, ...(before.get(run.name) ?? fresh) }));
    if (carried === null) return;
    this.#decided = carried.decided;
    this.pausedBecause = carried.pausedBecause;
  }

  get name(): string {
    return this.#input.name;
  }

  /** The step that runs are trained to. */
  get rungStep(): number {
    return this.#steps[Math.min(this.#decided.length, this.#steps.length - 1)]!;
  }

  get isLastRung(): boolean {
    return this.#decided.length === this.#steps.length - 1;
  }

  /** Runs that have not begun on the rung. */
  get waiting(): readonly StandingRun[] {
    return this.#runs.filter(({ state }) => state === 'waiting');
  }

  begin(run: StandingRun): void {
    run.state = 'training';
  }

  /** It is begun again in the next execution. */
  putBack(run: StandingRun): void {
    run.state = 'waiting';
  }

  measured(run: StandingRun, { step, value, changed }: MeasuredSweepRun & { readonly step: number }): void {
    run.state = 'at its rung';
    run.step = step;
    run.value = value;
    run.changed = changed;
  }

  /** Steps of a run that is not at its rung yet. */
  madeSoFar(run: StandingRun, step: number): void {
    run.step = step;
  }

  failed(run: StandingRun, failure: string): void {
    run.state = 'failed';
    run.value = null;
    run.failure = failure;
  }

  stopped(run: StandingRun, step: number): void {
    run.state = 'stopped';
    run.step = step;
    run.value = null;
  }

  /** Of the rows that are still in the sweep. */
  results(): RungResult[] {
    const inPlay = this.#rowsInPlay();
    return this.#runs.filter(({ row }) => inPlay.has(row)).map(({ row, seed, value }) => ({ row, seed, value }));
  }

  /** Takes the decision of the rung; returns whether it was the last one. */
  decide({ ranking, survivors }: RungDecision): boolean {
    const isLast = this.isLastRung;
    this.#decided = [...this.#decided, { step: this.rungStep, ranking, survivors }];
    for (const run of this.#runs) {
      if (run.state !== 'at its rung') continue;
      if (isLast) run.state = 'finished';
      else run.state = survivors.includes(run.row) ? 'waiting' : 'dropped';
    }
    return isLast;
  }

  carry(): CarriedSweepState {
    return { decided: this.#decided, runs: this.status().runs, pausedBecause: this.pausedBecause };
  }

  status(): SweepStatus {
    const isOver = this.#decided.length === this.#steps.length;
    const { name, metric, rows, runs, maxSteps } = this.#input;
    return {
      name,
      phase: isOver ? 'finished' : this.pausedBecause === null ? 'training' : 'paused',
      pausedBecause: isOver ? null : this.pausedBecause,
      metric,
      rows,
      rungSteps: this.#steps,
      rung: Math.min(this.#decided.length, this.#steps.length - 1),
      decided: this.#decided,
      runs: this.#runs.map(statusOf),
      steps: { made: this.#runs.reduce((sum, { step }) => sum + step, 0), full: runs.length * maxSteps },
    };
  }

  result(): SweepResult {
    return { ...this.status(), best: this.#decided.at(-1)?.ranking[0]?.row ?? null };
  }

  #rowsInPlay(): ReadonlySet<number> {
    return new Set(this.#decided.at(-1)?.survivors ?? this.#runs.map(({ row }) => row));
  }
}

/** Without its settings: the rows have them. */
function statusOf({ name, row, seed, state, step, value, failure, changed }: StandingRun): SweepRunStatus {
  return { name, row, seed, state, step, value, ...present({ failure, changed }) };
}
