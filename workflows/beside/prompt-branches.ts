import { present } from '../../core/present.ts';
import { CancellationScope, ContinueAsNew, isCancellation, startChild, workflowInfo } from '@temporalio/workflow';
import { areBranchesDue, promptBranch, verdictOn } from './prompt-branch.ts';
import type { PromptSearchResult, PromptTrial } from '../../core/gepa/prompt-search.ts';
import { layout } from '../../runs/layout.ts';
import { versionName } from '../../core/names.ts';
import type { PolicyVersion, PromptBranch, PromptRef, Prompts, RunState } from '../../core/rl/run-state.ts';
import type { PromptBranchSpec, RunSpec } from '../../config/run-spec.ts';
import { opening, orchestratorFor } from '../options.ts';
import {
  adoptedLine,
  branchCancelledLine,
  branchFailedLine,
  foundNothingLine,
  type LeftBecause,
  oneVersionLine,
  unansweredLine,
  verdictLine,
} from './branch-lines.ts';
import { ChildWork, memoOfPool } from './child-work.ts';
import {
  adoptPromptUpdate,
  type BranchUnderWay,
  branchUpdate,
  promptBranchEndedSignal,
  type PromptStanding,
} from '../control/messages.ts';
import type { optimizePrompt } from '../optimize-prompt.ts';
import { PromptTrials } from './prompt-trials.ts';
import type { Publishing } from '../step/publishing.ts';
import { rootCause } from './root-cause.ts';
import type { RunContext } from '../run-context.ts';
import { refusal } from '../control/refusal.ts';
import type { ServingSchedule } from '../step/serving-schedule.ts';

interface BranchOptions extends RunContext {
  readonly publishing: Publishing;
  readonly serving: ServingSchedule;
  /** The newest version that the servers hold; null before there is one. */
  readonly served: () => PolicyVersion | null;
  /** State that the run continues from; undefined before the first commit. */
  readonly state: Pick<RunState, 'prompts' | 'offeredPrompts'> | undefined;
}

type SpecWithBranches = RunSpec & { readonly gepa: PromptBranchSpec };

/**
 * Searches for better system prompts beside the loop, and the prompts in use. Each search is a child workflow that
 * begins from a version and outlives the execution that asked for it. Its winner is tried against the prompt in use, on
 * the newest version, before it may replace it, for groups leased from the next step on.
 */
export class PromptBranches {
  readonly #options: BranchOptions;
  readonly #pending = new Map<string, PromptBranch & { readonly since: string }>();
  readonly #trials = new PromptTrials();
  readonly #children: ChildWork<PromptSearchResult>;
  /** Workflow ids of begun children, by their branch's key. */
  readonly #workflows = new Map<string, string>();
  #inUse: Prompts;
  #offered: Prompts;
  #isOver = false;

  constructor(options: BranchOptions) {
    this.#options = options;
    this.#children = new ChildWork(promptBranchEndedSignal, options.control);
    this.#inUse = options.state?.prompts ?? {};
    this.#offered = options.state?.offeredPrompts ?? {};
    options.control.changes.on(
      branchUpdate,
      (environment = null) => this.#asked(environment),
      (environment = null) => this.#requireBranchable(environment),
    );
    options.control.changes.on(
      adoptPromptUpdate,
      (environment = null) => this.#adoptOffered(environment),
      (environment = null) => this.#requireOffered(environment),
    );
    options.control.prompts = () => this.#standing();
    // Children outlive the run, so a cancelled run cancels them itself.
    CancellationScope.current().cancelRequested.catch(() => CancellationScope.nonCancellable(() => this.leave(null)));
  }

  /** Prompts for groups leased from now on; undefined while every environment has its own. */
  get inUse(): Prompts | undefined {
    return orNothing(this.#inUse);
  }

  /** Steps whose versions are being searched: their weights must stay. */
  get pendingSteps(): number[] {
    return [...new Set([...this.#pending.values()].map(({ step }) => step))];
  }

  /**
   * Prompts and branches for the commit of a step, including branches due then; without a step, for continue-as-new.
   */
  toCommit(step: number | null = null): Pick<RunState, 'prompts' | 'offeredPrompts' | 'pendingBranches'> {
    const underWay = [...this.#pending.values()].map(({ environment, step: of }) => ({ environment, step: of }));
    const pending = [...underWay, ...(step === null ? [] : this.#due(step))];
    const [prompts, offeredPrompts] = [orNothing(this.#inUse), orNothing(this.#offered)];
    return {
      ...present({ prompts, offeredPrompts }),
      ...(pending.length === 0 ? {} : { pendingBranches: pending }),
    };
  }

  /** Begins the branches due at a committed step. */
  begin(step: number): void {
    this.goOn(this.#due(step));
  }

  /** Begins branches, or resumes those that an earlier execution had begun. */
  goOn(branches: readonly PromptBranch[]): void {
    const { spec } = this.#options;
    const { gepa } = spec;
    if (gepa === undefined) return; // the run file has none any more
    for (const branch of branches) {
      if (!gepa.environments.includes(branch.environment) || this.#pending.has(keyOf(branch))) continue;
      this.#pending.set(keyOf(branch), { ...branch, since: new Date().toISOString() });
      void this.#branch(branch, { ...spec, gepa }).catch((reason: unknown) => this.#failed(branch, reason));
    }
  }

  /** A failing run cancels its branches, like one that ends. */
  async endingWith<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      const why = isCancellation(error) ? null : 'failure';
      if (!(error instanceof ContinueAsNew)) await CancellationScope.nonCancellable(() => this.leave(why));
      throw error;
    }
  }

  /** Abandons what is under way when the run ends or continues elsewhere. A `why` that is not null is reported. */
  async leave(why: LeftBecause | null): Promise<void> {
    if (why !== null && !this.#isOver) this.#tellOfLeaving(why);
    this.#isOver = true;
    this.#pending.clear();
    this.#trials.leave();
    const workflows = [...this.#workflows.values()];
    this.#workflows.clear();
    await this.#children.cancel(workflows);
  }

  #tellOfLeaving(why: LeftBecause): void {
    const { control, spec } = this.#options;
    for (const branch of this.#pending.values()) {
      const values = { environment: branch.environment, verdict: 'cancelled' };
      control.emit('prompt', null, branchCancelledLine(branch, why), values);
    }
    if (why === 'rewind') return; // it is an offer of another lineage
    for (const [environment, offered] of Object.entries(this.#offered)) {
      const values = { environment, verdict: 'unanswered', digest: offered.ref.sha256 };
      control.emit('prompt', null, unansweredLine(spec.name, environment, offered), values);
    }
  }

  #standing(): PromptStanding[] {
    const { spec } = this.#options;
    const underWay = [...this.#pending.values()];
    const names = [...(spec.gepa?.environments ?? []), ...Object.keys(this.#inUse)];
    return [...new Set(names)].map((environment) => {
      const branch = underWay.find((pending) => pending.environment === environment);
      return {
        environment,
        inUse: this.#inUse[environment] ?? null,
        offered: this.#offered[environment] ?? null,
        branch: branch === undefined ? null : this.#underWay(branch),
      };
    });
  }

  #underWay(branch: PromptBranch & { readonly since: string }): BranchUnderWay {
    const { environment, step, since } = branch;
    const workflow = this.#workflows.get(keyOf(branch)) ?? null;
    return { step, since, workflow, ...present({ trial: this.#trials.inPlay(environment) ?? undefined }) };
  }

  /** Searches of one environment run one at a time. */
  #due(step: number): PromptBranch[] {
    const { spec, control } = this.#options;
    const { gepa } = spec;
    if (gepa === undefined || !areBranchesDue(gepa, step, control.lastStep)) return [];
    return gepa.environments
      .filter((environment) => !this.#isSearched(environment))
      .map((environment) => ({ environment, step }));
  }

  #isSearched(environment: string): boolean {
    return [...this.#pending.values()].some((pending) => pending.environment === environment);
  }

  async #branch(branch: PromptBranch, spec: SpecWithBranches): Promise<void> {
    const { serving, run, control } = this.#options;
    const { environment, step } = branch;
    const policy = await this.#versionOf(branch);
    if (this.#isLeft(branch)) return;
    // Name under which the servers hold the version during the search.
    const holder = layout.promptBranch(run.lineage, environment, run.name, [policy.step, policy.replay]);
    const summary = `${versionName(policy)} for its branch on ${environment}`;
    const held = await orchestratorFor(spec).holdVersion.executeWithOptions({ summary }, [{ run, policy, holder }]);
    if (this.#isLeft(branch)) return;
    const carryOut = () => this.#carryOut(branch, policy, spec);
    // Servers with one version cannot sample for training while they have this one.
    const isAlone = held === 'single' && spec.eval?.when !== 'beside';
    if (held === 'single') control.emit('warning', null, oneVersionLine(environment, versionName(policy), isAlone));
    await (isAlone ? serving.alone(carryOut) : carryOut());
    if (this.#isLeft(branch)) return;
    this.#pending.delete(keyOf({ environment, step }));
  }

  async #carryOut(branch: PromptBranch, policy: PolicyVersion, spec: SpecWithBranches): Promise<void> {
    if (this.#isLeft(branch)) return;
    const { run, control } = this.#options;
    const { environment } = branch;
    const found = `${versionName(policy)} on ${environment}`;
    const result = await control.waitFor(`gepa branch ${found}`, this.#searched(branch, policy, spec));
    if (this.#isLeft(branch)) return;
    const { bestPrompt, best, calls, bestScore, startScore } = result;
    const figures = { environment, calls, reflections: result.reflections, ...scored({ bestScore, startScore }) };
    if (best === 0 || bestPrompt === null || bestPrompt.sha256 === this.#inUse[environment]?.ref.sha256) {
      const text = foundNothingLine(environment, versionName(policy), calls);
      return control.emit('prompt', null, text, { ...figures, verdict: 'nothing found' });
    }
    const newest = this.#options.served() ?? policy;
    const trial = await control.waitFor(
      `the prompt of ${environment} that was found, on ${versionName(newest)}`,
      this.#trials.of(environment, spec, { place: result.place, prompt: bestPrompt, policy: newest }),
    );
    if (this.#isLeft(branch)) return;
    this.#decide(branch, { trial, newest, adopt: spec.gepa.adopt, run: run.name, figures });
  }

  #decide(
    branch: PromptBranch,
    of: {
      readonly trial: PromptTrial;
      readonly newest: PolicyVersion;
      readonly adopt: PromptBranchSpec['adopt'];
      readonly run: string;
      readonly figures: Readonly<Record<string, number | string>>;
    },
  ): void {
    const { trial, newest, adopt, run } = of;
    const { environment, step } = branch;
    const { before, after, examples, difference, prompt } = trial;
    const verdict = verdictOn(trial, adopt);
    const winner: PromptRef = { ref: prompt, foundAt: step };
    if (verdict === 'taken') this.#adopt(environment, winner);
    if (verdict === 'offered') this.#offered = { ...this.#offered, [environment]: winner };
    const low = difference === null ? {} : { difference: difference.mean, low: difference.low, high: difference.high };
    const text = verdictLine({ branch, trial, version: versionName(newest), verdict, run });
    this.#options.control.emit('prompt', null, text, {
      ...of.figures,
      examples,
      ...scored({ before, after }),
      ...low,
      verdict,
      digest: prompt.sha256,
    });
  }

  #adopt(environment: string, winner: PromptRef): void {
    const { [environment]: _, ...offered } = this.#offered;
    this.#offered = offered;
    this.#inUse = { ...this.#inUse, [environment]: winner };
  }

  async #versionOf({ environment, step }: PromptBranch): Promise<PolicyVersion> {
    const { run, publishing } = this.#options;
    const replaced = await publishing.of(step);
    if (replaced?.replay) return replaced;
    const summary = `v${step} for a branch on ${environment}`;
    return (await opening.findEvaluation.executeWithOptions({ summary }, [{ run, step, environment }])).policy;
  }

  async #searched(branch: PromptBranch, policy: PolicyVersion, spec: SpecWithBranches): Promise<PromptSearchResult> {
    const { run, control } = this.#options;
    const notify = { workflowId: workflowInfo().workflowId };
    const { workflowId, input } = promptBranch({ run, spec, policy, prompts: this.#inUse }, branch.environment, notify);
    this.#workflows.set(keyOf(branch), workflowId);
    const staticSummary = `${input.environments[0]!.name} · ${input.model.model}`;
    const result = await this.#children.resultOf(
      workflowId,
      (options) =>
        startChild<typeof optimizePrompt>('optimizePrompt', {
          ...options,
          args: [input],
          staticSummary,
          ...memoOfPool(spec, control.overrides),
        }),
      () => this.#isLeft(branch),
    );
    this.#workflows.delete(keyOf(branch));
    return result;
  }

  #isLeft(branch: PromptBranch): boolean {
    return this.#isOver || !this.#pending.has(keyOf(branch));
  }

  /** A failed branch neither pauses nor ends the run: it is reported. */
  #failed(branch: PromptBranch, reason: unknown): void {
    if (this.#isLeft(branch)) return;
    this.#pending.delete(keyOf(branch));
    this.#workflows.delete(keyOf(branch));
    const { environment, step } = branch;
    const { control, spec } = this.#options;
    const text = branchFailedLine(spec.name, { environment, step }, rootCause(reason).message);
    control.emit('warning', null, text, { environment, verdict: 'failed' });
  }

  #asked(environment: string | null): string {
    const { gepa } = this.#options.spec;
    const { step } = this.#options.served()!;
    const names = (environment === null ? gepa!.environments : [environment]).filter((name) => !this.#isSearched(name));
    this.goOn(names.map((name) => ({ environment: name, step })));
    return `Branched off ${versionName(this.#options.served()!)}: a better prompt is looked for on ${names.join(', ')}, ${gepa!.maxCalls} calls at most each; a better prompt is used as adopt says: "${gepa!.adopt}".`;
  }

  #requireBranchable(environment: string | null): void {
    const { gepa } = this.#options.spec;
    if (gepa === undefined)
      throw refusal('gepa-branch: the run file has no [gepa], which says who writes prompts anew.');
    if (this.#options.served() === null || this.#isOver)
      throw refusal('gepa-branch: there is no version to branch from.');
    const names = environment === null ? gepa.environments : [environment];
    if (environment !== null && !gepa.environments.includes(environment)) {
      throw refusal(
        `gepa-branch: expected one of ${gepa.environments.join(', ')}, got ${JSON.stringify(environment)}.`,
      );
    }
    if (names.every((name) => this.#isSearched(name))) {
      throw refusal(`gepa-branch: a branch on ${names.join(', ')} is under way already.`);
    }
  }

  #adoptOffered(environment: string | null): string {
    const name = environment ?? Object.keys(this.#offered)[0]!;
    const winner = this.#offered[name]!;
    this.#adopt(name, winner);
    const { control } = this.#options;
    control.emit('prompt', null, adoptedLine(name, winner), {
      environment: name,
      verdict: 'taken',
      digest: winner.ref.sha256,
    });
    return `${name}: ${winner.ref.key} is its system prompt for groups that are leased from the next step on.`;
  }

  #requireOffered(environment: string | null): void {
    const offered = Object.keys(this.#offered);
    if (offered.length === 0) throw refusal('adopt-prompt: no prompt that was found waits for a yes.');
    if (environment === null ? offered.length > 1 : !offered.includes(environment)) {
      throw refusal(`adopt-prompt: expected one of ${offered.join(', ')}, got ${JSON.stringify(environment)}.`);
    }
    const name = environment ?? offered[0]!;
    if (this.#isSearched(name)) {
      throw refusal(
        `adopt-prompt: a branch on ${name} is under way, which began with the prompt in use; wait for its end, or stop it.`,
      );
    }
  }
}

function keyOf({ environment, step }: PromptBranch): string {
  return `${environment}@${step}`;
}

function orNothing(prompts: Prompts): Prompts | undefined {
  return Object.keys(prompts).length === 0 ? undefined : prompts;
}

/** Only the figures that are not null. */
function scored(figures: Readonly<Record<string, number | null>>): Record<string, number> {
  return Object.fromEntries(
    Object.entries(figures).flatMap(([name, value]) => (value === null ? [] : [[name, value]])),
  );
}
