import { priorityMax } from '../limits.ts';
import { present } from '../present.ts';
import { type BudgetLimits, budgetMost } from '../settings/budgets.ts';
import { received } from '../shape.ts';
import { shortened } from '../steering.ts';
import { nearestName } from '../suggest.ts';
import type { RunSettings } from '../settings/run.ts';
import type { Overrides } from './run-state.ts';

export const liveSettingNames = [
  'learning_rate',
  'max_steps',
  'stop_after',
  'max_grad_norm',
  'max_mismatch_kl',
  'eval.interval',
  'checkpoints.interval',
  'budget.tokens',
  'budget.money',
  'budget.sandbox_seconds',
  'budget.tool_calls',
  'budget.wall_seconds',
  'queue.priority',
] as const;
export type LiveSetting = (typeof liveSettingNames)[number];

export interface LiveRule {
  readonly key: keyof Overrides;
  readonly expected: string;
  /** `underWay`: the step in progress, from 1. */
  readonly takes: (value: number, underWay: number) => boolean;
  readonly says: string;
  /** The run file's value; null if it has none. */
  readonly inFile: (spec: SettingsContext['spec']) => number | null;
  /** It changes what the run learns, and not only when it ends and what it stores. */
  readonly isLearned?: true;
  /** Valid only until the run is started again with its file, which then wins. */
  readonly untilNextStart?: true;
}

const positive = { expected: 'a number above 0', takes: (value: number) => value > 0 && Number.isFinite(value) };
const upTo = (max: number) => ({
  expected: `a number above 0, at most ${max}`,
  takes: (value: number) => value > 0 && value <= max,
});
const interval = {
  expected: 'a whole number from 1',
  takes: (value: number) => Number.isSafeInteger(value) && value >= 1,
};
const lastStep = {
  expected: 'a whole number after the step under way',
  takes: (value: number, underWay: number) => Number.isSafeInteger(value) && value >= underWay,
  untilNextStart: true,
} as const;

/**
 * Settings that can be changed in a running run: `ratchet set RUN name=value …`. A change applies from the next plan
 * on, is in every later commit, and never affects a step that is planned. Everything else belongs to the run file. The
 * entry of such a setting in `config/settings/` names its rule here, because workflows do not import `config/`.
 */
export const liveSettings: Readonly<Record<LiveSetting, LiveRule>> = {
  learning_rate: {
    key: 'learningRate',
    expected: 'a number above 0 and below 1',
    takes: (value) => value > 0 && value < 1,
    says: 'peak; the schedule continues over it',
    isLearned: true,
    inFile: ({ learningRate }) => learningRate,
  },
  max_steps: {
    key: 'maxSteps',
    ...lastStep,
    says: 'how many steps the run makes; linear and cosine schedules end there',
    isLearned: true,
    inFile: ({ maxSteps }) => maxSteps,
  },
  stop_after: {
    key: 'stopAfter',
    ...lastStep,
    says: 'the last step of this time; the schedule stays, and `ratchet train` continues from there',
    inFile: () => null,
  },
  max_grad_norm: {
    key: 'maxGradNorm',
    ...positive,
    says: 'gradients are scaled down to it',
    isLearned: true,
    inFile: ({ optimizer }) => optimizer.maxGradNorm,
  },
  max_mismatch_kl: {
    key: 'maxMismatchKl',
    ...positive,
    says: 'nats per token; sampling is as far ahead as keeps samples that near',
    isLearned: true,
    inFile: ({ maxMismatchKl }) => maxMismatchKl,
  },
  'eval.interval': {
    key: 'evalInterval',
    ...interval,
    says: 'steps between evaluations',
    inFile: ({ eval: evaluation }) => evaluation?.interval ?? null,
  },
  'checkpoints.interval': {
    key: 'checkpointInterval',
    ...interval,
    says: 'steps between checkpoints',
    inFile: ({ checkpoints }) => checkpoints.interval,
  },
  'budget.tokens': {
    key: 'budgetTokens',
    ...upTo(budgetMost.tokens),
    says: 'prompt and sampled tokens of the run',
    inFile: ({ budget }) => budget?.tokens ?? null,
  },
  'budget.money': {
    key: 'budgetMoney',
    ...upTo(budgetMost.money),
    says: 'money of the run, at the prices of `[cost]`',
    inFile: ({ budget }) => budget?.money ?? null,
  },
  'budget.sandbox_seconds': {
    key: 'budgetSandboxS',
    ...upTo(budgetMost.sandboxS),
    says: 'seconds of sandboxes of the run',
    inFile: ({ budget }) => budget?.sandboxS ?? null,
  },
  'budget.tool_calls': {
    key: 'budgetToolCalls',
    ...upTo(budgetMost.toolCalls),
    says: 'tool calls of the run',
    inFile: ({ budget }) => budget?.toolCalls ?? null,
  },
  'budget.wall_seconds': {
    key: 'budgetWallS',
    ...upTo(budgetMost.wallS),
    says: 'seconds since the first call of the run',
    inFile: ({ budget }) => budget?.wallS ?? null,
  },
  'queue.priority': {
    key: 'queuePriority',
    expected: `a whole number from -${priorityMax} to ${priorityMax}`,
    takes: (value) => Number.isSafeInteger(value) && Math.abs(value) <= priorityMax,
    says: 'a run of higher priority gets a trainer of the pool first',
    inFile: ({ queue }) => queue?.priority ?? null,
  },
};

/** The limits of the run's budget among these overrides, as the budget names them. */
export function budgetIn(overrides: Overrides): Partial<BudgetLimits> {
  const { budgetTokens, budgetMoney, budgetSandboxS, budgetToolCalls, budgetWallS } = overrides;
  return present({
    tokens: budgetTokens,
    money: budgetMoney,
    sandboxS: budgetSandboxS,
    toolCalls: budgetToolCalls,
    wallS: budgetWallS,
  });
}

/** Settings that are fixed for the life of a run (`activities/open-run.ts`): another value is another run. */
const fixedForLife = [
  'model',
  'seed',
  'batch_size',
  'rollouts_per_example',
  'env',
  'environments',
  'sft',
  'sampling',
  'lora',
  'advantage',
];
/** Settings that a fork cannot change either: its checkpoint depends on them. */
const boundToCheckpoint = ['model', 'sft', 'lora'];

/** Settings of `name=value`, as numbers; `refused` says why one of them cannot be changed. */
type AskedSettings = Readonly<Record<string, number>>;

/** A run at a step, for the validator. */
export interface SettingsContext {
  readonly run: string;
  readonly spec: Pick<
    RunSettings,
    'learningRate' | 'maxSteps' | 'maxMismatchKl' | 'optimizer' | 'eval' | 'checkpoints' | 'budget' | 'cost' | 'queue'
  >;
  readonly overrides: Overrides;
  /** The step in progress, from 1; a last step must not be before it. */
  readonly underWay: number;
}

/** Why these settings cannot be changed, or null when they can: all of them or none. */
export function refuseSettings(asked: AskedSettings, context: SettingsContext): string | null {
  const names = Object.keys(asked);
  if (names.length === 0) return `Nothing to set. What can be: ${liveSettingNames.join(', ')}.`;
  for (const name of names) {
    if (!isLive(name)) return unknownSetting(name, context.run);
    const value: unknown = asked[name];
    if (typeof value !== 'number' || !liveSettings[name].takes(value, context.underWay))
      return refuseValue(name, value, context);
    if (name.startsWith('budget.') && context.spec.budget === undefined) {
      return `${name}: this run has no [budget]. Stop it (ratchet stop), add [budget] to its file, and train it again.`;
    }
    if (name === 'queue.priority' && context.spec.queue === undefined) {
      return 'queue.priority: this run is of no pool. Stop it (ratchet stop), add [queue] to its file, and train it again.';
    }
    if (name === 'budget.money' && (context.spec.cost?.prompt ?? context.spec.cost?.completion ?? null) === null) {
      return 'budget.money: this run has no prices. Stop it (ratchet stop), write prompt and completion into [cost] of its file, and train it again.';
    }
    if (name === 'eval.interval' && context.spec.eval === null) {
      return 'eval.interval: this run has no [eval]. Stop it (ratchet stop), add [eval] to its file, and train it again.';
    }
  }
  return null;
}

/** A refusal with the expected value. */
function refuseValue(name: LiveSetting, value: unknown, { underWay }: SettingsContext): string {
  const { expected, untilNextStart } = liveSettings[name];
  const after = untilNextStart ? ` (${underWay} is under way)` : '';
  return `${name}: expected ${expected}${after}; got ${received(value)}.`;
}

/** Advice for a name that a running run cannot change. `isOfFile`: whether run files know the name. */
export function unknownSetting(asked: string, run: string, isOfFile = true): string {
  const name = shortened(asked);
  const first = name.replaceAll('-', '_').split('.')[0]!;
  const can = `What can be changed while it runs: ${liveSettingNames.join(', ')}.`;
  if (boundToCheckpoint.includes(first)) {
    return `${name} is part of what the run is: its weights were made with it. Train another run: npx ratchet-rl train FILE --name NEW. ${can}`;
  }
  if (fixedForLife.includes(first)) {
    return `${name} stays as it is for the life of a run, or its groups could not be compared. A run of its own may have another: npx ratchet-rl fork ${run} --step N --name NEW --${name.replaceAll('_', '-')} VALUE. ${can}`;
  }
  const near = nearestName(name, liveSettingNames);
  if (near !== undefined) return `${name}: no such setting of a running run. Did you mean ${near}? ${can}`;
  if (!isOfFile) return `"${name}": there is no such setting. ${can}`;
  return `${name} cannot be changed while the run runs. Stop it (npx ratchet-rl stop ${run}), change its file, and train it again: it continues from its newest commit. ${can}`;
}

export function withSettings(overrides: Overrides, asked: AskedSettings): Overrides {
  const changed = Object.entries(asked).map(([name, value]) => [liveSettings[name as LiveSetting].key, value]);
  return { ...overrides, ...(Object.fromEntries(changed) as Overrides) };
}

/** `learning_rate 0.001 → 0.0005`, one for each. */
export function describeSettings(asked: AskedSettings, { spec, overrides }: SettingsContext): string[] {
  return (Object.keys(asked) as LiveSetting[]).map((name) => {
    const { key, inFile, untilNextStart } = liveSettings[name];
    const note = untilNextStart ? ' (until it is trained again with its file)' : '';
    return `${name} ${overrides[key] ?? inFile(spec) ?? 'none'} → ${asked[name]}${note}`;
  });
}

/** The overrides that stay when the run is started again: all but those of when to stop. */
export function overridesThatStay(overrides: Overrides): Overrides {
  const passing = new Set(
    Object.values(liveSettings).flatMap(({ key, untilNextStart }) => (untilNextStart ? [key] : [])),
  );
  const staying = Object.entries(overrides).filter(([key]) => !passing.has(key as keyof Overrides));
  return Object.fromEntries(staying);
}

/** Text to compare overrides that stay when the run is trained again. */
export function staying(overrides: Overrides): string {
  return JSON.stringify(overridesThatStay(overrides));
}

/** Whether a setting changes what a run learns. One that only another version knows may. */
export function isLearned(name: string): boolean {
  return !isLive(name) || liveSettings[name].isLearned === true;
}

function isLive(name: string): name is LiveSetting {
  return Object.hasOwn(liveSettings, name);
}
