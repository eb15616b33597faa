import { environmentTraits } from '../core/kinds/environments.ts';
import { present } from '../core/present.ts';
import { noPrices } from '../core/rl/budget.ts';
import { rolloutAttemptsMax } from '../core/limits.ts';
import { onAbort } from '../core/on-abort.ts';
import { outcomeOfFailure } from '../core/rl/failures.ts';
import {
  type ChatMessage,
  type FailedOutcome,
  isOutcome,
  isRewardedOutcome,
  type PlayedAgain,
  type Rollout,
  type ToolSchema,
  type Turn,
} from '../core/rl/rollout/rollout.ts';
import type { EnvironmentEntry, Environments } from '../backends/environments/index.ts';
import { failedRollout, tookLonger, tracebackOf } from '../backends/environments/score.ts';
import type { Environment, Policy, RolloutPlace, RolloutRecord } from '../backends/environments/types.ts';
import { withSystemPrompt } from '../core/rl/rollout/system-prompt.ts';
import type { TimeoutFate } from '../core/settings/environments.ts';
import { tokensOfPolicy, withinLimits } from './rollout-limits.ts';
import type { NotesView } from '../runs/rollouts/notes.ts';
import { RolloutEffects } from './rollout-effects.ts';
import { type LeasedTo, sandboxesFor } from './sandboxes/rollout-sandboxes.ts';
import { withinToolCalls } from './budget/budgeted-policy.ts';
import { type AroundRollouts, RolloutBudget } from './budget/rollout-budget.ts';
import type { PlayedPolicy } from './policy/sample-policy.ts';

export interface PlayOptions {
  readonly environments: Environments;
  readonly entry: EnvironmentEntry;
  readonly dataset: 'dataset' | 'evalDataset';
  readonly place: Pick<Rollout, 'group' | 'index' | 'exampleId'>;
  /** Members of its group that are generated together. */
  readonly together: Pick<RolloutPlace, 'group' | 'size' | 'brokenOff'>;
  /** Most attempts when its environment fails. */
  readonly attemptsMax?: number;
  /** Sampling fields of the request, for a policy behind an API. */
  readonly sampling?: RolloutPlace['sampling'];
  /** In place of the environment's own; '' = none. */
  readonly systemPrompt?: string | undefined;
  /** Tool descriptions by tool name, in place of the environment's own. */
  readonly toolDescriptions?: Readonly<Record<string, string>> | undefined;
  /** Repeats a rollout that ends with an empty reply, as often as one whose environment failed. */
  readonly asksEmptyAgain?: boolean;
  /** Missing = nothing of it outlives this process. */
  readonly notes?: NotesView;
  /** Who has the sandboxes that its environment takes; missing = they are taken without leases. */
  readonly leasedTo?: LeasedTo;
  /** Turns that an earlier attempt finished. */
  readonly recorded?: () => readonly Turn[];
  /** Its turns end with `signal`, which is raised also when the rollout has timed out. */
  readonly openPolicy: (environment: Environment, signal: AbortSignal, budget?: RolloutBudget) => PlayedPolicy;
  /** Budgets around it; missing = there are none. */
  readonly budgets?: AroundRollouts | undefined;
  readonly signal: AbortSignal;
  /** Raised when none of it can be trained any more; missing = it does not age. */
  readonly tooOld?: AbortSignal | undefined;
  /** Fate of a rollout that is not finished in time; missing = its entry's limits decide, else it is dropped. */
  readonly onTimeout?: TimeoutFate;
  /** End of all work under way, besides the entry's own `timeout`; missing = with `signal`, and nothing is kept. */
  readonly lastCall?: LastCall | undefined;
}

/** End of a last attempt: rollouts unfinished shortly before it are truncated. */
export interface LastCall {
  /** On the clock of `performance.now()`. */
  readonly atMs: number;
  /** On the same clock: a rollout that began later had too little time for its silence to count. */
  readonly begunByMs: number;
  /** Error text of a rollout that this deadline cuts off. */
  readonly says: string;
  /** False while no rollout can finish through no fault of its own; then none is given up. */
  readonly isDue: () => boolean;
}

/** Outcomes that a retry would not change. */
const finalOutcomes: readonly FailedOutcome[] = ['overlong_prompt', 'rejected', 'timeout', 'stale', 'in_doubt'];

/**
 * Generates one rollout. An environment's failure is retried in a fresh environment, and becomes the rollout's outcome
 * if it persists; failures of the inference server that affect everyone are thrown. Throws the signal's reason as soon
 * as it is raised, even while the environment hangs.
 */
export async function playRollout(options: PlayOptions): Promise<Rollout> {
  const { notes } = options;
  if (notes === undefined) return playWith(options, null);
  const effects = new RolloutEffects(notes);
  const rollout = await playWith(options, effects);
  effects.throwIfTakenOver();
  return effects.mayHaveAny ? effects.settle(rollout) : rollout;
}

async function playWith(options: PlayOptions, effects: RolloutEffects | null): Promise<Rollout> {
  const { environments, entry, dataset, place, together, openPolicy, signal, sampling, systemPrompt } = options;
  const { maxRetries = null } = entry.limits ?? {};
  const fate = options.onTimeout ?? entry.limits?.onTimeout ?? 'drop';
  const attemptsMax = maxRetries === null ? (options.attemptsMax ?? rolloutAttemptsMax) : maxRetries + 1;
  const budget = budgetOf(options);
  let environment = await environments.open(entry);
  let spoiled: PlayedAgain | undefined;
  const again = (why: string): void =>
    void (spoiled = { count: (spoiled?.count ?? 0) + 1, first: spoiled?.first ?? why });
  for (let attempt = 1; ; attempt++) {
    const limit = timeLimit(options);
    // An environment process keeps time itself: a rollout that waits there for its group has finished generating. So does
    // an agent, which is stopped and then scored.
    const { keepsTime } = environmentTraits(entry);
    const late = !keepsTime && limit !== null ? lateAfter(limit) : null;
    const ends = [late?.signal, options.tooOld].filter((one) => one !== undefined);
    const until = ends.length > 0 ? AbortSignal.any([signal, ...ends]) : signal;
    const policy = withinLimits(withinToolCalls(openPolicy(environment, until, budget), budget, until), entry);
    const listening = new ListeningPolicy(policy);
    const asked = present({ sampling, systemPrompt, budget });
    const where: RolloutPlace = {
      ...together,
      index: place.index,
      dataset,
      signal: until,
      ...asked,
      ...(keepsTime && limit ? { timeLimit: keptTime(limit, fate) } : {}),
      ...(options.asksEmptyAgain === true && attempt < attemptsMax ? { givesBackEmpty: true } : {}),
    };
    try {
      if (effects?.mayHaveAny) await effects.requireNoDoubt();
      const example = withSystemPrompt(environment[dataset].at(place.exampleId), systemPrompt);
      const playing = environment.rollout(example, describingTools(listening, options.toolDescriptions), {
        ...where,
        ...present({ notes: effects?.notes, sandboxes: options.leasedTo && sandboxesFor(entry, options.leasedTo) }),
      });
      const record = checked(await unlessAborted(playing, until), environment);
      const { outcome, isEmptyReply, ...played } = record;
      if (isEmptyReply === true) {
        again('the reply was empty');
        continue;
      }
      if (isRewardedOutcome(outcome)) {
        const cut = outcome === 'truncated' ? cutBy(budget) : {};
        return { ...place, ...played, outcome, ...cut, ...present({ playedAgain: spoiled }) };
      }
      throw new ToldFailure(outcome, record);
    } catch (error) {
      signal.throwIfAborted();
      effects?.throwIfTakenOver();
      const { failure } = policy;
      const turns = listening.turns(); // one that is under way may end after it was given up
      const inDoubt = (await effects?.inDoubt()) ?? null;
      const isLast = attempt >= attemptsMax;
      const failing = { options, environment, ends, limit, fate, budget, inDoubt, isLast };
      const ended = endOfFailed(error, failing, failure, turns);
      if (ended !== null) {
        if (!isRewardedOutcome(ended.outcome)) environment.withdraw?.(where);
        return ended;
      }
      again(onOneLine(tracebackOf(error)));
      environment = await environments.reopen(entry, environment);
    } finally {
      late?.stop();
    }
  }
}

interface Failing {
  readonly options: PlayOptions;
  readonly environment: Environment;
  /** Signals that may have ended it. */
  readonly ends: readonly AbortSignal[];
  readonly limit: TimeLimit | null;
  readonly fate: TimeoutFate;
  readonly budget: RolloutBudget | undefined;
  /** What is said of a once-only effect of unknown outcome. */
  readonly inDoubt: string | null;
  readonly isLast: boolean;
}

/** The rollout as it ends after an error; null: it is played again. Throws what concerns every rollout. */
function endOfFailed(
  error: unknown,
  { options, environment, ends, limit, fate, budget, inDoubt, isLast }: Failing,
  failure: unknown,
  turns: readonly Turn[],
): Rollout | null {
  const { place, tooOld } = options;
  if (inDoubt !== null) {
    const known = turns.length > 0 ? turns : (options.recorded?.() ?? []);
    return failedRollout({ ...place, turns: known }, 'in_doubt', inDoubt);
  }
  const ended = ends.find(({ aborted }) => aborted);
  const outcome = ended !== undefined && ended === tooOld ? 'stale' : ended ? 'timeout' : outcomeOf(error, failure);
  if (outcome === null) throw failure ?? error;
  const isCut = fate === 'truncate' || limit?.ofBudget === true;
  if (outcome === 'timeout' && ended && isCut && !environment.judge) {
    const why = limit?.ofBudget ? ({ overBudget: 'wallS' } as const) : ({ isTimedOut: true } as const);
    return { ...place, turns, outcome: 'truncated', ...why };
  }
  if (outcome === 'overlong_prompt' && turns.length > 0 && !environment.judge) {
    return { ...place, turns, outcome: 'truncated', ...cutBy(budget) };
  }
  if (!isLast && !finalOutcomes.includes(outcome)) return null;
  const said = ended ? (ended.reason as Error).message : tracebackOf(error);
  const failed = failedRollout({ ...place, turns }, outcome, said);
  return error instanceof ToldFailure ? { ...failed, ...error.kept } : failed;
}

function budgetOf({ entry, budgets, leasedTo }: PlayOptions): RolloutBudget | undefined {
  if (entry.budget === undefined && (budgets === undefined || budgets.shared.length === 0)) return undefined;
  return new RolloutBudget(entry.budget, budgets ?? { shared: [], prices: noPrices }, leasedTo?.store);
}

/** Names the limit of its own budget that a truncated rollout has reached. */
function cutBy(budget: RolloutBudget | undefined): Pick<Rollout, 'overBudget'> {
  return budget?.reached?.of === 'rollout' ? { overBudget: budget.reached.over } : {};
}

/** First or last line of an error, short enough for a row. */
function onOneLine(traceback: string): string {
  const lines = traceback.trim().split('\n');
  const said = traceback.startsWith('Traceback') ? lines.at(-1)! : lines[0]!;
  return said.slice(0, 200);
}

/** The same policy, recording the messages before each turn: an environment that is cut off cannot report them. */
class ListeningPolicy implements Policy {
  readonly #policy: PlayedPolicy;
  readonly #heard: (readonly ChatMessage[])[] = [];
  /** Number of messages up to the previous turn, including the policy's own. */
  #told = Infinity;

  constructor(policy: PlayedPolicy) {
    this.#policy = policy;
    Object.assign(this, tokensOfPolicy(policy));
  }

  get earlier(): readonly Turn[] {
    return this.#policy.earlier ?? [];
  }

  sample(...[messages, options]: Parameters<Policy['sample']>): ReturnType<Policy['sample']> {
    this.#heard.push(messages.slice(this.#told));
    this.#told = messages.length + 1;
    return this.#policy.sample(messages, options);
  }

  /** Turns finished so far. */
  turns(): Turn[] {
    return this.#policy.turns.map((turn, i) => {
      const heard = this.#heard[i] ?? [];
      return heard.length === 0 || turn.heard ? turn : { ...turn, heard };
    });
  }
}

/** The same policy with other descriptions of the environment's tools. */
function describingTools(policy: Policy, descriptions: PlayOptions['toolDescriptions']): Policy {
  if (descriptions === undefined) return policy;
  const described = (tool: ToolSchema): ToolSchema => {
    const description = descriptions[tool.function.name];
    return description === undefined ? tool : { ...tool, function: { ...tool.function, description } };
  };
  return {
    earlier: policy.earlier ?? [],
    ...tokensOfPolicy(policy),
    sample: (messages, options = {}) =>
      policy.sample(messages, options.tools ? { ...options, tools: options.tools.map(described) } : options),
  };
}

interface TimeLimit {
  readonly seconds: number;
  readonly says: string;
  readonly isDue: () => boolean;
  /** It is that of the rollout's budget, which truncates it whatever `on_timeout` says. */
  readonly ofBudget?: true;
  readonly isLastCall?: true;
}

/** Time limit of a rollout from now on: its entry's own, or the last call if that comes first. */
function timeLimit({ entry, lastCall }: PlayOptions): TimeLimit | null {
  const { timeoutS = null } = entry.limits ?? {};
  const { wallS = null } = entry.budget ?? {};
  const [first] = [
    ...(timeoutS === null ? [] : [{ seconds: timeoutS }]),
    ...(wallS === null ? [] : [{ seconds: wallS, ofBudget: true } as const]),
  ].toSorted((a, b) => a.seconds - b.seconds);
  const own: TimeLimit | null = first ? { ...first, says: tookLonger(first.seconds), isDue: () => true } : null;
  const now = performance.now();
  if (lastCall === undefined || now > lastCall.begunByMs || (entry.python && !lastCall.isDue())) return own;
  const seconds = (lastCall.atMs - now) / 1000;
  return own !== null && own.seconds <= seconds ? own : { ...lastCall, seconds, isLastCall: true };
}

/** The limit for an environment that keeps time itself. */
function keptTime(limit: TimeLimit, fate: TimeoutFate): NonNullable<RolloutPlace['timeLimit']> {
  const { seconds, ofBudget, isLastCall } = limit;
  if (ofBudget) return { seconds, fate: 'truncate', overBudget: 'wallS', countsWaiting: true };
  return { seconds, fate, ...(isLastCall ? { countsWaiting: true } : {}) };
}

/** Raised when the time is over, unless it is stopped. */
function lateAfter({ seconds, says, isDue }: TimeLimit): { readonly signal: AbortSignal; readonly stop: () => void } {
  const late = new AbortController();
  const end = (): void => {
    if (isDue()) late.abort(new Error(says));
  };
  const timer = setTimeout(end, seconds * 1000);
  return { signal: late.signal, stop: () => clearTimeout(timer) };
}

/** A failure that the environment classified itself instead of throwing. */
class ToldFailure extends Error {
  readonly outcome: FailedOutcome;
  /** Parts of the rollout that are kept. */
  readonly kept: Pick<Rollout, 'turns' | 'record' | 'program'>;

  constructor(outcome: FailedOutcome, { turns, record, program, error = outcome }: RolloutRecord) {
    super(error);
    this.stack = error; // the policy's own error says where it failed
    this.outcome = outcome;
    this.kept = { turns, ...present({ record, program }) };
  }
}

/** The environment may have wrapped the policy's error. */
function outcomeOf(error: unknown, failure: unknown): FailedOutcome | null {
  if (failure !== undefined) return outcomeOfFailure(failure);
  return error instanceof ToldFailure ? error.outcome : outcomeOfFailure(error);
}

/** Validates what user code returns. */
function checked(record: RolloutRecord, { name }: Environment): RolloutRecord {
  const { turns, outcome } = (record ?? {}) as Partial<Record<keyof RolloutRecord, unknown>>;
  if (Array.isArray(turns) && isOutcome(outcome)) return record;
  throw new TypeError(
    `Environment "${name}": rollout() must give { turns, outcome } with outcome "ok", "policy_failure" or "truncated"; it gave ${(JSON.stringify(record) ?? 'nothing').slice(0, 200)}.`,
  );
}

function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = (): void => reject(signal.reason as Error);
    if (signal.aborted) stop();
    const forget = onAbort(signal, stop);
    work.then(resolve, reject).finally(forget);
  });
}
