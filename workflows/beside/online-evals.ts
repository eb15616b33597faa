import {
  ActivityFailure,
  CancellationScope,
  ChildWorkflowFailure,
  condition,
  startChild,
  workflowInfo,
} from '@temporalio/workflow';
import type { EvaluationResult } from '../../core/eval/evaluation.ts';
import { environmentsDue, type EvaluationVariant, isGreedy, onlineEvaluation } from '../../runs/online-evaluation.ts';
import { describeRegression, type Regression } from '../../core/eval/regression.ts';
import { lineageOf } from '../../runs/layout.ts';
import { evaluationWorkflowId, versionName } from '../../core/names.ts';
import type { PolicyVersion, Prompts } from '../../core/rl/run-state.ts';
import type { EvalSpec } from '../../config/run-spec.ts';
import type { EvaluationSummary } from '../../activities/index.ts';
import { opening, orchestratorFor } from '../options.ts';
import { awaitedLater } from './beside.ts';
import { ChildWork, ChildWorkFailed } from './child-work.ts';
import type { evaluate } from '../evaluate.ts';
import { evalLine, evalValues } from '../control/lines.ts';
import { onSignal } from '../control/listen.ts';
import { evaluationEndedSignal, type FoundRegression, regressionFoundSignal } from '../control/messages.ts';
import type { Publishing } from '../step/publishing.ts';
import { rootCause } from './root-cause.ts';
import type { RunContext } from '../run-parts.ts';
import type { ServingSchedule } from '../step/serving-schedule.ts';

/** One environment's evaluation of one version that is due or under way: what continue-as-new carries of it. */
export interface PendingEvaluation {
  readonly environment: string;
  readonly step: number;
  /** Known once it is in the store. */
  readonly policy: PolicyVersion | null;
  /** In use at its commit; absent while every environment had its own. */
  readonly prompts?: Prompts | undefined;
  /** When it was due, ISO time. */
  readonly since: string;
  /** Whether nothing else may be sampled meanwhile; null until that is known. */
  readonly isAlone: boolean | null;
}

interface OnlineEvalOptions extends RunContext {
  readonly publishing: Publishing;
  readonly serving: ServingSchedule;
  /** The last few that have ended, for the summary. */
  readonly done: readonly EvaluationSummary[];
}

type Known = PendingEvaluation & { readonly policy: PolicyVersion };
/** With the prompts of its commit. */
interface EvaluatedVersion {
  readonly policy: PolicyVersion;
  readonly prompts?: Prompts | undefined;
}
type Entry = EvalSpec['environments'][number];

/**
 * Evaluations beside the loop: a child workflow for each environment and version, which names its version in every request. A child
 * outlives the execution that asked for it; its results lie in the store, so whatever dies, none is paid for twice.
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
  /** Those that are left behind, or given up: what comes of them is nobody's. */
  readonly #left = new Set<string>();
  #isOneVersionSaid = false;
  /** Deferred ones go one after another: each is another version. */
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

  /** What has ended, oldest first. */
  get done(): readonly EvaluationSummary[] {
    return this.#done;
  }

  /** Steps of which an evaluation is due or under way, ascending: their weights must stay. */
  get pendingSteps(): number[] {
    return [...new Set([...this.#pending.values()].map(({ step }) => step))].sort((a, b) => a - b);
  }

  /** What continue-as-new carries. */
  carry(): PendingEvaluation[] {
    return [...this.#pending.values()];
  }

  isDue(step: number): boolean {
    return this.#entriesDue(step).length > 0;
  }

  /** Begins what is due of a committed step; what is under way already goes on. */
  evaluate(step: number): void {
    const due = this.#entriesDue(step);
    // Of one that was due when it was committed, whatever the interval is now.
    const entries = due.length > 0 ? due : (this.#options.spec.eval?.environments ?? []);
    for (const { name } of entries) {
      this.#begin({ environment: name, step, policy: null, since: new Date().toISOString(), isAlone: null });
    }
  }

  /** Goes on with what the execution before had begun. */
  resume(carried: readonly PendingEvaluation[]): void {
    for (const pending of carried) this.#begin(pending);
  }

  /** Waits for all of them; those that were deferred are begun now. */
  async finish(): Promise<void> {
    this.#isLastStepMade = true;
    for (let settled = -1; settled !== this.#work.length;) {
      settled = this.#work.length;
      await Promise.all(this.#work);
    }
    this.#work = [];
  }

  /** The run goes on from an earlier step: evaluations of later ones are of versions that nobody trains on. */
  async leaveBehind(lastStep: number): Promise<void> {
    await this.#cancel((pending) => pending.step > lastStep);
  }

  /** The run is cancelled. Children outlive us: they are told so themselves, before we end. */
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
      // From the moment that it is due: what is leased while its version is looked for would be sampled before it.
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

  /** With the version that it is of; null where nothing is left to do. */
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
    const recorded = await this.#orchestrator.recordEvaluation.executeWithOptions({ summary }, [
      { run, policy, holder, sampled, greedy },
    ]);
    if (this.#left.has(key)) return;
    this.#pending.delete(key);
    this.#done.push(recorded.summary);
    control.tell('eval', step, evalLine(recorded.summary, cost), { ...evalValues(recorded.summary), ...cost });
    this.#judge(entry.name, version, step, recorded.regression);
  }

  /** Whether nobody may train meanwhile, because servers sample from one version only. */
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
      control.tell(
        'warning',
        null,
        `the inference servers sample from one version at a time: ${what}; when = "defer" evaluates after the last step`,
      );
    }
    return isSingle && this.#when === null;
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = awaitedLater(this.#deferred.then(work));
    this.#deferred = turn.catch(() => undefined); // whoever awaits it has its failure
    return turn;
  }

  /** Of a step that an execution before this one may have evaluated: then nothing is left to do. */
  async #versionOf(step: number, environment: string): Promise<EvaluatedVersion | 'recorded'> {
    const { run, spec, publishing } = this.#options;
    const replaced = await publishing.of(step);
    if (replaced?.replay && spec.gepa === undefined) return { policy: replaced };
    const summary = `v${step} on ${environment}`;
    const found = await opening.findEvaluation.executeWithOptions({ summary }, [{ run, step, environment }]);
    const prompts = found.prompts ? { prompts: found.prompts } : {};
    if (replaced?.replay) return { policy: replaced, ...prompts };
    return found.isRecorded ? 'recorded' : { policy: found.policy, ...prompts };
  }

  async #resultOf(entry: Entry, version: EvaluatedVersion, variant: EvaluationVariant): Promise<EvaluationResult> {
    const { run, spec } = this.#options;
    const notify = { workflowId: workflowInfo().workflowId };
    const { workflowId, input } = onlineEvaluation({ run, spec, ...version }, entry, variant, notify);
    const staticSummary = `${input.environment.name} · ${input.model.model}`;
    return this.#children.resultOf(workflowId, async (options) => {
      const child = await startChild<typeof evaluate>('evaluate', { ...options, args: [input], staticSummary });
      return { result: async () => (await child.result()).results[0]! };
    });
  }

  /** An evaluation pauses nothing and ends nothing: what failed of it is said, and can be made up for. */
  #told(key: string, { environment, step }: PendingEvaluation, reason: unknown): void {
    if (this.#left.has(key)) return;
    const isOurs = reason instanceof ChildWorkFailed || reason instanceof ChildWorkflowFailure;
    if (!isOurs && !(reason instanceof ActivityFailure)) throw reason;
    this.#pending.delete(key);
    const { spec, control } = this.#options;
    control.tell(
      'warning',
      step,
      `eval v${step} on ${environment} failed: ${rootCause(reason).message} Once that is repaired: npx ratchet-rl eval checkpoints ${spec.name} --steps ${step}`,
    );
  }

  /** With nothing to compare with (the first under a prompt), the flag stays as it is: it speaks of the policy under the prompt before. */
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
    control.tell('regression', step, text, {
      environment,
      reward,
      best_step: best.step,
      best_reward: best.reward,
      difference: difference.mean,
      low: difference.low,
      high: difference.high,
    });
    // One evaluation alone is flagged too often: chance marks some in a hundred.
    if (this.#isLastStepMade || action === 'flag' || regression.isRepeated !== true) return;
    if (action === 'stop') return control.stopBecause(text);
    control.pause(`${text}. Resume to continue, or go back: npx ratchet-rl rewind ${spec.name} --step ${best.step}`);
  }
}

function secondsSince(time: string): number {
  return (Date.now() - Date.parse(time)) / 1000;
}
