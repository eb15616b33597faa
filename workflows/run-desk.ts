import {
  ApplicationFailure,
  condition,
  setCurrentDetails,
  setHandler,
  upsertMemo,
  upsertSearchAttributes,
  workflowInfo,
} from '@temporalio/workflow';
import { defineSearchAttributeKey } from '@temporalio/common';
import { evalsKept, eventsKept, longPauseMs, trendKept } from '../core/limits.ts';
import { memoKeys } from '../core/names.ts';
import type { LostWork } from '../core/rl/lost-work.ts';
import {
  type AskedOfRun,
  nothingAsked,
  type Overrides,
  type PolicyVersion,
  type RewindRequest,
  type RunHandle,
} from '../core/rl/run-state.ts';
import { versionName } from '../core/names.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import { localWaits } from './local-waits.ts';
import {
  eventsQuery,
  pauseUpdate,
  resumeUpdate,
  rewindUpdate,
  setLearningRateUpdate,
  statusQuery,
  stopAfterUpdate,
  viewQuery,
  type EvalFigures,
  type RunEvent,
  type RunStatus,
  type StepTrend,
} from './messages.ts';
import { ProgressOfSteps } from './step-progress.ts';

const attributes = {
  run: defineSearchAttributeKey('RatchetRun', 'KEYWORD'),
  step: defineSearchAttributeKey('RatchetStep', 'INT'),
  reward: defineSearchAttributeKey('RatchetReward', 'DOUBLE'),
};

/** What the desk carries over continue-as-new. */
export interface DeskState {
  readonly events: readonly RunEvent[];
  readonly pausedBecause: string | null;
  readonly isPausedByPerson: boolean;
  /** For curves; absent where an older version of Ratchet carried it. */
  readonly figures?: DeskFigures;
}

export interface DeskFigures {
  /** When the attempt began, ISO time. */
  readonly since: string;
  readonly latest: RunEvent['values'];
  readonly trend: readonly StepTrend[];
  readonly evals: readonly EvalFigures[];
}

export interface DeskOptions {
  readonly handle: Pick<RunHandle, 'lineage' | 'attempt'>;
  readonly spec: Pick<RunSpec, 'name' | 'model' | 'environments' | 'maxSteps' | 'learningRate'>;
  /** Where its files are, for people. */
  readonly store: string;
  readonly warnings: readonly string[];
  readonly hasSearchAttributes: boolean;
  readonly overrides: Overrides;
  readonly events: readonly RunEvent[];
  readonly pausedBecause: string | null;
  readonly isPausedByPerson: boolean;
  readonly figures: DeskFigures | undefined;
  /** By this attempt so far. */
  readonly lost: () => LostWork;
  /** Refuses a step that cannot be gone on from, with those that can. */
  readonly checkRewind: (step: number) => Promise<unknown>;
}

/** Thrown where a paused step is waited for and the run is to go on from elsewhere instead. */
export class RewindAsked extends Error {}

/** Where people meet the run: it answers queries, takes updates, and says what it is waiting for. */
export class RunDesk {
  readonly #options: DeskOptions;
  readonly #waiting = new Map<number, { what: string | (() => string); since: string }>();
  #waits = 0;
  #events: RunEvent[];
  #pausedBecause: string | null;
  #isPausedByPerson: boolean;
  /** How many wait for a person to resume what a person paused, and since when the first of them does. */
  #standing = { waits: 0, since: 0 };
  #overrides: Overrides;
  #phase: RunStatus['phase'] = 'warm-up';
  #step = 0;
  #policy: PolicyVersion | null = null;
  #figures: DeskFigures;
  readonly progress = new ProgressOfSteps();
  #rewind: RewindRequest | null = null;
  /** {@link AskedOfRun} as the memo has it. */
  #noted: string;

  constructor(options: DeskOptions) {
    this.#options = options;
    this.#events = [...options.events];
    this.#pausedBecause = options.pausedBecause;
    this.#isPausedByPerson = options.isPausedByPerson;
    this.#overrides = options.overrides;
    this.#figures = options.figures ?? { since: now(), latest: {}, trend: [], evals: [] };
    this.#noted = JSON.stringify(workflowInfo().memo?.[memoKeys.asked] ?? nothingAsked);
    this.#noteAsked();
    this.#listen();
  }

  get overrides(): Overrides {
    return this.#overrides;
  }

  /** The last step this run is to make. */
  get lastStep(): number {
    return Math.min(this.#options.spec.maxSteps, this.#overrides.stopAfter ?? Number.POSITIVE_INFINITY);
  }

  get isPaused(): boolean {
    return this.#pausedBecause !== null;
  }

  /** Where to go on from in a new lineage, when somebody asked for it. */
  get rewind(): RewindRequest | null {
    return this.#rewind;
  }

  carry(): DeskState {
    const [events, isPausedByPerson] = [this.#events.slice(-20), this.#isPausedByPerson];
    return { events, pausedBecause: this.#pausedBecause, isPausedByPerson, figures: this.#figures };
  }

  at(phase: RunStatus['phase'], step: number, policy: PolicyVersion): void {
    this.#phase = phase;
    this.#step = step;
    this.#policy = policy;
  }

  /** Everything the run awaits goes through here, so that it can say what it is waiting for. */
  async waitFor<T>(what: string | (() => string), work: Promise<T>): Promise<T> {
    const ticket = this.#waits++;
    this.#waiting.set(ticket, { what, since: now() });
    try {
      return await work;
    } finally {
      this.#waiting.delete(ticket);
    }
  }

  /** Without a step it is of the one committed last. */
  tell(kind: RunEvent['kind'], step: number | null, text: string, values: RunEvent['values'] = {}): void {
    const sequence = (this.#events.at(-1)?.sequence ?? 0) + 1;
    const event = { sequence, time: now(), kind, step: step ?? this.#step, text, values };
    this.#events.push(event);
    this.#figures = figuresAfter(this.#figures, event);
    if (this.#events.length > eventsKept) this.#events = this.#events.slice(-eventsKept);
    setCurrentDetails(this.#details());
  }

  pause(reason: string, by: 'run' | 'person' = 'run'): void {
    this.#pausedBecause = reason;
    this.#isPausedByPerson = by === 'person';
    this.#noteAsked();
    this.tell('paused', this.#step, `paused: ${reason}`);
  }

  /** What is done once when a pause gets long. */
  onLongPause: () => void = () => undefined;

  /** Told how long the run stood still because a person had paused it. */
  onStoodStill: (seconds: number) => void = () => undefined;

  /** Throws {@link RewindAsked} when the run is to go on from another step. */
  async untilResumed(): Promise<void> {
    const isOver = (): boolean => this.#pausedBecause === null || this.#rewind !== null;
    if (!isOver()) {
      const isByPerson = this.#isPausedByPerson;
      if (isByPerson) this.#standStill();
      if (!(await condition(isOver, longPauseMs))) {
        this.onLongPause();
        await condition(isOver);
      }
      if (isByPerson) this.#moveOn();
    }
    if (this.#rewind !== null) throw new RewindAsked();
  }

  #standStill(): void {
    if (this.#standing.waits === 0) this.#standing.since = Date.now();
    this.#standing.waits += 1;
  }

  #moveOn(): void {
    this.#standing.waits -= 1;
    if (this.#standing.waits === 0) this.onStoodStill((Date.now() - this.#standing.since) / 1000);
  }

  /** Lets `temporal workflow list --query 'RatchetRun="…"'` find the run and see how far it is. */
  publish(step: number, reward: number | null): void {
    if (this.#options.hasSearchAttributes) {
      upsertSearchAttributes([
        { key: attributes.run, value: this.#options.spec.name },
        { key: attributes.step, value: step },
        ...(reward === null ? [] : [{ key: attributes.reward, value: reward }]),
      ]);
    } else {
      upsertMemo({ run: this.#options.spec.name, step, ...(reward === null ? {} : { reward }) });
    }
  }

  #listen(): void {
    setHandler(statusQuery, () => this.#status());
    setHandler(eventsQuery, (after) => this.#eventsAfter(after));
    setHandler(viewQuery, (after) => ({ status: this.#status(), events: this.#eventsAfter(after) }));
    setHandler(pauseUpdate, (reason = 'asked to') => {
      this.pause(reason, 'person');
      return `Pausing after what is under way. Go on with: ratchet resume ${this.#options.spec.name}`;
    });
    setHandler(resumeUpdate, () => this.#resume(), {
      validator: () => {
        if (!this.isPaused) throw refusal(`The run is not paused; it is at step ${this.#step}.`);
      },
    });
    setHandler(setLearningRateUpdate, (learningRate) => this.#setLearningRate(learningRate), {
      validator: (learningRate) => {
        if (typeof learningRate !== 'number' || !(learningRate > 0 && learningRate < 1)) {
          throw refusal(`learning_rate: expected a number above 0 and below 1, got ${JSON.stringify(learningRate)}.`);
        }
      },
    });
    setHandler(rewindUpdate, (step) => this.#rewindTo(step), {
      validator: (step) => {
        if (this.#phase === 'warm-up')
          throw refusal('rewind: nothing is committed yet; there is no step to go back to.');
        if (!Number.isInteger(step) || step < 0 || step > this.#step) {
          throw refusal(`rewind: expected a committed step up to ${this.#step}, got ${JSON.stringify(step)}.`);
        }
      },
    });
    setHandler(stopAfterUpdate, (step) => this.#stopAfter(step), {
      validator: (step) => {
        if (!Number.isInteger(step) || step <= this.#step) {
          throw refusal(`stop-after: expected a step after ${this.#step}, got ${JSON.stringify(step)}.`);
        }
      },
    });
  }

  /** For whoever takes the run over when nothing can answer for it; a write of its own only where something changed. */
  #noteAsked(): void {
    const asked: AskedOfRun = {
      pausedBecause: this.#pausedBecause,
      isPausedByPerson: this.#isPausedByPerson,
      overrides: this.#overrides,
      rewind: this.#rewind,
    };
    const text = JSON.stringify(asked);
    if (text === this.#noted) return;
    this.#noted = text;
    upsertMemo({ [memoKeys.asked]: asked });
  }

  async #rewindTo(step: number): Promise<string> {
    await this.#options.checkRewind(step);
    const { workflowId, runId } = workflowInfo();
    this.#rewind = { step, request: `${workflowId}/${runId}` };
    this.#pausedBecause = null;
    this.#isPausedByPerson = false;
    this.#noteAsked();
    const { name } = this.#options.spec;
    return `Going on from step ${step} in a new lineage once what is under way is done. What came after it is kept: ratchet audit ${name}`;
  }

  #resume(): string {
    this.#pausedBecause = null;
    this.#isPausedByPerson = false;
    this.#noteAsked();
    this.tell('resumed', this.#step, 'resumed');
    return `Going on after step ${this.#step}.`;
  }

  #setLearningRate(learningRate: number): string {
    this.#overrides = { ...this.#overrides, learningRate };
    this.#noteAsked();
    return `Peak learning rate ${learningRate} from the next plan on.`;
  }

  #stopAfter(step: number): string {
    this.#overrides = { ...this.#overrides, stopAfter: step };
    this.#noteAsked();
    return `The run ends after step ${this.lastStep}.`;
  }

  #eventsAfter(after: number): RunEvent[] {
    return this.#events.filter(({ sequence }) => sequence > after);
  }

  #status(): RunStatus {
    const { spec, handle, store, warnings, lost } = this.#options;
    const { name, model, environments, maxSteps, learningRate } = spec;
    return {
      run: name,
      lineage: handle.lineage,
      phase: this.isPaused ? 'paused' : this.#phase,
      step: this.#step,
      maxSteps,
      pausedBecause: this.#pausedBecause,
      waitingOn: [
        ...[...this.#waiting.values()].map(({ what, since }) => ({
          what: typeof what === 'string' ? what : what(),
          since,
        })),
        ...localWaits(),
      ],
      policy: this.#policy && versionName(this.#policy),
      policyDigest: this.#policy?.digest ?? null,
      learningRate: this.#overrides.learningRate ?? learningRate,
      store,
      warnings,
      model,
      environments: environments.map((environment) => environment.name),
      attempt: handle.attempt,
      lost: lost(),
      progress: this.progress.read(),
      ...this.#figures,
    };
  }

  /** The story of the run as markdown, for the Temporal UI. */
  #details(): string {
    const { spec, store } = this.#options;
    const title = `**${spec.name}** · ${this.isPaused ? `paused: ${this.#pausedBecause}` : this.#phase} · step ${this.#step} of ${spec.maxSteps}`;
    const evals = this.#events.filter(({ kind }) => kind === 'eval').slice(-3);
    const rest = this.#events.filter(({ kind }) => kind !== 'eval').slice(-8);
    const lines = [...evals, ...rest].sort((a, b) => a.sequence - b.sequence).map(({ text }) => `- ${text}`);
    return [title, '', ...lines, '', `Files: \`${store}\``].join('\n');
  }
}

/** The figures with those of an event. After a rewind the steps that were superseded leave the curve. */
function figuresAfter(figures: DeskFigures, { kind, step, values }: RunEvent): DeskFigures {
  const number = (name: string): number | null => (typeof values[name] === 'number' ? values[name] : null);
  if (kind === 'step') {
    const exact = number('train/agg/all/metrics/exact_match');
    const added: StepTrend = [step, number('reward'), exact, number('step_s') ?? 0];
    return { ...figures, latest: values, trend: [...figures.trend, added].slice(-trendKept) };
  }
  if (kind === 'eval') {
    const added: EvalFigures = {
      step,
      environment: String(values['environment']),
      reward: number('reward') ?? 0,
      exact: number('exact'),
      greedyReward: number('greedy_reward') ?? 0,
      greedyExact: number('greedy_exact'),
    };
    return { ...figures, evals: [...figures.evals, added].slice(-evalsKept) };
  }
  if (kind === 'rewound') {
    const trend = figures.trend.filter(([of]) => of <= step);
    return { ...figures, latest: {}, trend, evals: figures.evals.filter((found) => found.step <= step) };
  }
  return figures;
}

function now(): string {
  return new Date().toISOString();
}

function refusal(message: string): ApplicationFailure {
  return ApplicationFailure.nonRetryable(message, 'Refused');
}
