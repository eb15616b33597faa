import { condition, setCurrentDetails, setHandler, upsertMemo, workflowInfo } from '@temporalio/workflow';
import { eventsKept, longPauseMs } from '../../core/limits.ts';
import { memoKeys, versionName } from '../../core/names.ts';
import type { RunOwner } from '../../core/roles.ts';
import type { LostWork } from '../../core/rl/lost-work.ts';
import {
  budgetIn,
  describeSettings,
  refuseSettings,
  type SettingsContext,
  staying,
  withSettings,
} from '../../core/rl/live-settings.ts';
import {
  type AskedOfRun,
  nothingAsked,
  type Overrides,
  type PolicyVersion,
  type RewindRequest,
  type RunHandle,
} from '../../core/rl/run-state.ts';
import type { BudgetLimits } from '../../core/settings/budgets.ts';
import { onOneLine } from '../../core/steering.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { type AskedChange, AskedChanges } from './asked-changes.ts';
import { type RunFigures, figuresAfter, withRegression } from './figures.ts';
import { storyOf } from './lines.ts';
import { onEventsQuery } from './listen.ts';
import {
  eventsQuery,
  pauseUpdate,
  resumeUpdate,
  rewindUpdate,
  setUpdate,
  statusQuery,
  stopUpdate,
  type NotedRegression,
  type PromptStanding,
  type RunEvent,
  type RunStatus,
} from './messages.ts';
import { refusal } from './refusal.ts';
import { publishStep } from './search-attributes.ts';
import { StoresMissed } from './stores-missed.ts';
import { ProgressOfSteps } from './step-progress.ts';

/** Carried by continue-as-new. */
export interface ControlState {
  readonly events: readonly RunEvent[];
  readonly pausedBecause: string | null;
  readonly isPausedByPerson: boolean;
  /** Figures for curves. */
  readonly figures: RunFigures;
  /** Warnings that were already explained. */
  readonly explained?: readonly string[];
}

interface ControlOptions {
  readonly handle: Pick<RunHandle, 'lineage' | 'attempt'>;
  readonly spec: Pick<RunSpec, 'name' | 'model' | 'environments'> & SettingsContext['spec'];
  /** URI of the run's files, for people. */
  readonly store: string;
  readonly storeUri: string;
  readonly warnings: readonly string[];
  readonly owner?: RunOwner;
  readonly hasSearchAttributes: boolean;
  readonly overrides: Overrides;
  readonly events: readonly RunEvent[];
  readonly pausedBecause: string | null;
  readonly isPausedByPerson: boolean;
  readonly figures: RunFigures | undefined;
  readonly explained?: readonly string[] | undefined;
  /** Work lost in this attempt so far. */
  readonly lost: () => LostWork;
  /** Tells all workers the limits of the run's budget that a person has set. */
  readonly setBudget: (limits: Partial<BudgetLimits>) => Promise<unknown>;
  /** Keeps an accepted update in the run's folder; returns who asked for it. */
  readonly recordChange: (change: AskedChange) => Promise<string>;
  /** Refuses a step that the run cannot continue from, and names those it can. */
  readonly checkRewind: (step: number) => Promise<unknown>;
}

/** Most invalid messages that are reported, so that a client that sends nothing else cannot hide the run's events. */
const ignoredTold = 50;

/** Thrown from waits of a paused run that is to continue elsewhere, or to end. */
export class RewindAsked extends Error {}

/** The run's interface to people: answers queries, takes updates, and shows its waits. */
export class RunControl {
  readonly #options: ControlOptions;
  readonly #waiting = new Map<number, { what: string | (() => string); since: string }>();
  #waits = 0;
  readonly #warned = new Set<string>();
  #events: RunEvent[];
  #pausedBecause: string | null;
  #isPausedByPerson: boolean;
  readonly #explained: Set<string>;
  /** Waits for a person to end a person's pause: their number, and the begin of the first. */
  #standing = { waits: 0, since: 0 };
  #overrides: Overrides;
  #phase: RunStatus['phase'] = 'warm-up';
  #step = 0;
  #policy: PolicyVersion | null = null;
  #figures: RunFigures;
  readonly progress = new ProgressOfSteps();
  readonly #ignored = new Set<string>();
  readonly changes: AskedChanges;
  readonly #storesMissed: StoresMissed;
  #rewind: RewindRequest | null = null;
  /** A paused run was asked to end: its present step is given up. */
  #isLeft = false;
  /** The end was requested: the step under way is the last. */
  #isStopping = false;
  /** Step that is already planned: new settings apply to later ones. 0 = none. */
  planned = 0;
  /** Overrides in the newest commit, as JSON. */
  #committed: string;
  /** {@link AskedOfRun} as the memo has it. */
  #noted: string;

  constructor(options: ControlOptions) {
    this.#options = options;
    this.#events = [...options.events];
    this.#pausedBecause = options.pausedBecause;
    this.#isPausedByPerson = options.isPausedByPerson;
    this.#explained = new Set(options.explained);
    this.#overrides = options.overrides;
    this.#committed = staying(options.overrides);
    this.#figures = { since: now(), latest: {}, trend: [], evals: [], regressions: {}, ...options.figures };
    this.#noted = JSON.stringify(workflowInfo().memo?.[memoKeys.asked] ?? nothingAsked);
    this.#noteAsked();
    this.changes = new AskedChanges({
      record: options.recordChange,
      emit: (kind, text, values) => this.emit(kind, null, text, values),
      step: () => this.#step,
    });
    this.#listen();
    this.#storesMissed = new StoresMissed(
      (line, isBack) => this.emit(isBack ? 'recovery' : 'warning', null, line),
      (problem) => this.ignored(problem),
    );
  }

  get overrides(): Overrides {
    return this.#overrides;
  }

  /** Absolute URI of the folder that holds the run. */
  get storeUri(): string {
    return this.#options.storeUri;
  }

  /** The last step this run is to make. */
  get lastStep(): number {
    return Math.min(this.maxSteps, this.#overrides.stopAfter ?? Number.POSITIVE_INFINITY);
  }

  /** How many steps the run is to make, whenever it stops in between. */
  get maxSteps(): number {
    return this.#overrides.maxSteps ?? this.#options.spec.maxSteps;
  }

  get isPaused(): boolean {
    return this.#pausedBecause !== null;
  }

  /** Step to continue from in a new lineage, when somebody asked for it. */
  get rewind(): RewindRequest | null {
    return this.#rewind;
  }

  carry(): ControlState {
    const [events, isPausedByPerson] = [this.#events.slice(-20), this.#isPausedByPerson];
    const explained = [...this.#explained];
    return { events, pausedBecause: this.#pausedBecause, isPausedByPerson, figures: this.#figures, explained };
  }

  /** Whether a warning still needs its explanation: true only for the first call. */
  explains(warning: string): boolean {
    const isFirst = !this.#explained.has(warning);
    this.#explained.add(warning);
    return isFirst;
  }

  at(phase: RunStatus['phase'], step: number, policy: PolicyVersion): void {
    this.#committed = staying(this.#overrides);
    this.#phase = phase;
    this.#step = step;
    this.#policy = policy;
  }

  /** Labels a wait, so that the run can show it: docs/internals/waiting.md has each label. */
  async waitFor<T>(what: string | (() => string), work: Promise<T>): Promise<T> {
    const ticket = this.#waits++;
    this.#waiting.set(ticket, { what, since: now() });
    try {
      return await work;
    } finally {
      this.#waiting.delete(ticket);
    }
  }

  /** Emits a warning once per execution. */
  warnOnce(step: number | null, text: string): void {
    if (this.#warned.has(text)) return;
    this.#warned.add(text);
    this.emit('warning', step, text);
  }

  /** Emits an event as one line, whatever text of a model, an environment or an error it contains. `step`: the one committed last when null. */
  emit(kind: RunEvent['kind'], step: number | null, text: string, values: RunEvent['values'] = {}): void {
    const sequence = (this.#events.at(-1)?.sequence ?? 0) + 1;
    const event = { sequence, time: now(), kind, step: step ?? this.#step, text: onOneLine(text), values };
    this.#events.push(event);
    this.#figures = figuresAfter(this.#figures, event);
    if (this.#events.length > eventsKept) this.#events = this.#events.slice(-eventsKept);
    const { spec, store } = this.#options;
    const phase = this.isPaused ? `paused: ${this.#pausedBecause}` : this.#phase;
    const title = `**${spec.name}** · ${phase} · step ${this.#step} of ${this.maxSteps}`;
    setCurrentDetails(storyOf(title, { events: this.#events, prompts: this.prompts(), store }));
  }

  /** Emits a warning about a wrong message, once for each problem. */
  ignored(problem: string): void {
    if (this.#ignored.has(problem) || this.#ignored.size >= ignoredTold) return;
    this.#ignored.add(problem);
    this.emit('warning', null, problem);
  }

  /** A stopping run gives up its step instead of waiting for a person. */
  pause(reason: string, by: 'run' | 'person' = 'run'): void {
    if (this.#isStopping && by === 'run') return this.#leave(`step abandoned, as the run is stopping: ${reason}`);
    const said = by === 'run' ? reason + this.#wayBack(reason) : reason;
    this.#pausedBecause = said;
    this.#isPausedByPerson = by === 'person';
    this.#noteAsked();
    this.emit('paused', this.#step, `paused: ${said}`);
  }

  /** Better versions according to evaluations; empty when the reason already names a way back. */
  #wayBack(reason: string): string {
    if (reason.includes('npx ratchet-rl rewind')) return '';
    const known = Object.values(this.#figures.regressions).map(
      ({ bestStep, text }) =>
        ` npx ratchet-rl rewind ${this.#options.spec.name} --step ${bestStep} goes back to the best evaluated version (${text}).`,
    );
    return known.join('');
  }

  /** Prompts in use, for a run that searches for none. */
  prompts: () => readonly PromptStanding[] = () => [];

  /** Called when what the run asks of its pool was changed. */
  onQueueChange: () => void = () => undefined;

  /** Called once when a pause gets long. */
  onLongPause: () => void = () => undefined;

  /** Raises or takes down the flag of an environment; in the memo it can be read without asking the run. */
  noteRegression(environment: string, regression: NotedRegression | null): void {
    const before = this.#figures;
    this.#figures = withRegression(before, environment, regression);
    if (this.#figures !== before) upsertMemo({ [memoKeys.regression]: this.#figures.regressions });
  }

  /** Ends the run after the step under way, for a reason that the run itself found. */
  stopBecause(reason: string): void {
    if (this.isPaused) return this.emit('warning', null, `the run was to stop, but it is paused: ${reason}`);
    this.emit('stopping', null, `stopping after step ${this.#lastIsUnderWay()}: ${reason}`);
  }

  #lastIsUnderWay(): number {
    this.#isStopping = true;
    return this.#endAfter(Math.min(this.lastStep, this.#step + 1));
  }

  #endAfter(step: number): number {
    this.#overrides = { ...this.#overrides, stopAfter: step };
    this.#noteAsked();
    return step;
  }

  /** The run ends with the step that is planned, or else with the last one that was made. */
  #leave(why: string): void {
    [this.#pausedBecause, this.#isPausedByPerson, this.#isLeft] = [null, false, true];
    this.emit('stopping', null, `stopping at step ${this.#endAfter(Math.max(this.planned, this.#step))}, ${why}`);
  }

  /** Seconds that a person's pauses lasted. */
  onStoodStill: (seconds: number) => void = () => undefined;

  /** Throws {@link RewindAsked} when the run is to continue from another step, or to end. */
  async untilResumed(): Promise<void> {
    const isOver = (): boolean => this.#pausedBecause === null || this.#rewind !== null || this.#isLeft;
    if (!isOver()) {
      const isByPerson = this.#isPausedByPerson;
      if (isByPerson) this.#standStill();
      if (!(await condition(isOver, longPauseMs))) {
        this.onLongPause();
        await condition(isOver);
      }
      if (isByPerson) this.#moveOn();
    }
    if (this.#rewind !== null || this.#isLeft) throw new RewindAsked();
  }

  #standStill(): void {
    if (this.#standing.waits === 0) this.#standing.since = Date.now();
    this.#standing.waits += 1;
  }

  #moveOn(): void {
    this.#standing.waits -= 1;
    if (this.#standing.waits === 0) this.onStoodStill((Date.now() - this.#standing.since) / 1000);
  }

  /**
   * Publishes search attributes, with which `temporal workflow list --query 'RatchetRun="…"'` finds the run and its
   * progress.
   */
  publish(step: number, reward: number | null): void {
    const { spec, hasSearchAttributes } = this.#options;
    publishStep({ run: spec.name, step, reward, hasSearchAttributes });
  }

  #listen(): void {
    setHandler(statusQuery, () => this.#status());
    onEventsQuery(eventsQuery, (after) => this.#events.filter(({ sequence }) => sequence > after));
    this.changes.on(pauseUpdate, (given?: string | null) => {
      const reason = given ?? 'asked to';
      const before = this.#pausedBecause;
      this.pause(reason, 'person');
      const goOn = `Continue with: npx ratchet-rl resume ${this.#options.spec.name}`;
      if (before !== null) return `It was paused already (${before}); the reason is now: ${reason}. ${goOn}`;
      return `running → paused: ${reason}. What is under way is finished and stored${this.#underWayText()}; no further step begins. ${goOn}`;
    });
    this.changes.on(
      stopUpdate,
      () => this.#stop(),
      () => {
        const isOver = ['finishing', 'finished', 'stopped'].includes(this.#phase);
        if (isOver) throw refusal(`The run is ending already, after step ${this.#step}.`);
      },
    );
    this.changes.on(
      setUpdate,
      (settings) => this.#set(settings),
      (settings) => {
        const refused = refuseSettings(settings, this.#settings());
        if (refused !== null) throw refusal(refused);
      },
    );
    this.changes.on(
      resumeUpdate,
      () => this.#resume(),
      () => {
        if (!this.isPaused) throw refusal(`The run is not paused; it is at step ${this.#step}.`);
      },
    );
    this.changes.on(
      rewindUpdate,
      (step) => this.#rewindTo(step),
      (step) => {
        if (this.#phase === 'warm-up')
          throw refusal('rewind: nothing is committed yet; there is no step to go back to.');
        if (step > this.#step) throw refusal(`rewind: expected a committed step up to ${this.#step}, got ${step}.`);
      },
    );
  }

  /**
   * Kept in the memo for an orchestrator that takes the run over when its workflow cannot answer; written only when it
   * changes.
   */
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
    const before = this.#pausedBecause;
    this.#pausedBecause = null;
    this.#isPausedByPerson = false;
    this.#noteAsked();
    const { name } = this.#options.spec;
    const resumed = before === null ? '' : ` The pause is over with it (it was: ${before}).`;
    if (before !== null) this.emit('resumed', this.#step, `resumed by a rewind to step ${step}`);
    return `Continuing from step ${step} in a new lineage once what is under way is done.${resumed} Later steps stay in the store: npx ratchet-rl audit ${name}`;
  }

  #resume(): string {
    const before = this.#pausedBecause;
    this.#pausedBecause = null;
    this.#isPausedByPerson = false;
    this.#noteAsked();
    this.emit('resumed', this.#step, 'resumed');
    const next = this.#step < this.lastStep ? ` Step ${this.#step + 1} of ${this.lastStep} is next.` : '';
    return `paused (${before}) → running. It continues after step ${this.#step}.${next}`;
  }

  /** The step that a change reaches first. */
  #settings(): SettingsContext {
    const { spec } = this.#options;
    return { run: spec.name, spec, overrides: this.#overrides, underWay: this.#step + 1 };
  }

  #underWayText(): string {
    return this.#phase === 'training' && this.#step < this.lastStep
      ? ` (step ${this.#step + 1} of ${this.lastStep})`
      : '';
  }

  async #set(settings: Readonly<Record<string, number>>): Promise<string> {
    const budget = budgetIn(withSettings({}, settings));
    if (Object.keys(budget).length > 0) await this.#options.setBudget(budget);
    const lines = describeSettings(settings, this.#settings());
    this.#overrides = withSettings(this.#overrides, settings);
    this.#noteAsked();
    if ('queue.priority' in settings) this.onQueueChange();
    for (const line of lines) this.emit('set', null, line);
    if (Object.keys(budget).length === Object.keys(settings).length)
      return `${lines.join('\n')}\nfor calls from now on`;
    if (Object.keys(settings).every((name) => name === 'queue.priority')) return `${lines.join('\n')}\nfrom now on`;
    const from = this.planned > this.#step ? this.planned + 1 : this.#step + 1;
    return `${lines.join('\n')}\nfrom step ${from} on; the run ends after step ${this.lastStep}`;
  }

  #stop(): string {
    const run = this.#options.spec.name;
    const goOn = 'Later: `ratchet train` with its file continues from there.';
    if (this.isPaused) {
      const before = this.#pausedBecause;
      this.#leave('as asked; it was paused');
      const isForgotten = staying(this.#overrides) !== this.#committed;
      const forgotten = isForgotten
        ? ' Settings that were changed since its last step are in no commit: set them again then.'
        : '';
      return `paused (${before}) → stopping at step ${this.lastStep}: what was sampled for a later one stays in the store. ${goOn}${forgotten}`;
    }
    const last = this.#lastIsUnderWay();
    this.emit('stopping', null, `stopping after step ${last}, as asked`);
    const checkpoint =
      this.planned === last
        ? `Step ${last} is in training already: it gets a checkpoint only if it was to have one, and else is trained again from the one before, from stored rollouts.`
        : `Step ${last} gets a checkpoint.`;
    return `running → stopping: step ${last} is finished and committed, its evaluations too. ${checkpoint} ${goOn} At once: npx ratchet-rl stop ${run} --now`;
  }

  #status(): RunStatus {
    const { spec, handle, store, storeUri, warnings, owner, lost } = this.#options;
    const { name, model, environments, learningRate } = spec;
    const workersAway = this.#storesMissed.read();
    return {
      run: name,
      lineage: handle.lineage,
      phase: this.isPaused ? 'paused' : this.#phase,
      step: this.#step,
      maxSteps: this.maxSteps,
      pausedBecause: this.#pausedBecause,
      waitingOn: [...this.#waiting.values()].map(({ what, since }) => ({
        what: typeof what === 'string' ? what : what(),
        since,
      })),
      policy: this.#policy && versionName(this.#policy),
      policyDigest: this.#policy?.digest ?? null,
      learningRate: this.#overrides.learningRate ?? learningRate,
      store,
      storeUri,
      warnings,
      ...(owner === undefined ? {} : { owner }),
      model,
      environments: environments.map((environment) => environment.name),
      attempt: handle.attempt,
      lost: lost(),
      progress: this.progress.read(),
      ...this.#figures,
      prompts: this.prompts(),
      ...(workersAway.length === 0 ? {} : { workersAway }),
    };
  }
}

function now(): string {
  return new Date().toISOString();
}
