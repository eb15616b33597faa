import {
  ActivityFailure,
  CancellationScope,
  ChildWorkflowFailure,
  condition,
  startChild,
  workflowInfo,
} from '@temporalio/workflow';
import type { EvaluationResult } from '../../core/eval/evaluation.ts';
import { environmentsDue } from './evaluations-due.ts';
import { type EvaluationVariant, isGreedy, onlineEvaluation } from '../../runs/evaluations/online-evaluation.ts';
import { describeRegression, type Regression } from '../../core/eval/regression.ts';
import { lineageOf } from '../../runs/layout.ts';
import { evaluationWorkflowId, versionName } from '../../core/names.ts';
import type { PolicyVersion, Prompts } from '../../core/rl/run-state.ts';
import type { EvalSpec } from '../../config/run-spec.ts';
import type { EvaluationSummary } from '../../activities/index.ts';
import { opening, orchestratorFor } from '../options.ts';
import { awaitedLater } from './beside.ts';
import { ChildWork, ChildWorkFailed, memoOfPool } from './child-work.ts';
import type { evaluate } from '../evaluate.ts';
import { evalLine, evalValues } from '../control/lines.ts';
import { onSignal } from '../control/listen.ts';
import { evaluationEndedSignal, type FoundRegression, regressionFoundSignal } from '../control/messages.ts';
import type { Publishing } from '../step/publishing.ts';
import { rootCause } from './root-cause.ts';
import type { RunContext } from '../run-context.ts';
import type { ServingSchedule } from '../step/serving-schedule.ts';

/** One environment's evaluation of one version that is due or under way, for continue-as-new. */
export interface PendingEvaluation {
  readonly environment: string;
  readonly step: number;
  /** null until it is in the store. */
  readonly policy: PolicyVersion | null;
  /** Prompts in use at its commit; absent while every environment had its own. */
  readonly prompts?: Prompts | undefined;
  /** When it was due, ISO time. */
  readonly since: string;
  /** Whether training must not sample meanwhile; null until that is known. */
  readonly isAlone: boolean | null;
}

interface OnlineEvalOptions extends RunContext {
  readonly publishing: Publishing;
  readonly serving: ServingSchedule;
  /** The newest ended evaluations, for the summary. */
  readonly done: readonly EvaluationSummary[];
}

type Known = PendingEvaluation & { readonly policy: PolicyVersion };
/** A version with the prompts of its commit. */
interface EvaluatedVersion {
  readonly policy: PolicyVersion;
  readonly prompts?: Prompts | undefined;
}
type Entry = EvalSpec['environments'][number];

/**
 * Evaluations beside the loop: a child workflow for each environment and version, which names its version in every
 * request. A child outlives the execution that asked for it, and its results are in the store, so none is paid for
 * twice, whatever dies.
 */
export class OnlineEvals {
  readonly #options: OnlineEvalOptions;
  readonly #orchestrator: ReturnType<typeof orchestratorFor>;
  readonly #pending = new Map<string, PendingEvaluation>();
  readonly #children: ChildWork<EvaluationResult>;
  readonly #done: EvaluationSummary[];
  readonly #when: EvalSpec['when'];
  #work: Promise<void>[] = [];
  #isLastStepMade = false;
  /** Abandoned evaluations, whose results are ignored. */
  readonly #left = new Set<string>();
  #isOneVersionSaid = false;
  /** Deferred evaluations run one after another, since each is of another version. */
  #deferred: Promise<unknown> = Promise.resolve();

  constructor(options: OnlineEvalOptions) {
    this.#options = options;
    const { control } = options;
    this.#children = new ChildWork(evaluationEndedSignal, control);
    this.#orchestrator = orchestratorFor(options.spec);
    this.#done = [...options.done];
    this.#when = options.spec.eval?.when ?? null;
    onSignal(
      regressionFoundSignal,
      (found: FoundRegression) => this.#raise(found),
      (problem) => control.ignored(problem),
    );
  }

  /** Ended evaluations, oldest first. */
  get done(): readonly EvaluationSummary[] {
    return this.#done;
  }

  /** Steps of which an evaluation is due or under way, ascending: their weights must stay. */
  get pendingSteps(): number[] {
    return [...new Set([...this.#pending.values()].map(({ step }) => step))].sort((a, b) => a - b);
  }

  /** State for continue-as-new. */
  carry(): PendingEvaluation[] {
    return [...this.#pending.values()];
  }

  isDue(step: number): boolean {
    return this.#entriesDue(step).length > 0;
  }

  /** Begins the evaluations due at a committed step; those under way continue. */
  evaluate(step: number): void {
    const due = this.#entriesDue(step);
    // Also for a step that was due when it was committed, whatever the interval is now.
    const entries = due.length > 0 ? due : (this.#options.spec.eval?.environments ?? []);
    for (const { name } of entries) {
      this.#begin({ environment: name, step, policy: null, since: new Date().toISOString(), isAlone: null });
    }
  }

  /** Resumes the evaluations that the previous execution had begun. */
  resume(carried: readonly PendingEvaluation[]): void {
    for (const pending of carried) this.#begin(pending);
  }

  /** Waits for all evaluations; deferred ones begin now. */
  async finish(): Promise<void> {
    this.#isLastStepMade = true;
    for (let settled = -1; settled !== this.#work.length;) {
      settled = this.#work.length;
      await Promise.all(this.#work);
    }
    this.#work = [];
  }

  /**
   * Cancels evaluations of later steps when the run continues from an earlier one: their versions are no longer
   * trained.
   */
  async leaveBehind(lastStep: number): Promise<void> {
    await this.#cancel((pending) => pending.step > lastStep);
  }

  /** Cancels all when the run is cancelled. Children outlive the run, so it cancels them before it ends. */
  async leaveAll(): Promise<void> {
    await CancellationScope.nonCancellable(() => this.#cancel(() => true));
  }

  async #cancel(isLeft: (pending: PendingEvaluation) => boolean): Promise<void> {
    const left = [...this.#pending].filter(([, pending]) => isLeft(pending));
    for (const [key] of left) {
      this.#pending.delete(key);
      this.#left.add(key);
    }
    const workflows = left.flatMap(([, pending]) => this.#workflowsOf(pending));
    await this.#children.cancel(workflows);
  }

  #workflowsOf({ environment, policy }: PendingEvaluation): string[] {
    if (policy === null) return [];
    const { name } = this.#options.spec;
    const version = { lineage: lineageOf(policy.weights), step: policy.step, replay: policy.replay };
    return ['', 'greedy'].map((variant) => evaluationWorkflowId(name, environment, version, variant));
  }

  #entriesDue(step: number): readonly Entry[] {
    const { spec, control } = this.#options;
    return environmentsDue(spec.eval, step, { lastStep: control.lastStep, overrides: control.overrides });
  }

  #begin(pending: PendingEvaluation): void {
    const entry = this.#options.spec.eval?.environments.find(({ name }) => name === pending.environment);
    const key = `${pending.environment}@${pending.step}`;
    if (entry === undefined || this.#pending.has(key)) return; // the run file names it no more
    this.#pending.set(key, pending);
    const work = this.#evaluate(key, pending, entry).catch((reason: unknown) => this.#told(key, pending, reason));
    this.#work.push(awaitedLater(work));
  }

  async #evaluate(key: string, pending: PendingEvaluation, entry: Entry): Promise<void> {
    const { serving } = this.#options;
    if (this.#when === 'pause') {
      // Held from the moment that it is due: groups leased while its version is looked up would be sampled before it.
      const finding = awaitedLater(this.#found(key, pending, entry));
      return serving.alone(async () => {
        const startedAt = new Date().toISOString();
        const known = await finding;
        if (known) await this.#carryOut(key, known, entry, () => ({ paused_s: secondsSince(startedAt) }));
      });
    }
    const known = await this.#found(key, pending, entry);
    if (known === null) return;
    if (this.#when === 'defer') {
      if (!this.#isLastStepMade) await condition(() => this.#isLastStepMade || this.#left.has(key));
      const deferredS = secondsSince(pending.since);
      return this.#inTurn(() => this.#carryOut(key, known, entry, () => ({ deferred_s: deferredS })));
    }
    const isAlone = pending.isAlone ?? (await this.#isAlone(known));
    if (this.#left.has(key)) return;
    this.#pending.set(key, { ...known, isAlone });
    if (!isAlone) return this.#carryOut(key, known, entry, () => ({}));
    return serving.alone(() => {
      const startedAt = new Date().toISOString();
      return this.#carryOut(key, known, entry, () => ({ paused_s: secondsSince(startedAt) }));
    });
  }

  /** Finds the version to evaluate; null when nothing is left to do. */
  async #found(key: string, pending: PendingEvaluation, entry: Entry): Promise<Known | null> {
    const { policy } = pending;
    const found = policy === null ? await this.#versionOf(pending.step, entry.name) : { policy };
    if (this.#left.has(key)) return null;
    if (found === 'recorded') {
      this.#pending.delete(key);
      return null;
    }
    const known: Known = { ...pending, ...found };
    this.#pending.set(key, known);
    return known;
  }

  async #carryOut(key: string, pending: Known, entry: Entry, costOf: () => Record<string, number>): Promise<void> {
    if (this.#left.has(key)) return;
    const { run, spec, control } = this.#options;
    const { policy, step, prompts } = pending;
    const version = versionName(policy);
    const [holder] = this.#workflowsOf(pending) as [string];
    const summary = `${version} on ${entry.name}`;
    const sampling = awaitedLater(this.#resultOf(entry, { policy, prompts }, 'sampled'));
    const alsoGreedy = isGreedy(spec, entry)
      ? null
      : awaitedLater(this.#resultOf(entry, { policy, prompts }, 'greedy'));
    const [sampled, greedy] = await control.waitFor(`eval ${summary}`, Promise.all([sampling, alsoGreedy]));
    const cost = costOf();
    if (this.#left.has(key)) return;
    const recording = this.#orchestrator.recordEvaluation.executeWithOptions({ summary }, [
      { run, policy, holder, sampled, greedy },
    ]);
    const recorded = await control.waitFor(`record eval ${summary}`, recording);
    if (this.#left.has(key)) return;
    this.#pending.delete(key);
    this.#done.push(recorded.summary);
    control.emit('eval', step, evalLine(recorded.summary, cost), { ...evalValues(recorded.summary), ...cost });
    this.#judge(entry.name, version, step, recorded.regression);
  }

  /** Whether training must wait meanwhile, because servers sample from one version only. */
  async #isAlone(pending: Known): Promise<boolean> {
    const { run, control } = this.#options;
    const { policy } = pending;
    const [holder] = this.#workflowsOf(pending) as [string];
    const outcome = await control.waitFor(
      `the inference servers to keep ${versionName(policy)} for its evaluation`,
      this.#orchestrator.holdVersion.executeWithOptions({ summary: `${versionName(policy)} for its evaluation` }, [
        { run, policy, holder },
      ]),
    );
    const isSingle = outcome === 'single';
    if (isSingle && !this.#isOneVersionSaid) {
      this.#isOneVersionSaid = true;
      const what =
        this.#when === null
          ? 'no training rollout is sampled while an evaluation runs ([eval] when = "pause")'
          : 'an evaluation beside the training has them loaded back and forth ([eval] when = "beside")';
      control.emit(
        'warning',
        null,
        `the inference servers sample from one version at a time: ${what}; when = "defer" evaluates after the last step`,
      );
    }
    return isSingle && this.#when === null;
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = awaitedLater(this.#deferred.then(work));
    this.#deferred = turn.catch(() => undefined); // the caller gets the failure
    return turn;
  }

  /** `recorded` when an earlier execution has evaluated the step already. */
  async #versionOf(step: number, environment: string): Promise<EvaluatedVersion | 'recorded'> {
    const { run, spec, control, publishing } = this.#options;
    const replaced = await publishing.of(step);
    if (replaced?.replay && spec.gepa === undefined) return { policy: replaced };
    const summary = `v${step} on ${environment}`;
    const finding = opening.findEvaluation.executeWithOptions({ summary }, [{ run, step, environment }]);
    const found = await control.waitFor(`find eval ${summary}`, finding);
    const prompts = found.prompts ? { prompts: found.prompts } : {};
    if (replaced?.replay) return { policy: replaced, ...prompts };
    return found.isRecorded ? 'recorded' : { policy: found.policy, ...prompts };
  }

  async #resultOf(entry: Entry, version: EvaluatedVersion, variant: EvaluationVariant): Promise<EvaluationResult> {
    const { run, spec, control } = this.#options;
    const notify = { workflowId: workflowInfo().workflowId };
    const { workflowId, input } = onlineEvaluation({ run, spec, ...version }, entry, variant, notify);
    const staticSummary = `${input.environment.name} · ${input.model.model}`;
    return this.#children.resultOf(workflowId, async (options) => {
      const child = await startChild<typeof evaluate>('evaluate', {
        ...options,
        args: [input],
        staticSummary,
        ...memoOfPool(spec, control.overrides),
      });
      return { result: async () => (await child.result()).results[0]! };
    });
  }

  /** A failed evaluation neither pauses nor ends the run: it is reported, and can be repeated. */
  #told(key: string, { environment, step }: PendingEvaluation, reason: unknown): void {
    if (this.#left.has(key)) return;
    const isOurs = reason instanceof ChildWorkFailed || reason instanceof ChildWorkflowFailure;
    if (!isOurs && !(reason instanceof ActivityFailure)) throw reason;
    this.#pending.delete(key);
    const { spec, control } = this.#options;
    control.emit(
      'warning',
      step,
      `eval v${step} on ${environment} failed: ${rootCause(reason).message} Once that is repaired: npx ratchet-rl eval checkpoints ${spec.name} --steps ${step}`,
    );
  }

  /**
   * Without a comparison (the first evaluation under a prompt) the flag stays: it refers to the policy under the
   * previous prompt.
   */
  #judge(environment: string, version: string, step: number, regression: Regression | null): void {
    if (regression === null) return;
    if (!regression.isWorse) return this.#options.control.noteRegression(environment, null);
    const action = this.#options.spec.eval?.onRegression ?? 'flag';
    this.#raise({ environment, version, step, regression, action });
  }

  /** An evaluation, of the run's own or on a schedule, was worse than the best before it. */
  #raise({ environment, version, step, regression, action }: FoundRegression): void {
    const { spec, control } = this.#options;
    const { best, reward, difference } = regression;
    const text = describeRegression(environment, version, regression);
    control.noteRegression(environment, {
      version,
      step,
      best: best.name,
      bestStep: best.step,
      difference: difference.mean,
      text,
    });
    control.emit('regression', step, text, {
      environment,
      reward,
      best_step: best.step,
      best_reward: best.reward,
      difference: difference.mean,
      low: difference.low,
      high: difference.high,
    });
    // One evaluation alone would be flagged too often: chance affects some in a hundred.
    if (this.#isLastStepMade || action === 'flag' || regression.isRepeated !== true) return;
    if (action === 'stop') return control.stopBecause(text);
    control.pause(`${text}. Resume to continue, or go back: npx ratchet-rl rewind ${spec.name} --step ${best.step}`);
  }
}

function secondsSince(time: string): number {
  return (Date.now() - Date.parse(time)) / 1000;
}
