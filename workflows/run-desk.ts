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
import { eventsKept, longPauseMs } from '../core/limits.ts';
import { memoKeys } from '../core/names.ts';
import { type AskedOfRun, nothingAsked, type Overrides, type RewindRequest } from '../core/rl/run-state.ts';
import { localWaits } from './local-waits.ts';
import {
  eventsQuery,
  pauseUpdate,
  resumeUpdate,
  rewindUpdate,
  setLearningRateUpdate,
  statusQuery,
  stopAfterUpdate,
  type RunEvent,
  type RunStatus,
} from './messages.ts';

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
}

export interface DeskOptions {
  readonly run: string;
  readonly lineage: string;
  readonly store: string;
  readonly maxSteps: number;
  readonly learningRate: number;
  readonly warnings: readonly string[];
  readonly hasSearchAttributes: boolean;
  readonly overrides: Overrides;
  readonly events: readonly RunEvent[];
  readonly pausedBecause: string | null;
  readonly isPausedByPerson: boolean;
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
  #digest: string | null = null;
  #rewind: RewindRequest | null = null;
  /** {@link AskedOfRun} as the memo has it. */
  #noted: string;

  constructor(options: DeskOptions) {
    this.#options = options;
    this.#events = [...options.events];
    this.#pausedBecause = options.pausedBecause;
    this.#isPausedByPerson = options.isPausedByPerson;
    this.#overrides = options.overrides;
    this.#noted = JSON.stringify(workflowInfo().memo?.[memoKeys.asked] ?? nothingAsked);
    this.#noteAsked();
    this.#listen();
  }

  get overrides(): Overrides {
    return this.#overrides;
  }

  /** The last step this run is to make. */
  get lastStep(): number {
    return Math.min(this.#options.maxSteps, this.#overrides.stopAfter ?? Number.POSITIVE_INFINITY);
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
    return { events, pausedBecause: this.#pausedBecause, isPausedByPerson };
  }

  at(phase: RunStatus['phase'], step: number, digest: string | null): void {
    this.#phase = phase;
    this.#step = step;
    this.#digest = digest;
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
    this.#events.push({ sequence, time: now(), kind, step: step ?? this.#step, text, values });
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
        { key: attributes.run, value: this.#options.run },
        { key: attributes.step, value: step },
        ...(reward === null ? [] : [{ key: attributes.reward, value: reward }]),
      ]);
    } else {
      upsertMemo({ run: this.#options.run, step, ...(reward === null ? {} : { reward }) });
    }
  }

  #listen(): void {
    setHandler(statusQuery, () => this.#status());
    setHandler(eventsQuery, (after) => this.#events.filter(({ sequence }) => sequence > after));
    setHandler(pauseUpdate, (reason = 'asked to') => {
      this.pause(reason, 'person');
      return `Pausing after what is under way. Go on with: ratchet resume ${this.#options.run}`;
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
    const { run } = this.#options;
    return `Going on from step ${step} in a new lineage once what is under way is done. What came after it is kept: ratchet audit ${run}`;
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

  #status(): RunStatus {
    const { run, lineage, store, maxSteps, learningRate, warnings } = this.#options;
    return {
      run,
      lineage,
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
      policyDigest: this.#digest,
      learningRate: this.#overrides.learningRate ?? learningRate,
      store,
      warnings,
    };
  }

  /** The story of the run as markdown, for the Temporal UI. */
  #details(): string {
    const { run, maxSteps, store } = this.#options;
    const title = `**${run}** · ${this.isPaused ? `paused: ${this.#pausedBecause}` : this.#phase} · step ${this.#step} of ${maxSteps}`;
    const evals = this.#events.filter(({ kind }) => kind === 'eval').slice(-3);
    const rest = this.#events.filter(({ kind }) => kind !== 'eval').slice(-8);
    const lines = [...evals, ...rest].sort((a, b) => a.sequence - b.sequence).map(({ text }) => `- ${text}`);
    return [title, '', ...lines, '', `Files: \`${store}\``].join('\n');
  }
}

function now(): string {
  return new Date().toISOString();
}

function refusal(message: string): ApplicationFailure {
  return ApplicationFailure.nonRetryable(message, 'Refused');
}
