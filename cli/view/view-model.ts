import { timeoutsIn } from '../../core/rl/metrics.ts';
import type { Curves } from '../../runs/curves.ts';
import type { RunStatus, StepTrend } from '../../workflows/control/messages.ts';
import { type EvaluationProgress, versionIn } from '../eval/evaluation-progress.ts';
import { type RunSnapshot, type WaitingOn, waitingOf } from '../follow-run.ts';

/** What the live view says, as data: no terminal, no clock of its own. */
export interface ViewModel {
  readonly run: string;
  readonly model: string;
  readonly environments: readonly string[];
  readonly lineage: string;
  readonly attempt: number;
  readonly phase: RunStatus['phase'];
  /** Why it stands still; null while it does not. */
  readonly pausedBecause: string | null;
  readonly step: number;
  readonly maxSteps: number;
  /** Since the attempt began. */
  readonly elapsedS: number;
  /** Null before two steps, and when nothing is left. */
  readonly etaS: number | null;
  readonly curves: readonly Curve[];
  readonly bars: readonly Bar[];
  readonly policy: string | null;
  readonly figures: readonly { readonly name: string; readonly value: string }[];
  readonly errors: {
    /** Of the rollouts sampled for the newest step. */
    readonly rollouts: number;
    readonly infrastructure: number;
    readonly policy: number;
    /** By environment: not finished in time. */
    readonly timedOut: Readonly<Record<string, number>>;
  } | null;
  /** Groups in play by environment, and how old the oldest of them are. */
  readonly inPlay: readonly {
    readonly environment: string;
    readonly groups: number;
    readonly oldestS: number;
    readonly policyStep: number;
  }[];
  readonly lost: RunStatus['lost'];
  readonly waiting: readonly Wait[];
}

interface Curve {
  readonly name: string;
  /** Oldest first; null = not measured. */
  readonly values: readonly (number | null)[];
  readonly last: number;
  /** Of which step, where that is not the newest one. */
  readonly note: string;
}

/** One stage of a step: how much of it is finished. */
export interface Bar {
  readonly name: 'groups' | 'train' | 'eval';
  /** From 0 to 1; null when there is nothing to show. */
  readonly share: number | null;
  readonly note: string;
  /** It is at work, rather than done or still to come. */
  readonly isActive: boolean;
}

export interface Wait {
  readonly what: string;
  /** Null when it is not known. */
  readonly forS: number | null;
  readonly lastFailure: string | null;
  /** Seconds until it is tried again; null when it is at work. */
  readonly againInS: number | null;
}

/** Steps whose median tells how long one takes. */
export const stepsOfMedian = 20;

/** Null until the run has answered once. */
export function viewModel(
  { is, status, pending, evaluations = [], stuck = null }: RunSnapshot,
  nowMs: number,
  /** Curves of the whole run, if known. A status holds their newest part alone. */
  curves: Curves | null = status,
): ViewModel | null {
  if (status === null) return null;
  const { run, model, environments, lineage, attempt, phase, pausedBecause, step, maxSteps, policy, lost, latest } =
    status;
  return {
    run,
    model,
    environments,
    lineage,
    attempt,
    phase,
    pausedBecause,
    step,
    maxSteps,
    elapsedS: Math.max(0, (nowMs - Date.parse(status.since)) / 1000),
    etaS: phase === 'training' ? etaOf(status) : null,
    curves: shownCurves(curves ?? status),
    bars: [...barsOf(status, pending, nowMs), ...evalBarsOf(evaluations)],
    policy,
    figures: figuresOf(status),
    errors:
      typeof latest['rollouts'] !== 'number'
        ? null
        : {
            rollouts: latest['rollouts'],
            infrastructure: numberIn(latest, 'failed_rollouts') ?? 0,
            policy: numberIn(latest, 'policy_failures') ?? 0,
            timedOut: timeoutsIn(latest),
          },
    inPlay: status.progress.inPlay.map(({ since, ...rest }) => {
      return { ...rest, oldestS: Math.max(0, (nowMs - Date.parse(since)) / 1000) };
    }),
    lost,
    waiting: waitingOf(is, status, pending, stuck)
      .on.map((wait) => waitOf(wait, nowMs))
      .toSorted(
        (a, b) => Number(b.lastFailure !== null) - Number(a.lastFailure !== null) || (b.forS ?? 0) - (a.forS ?? 0),
      ),
  };
}

function waitOf({ what, since, lastFailure, nextAt }: WaitingOn, nowMs: number): Wait {
  return {
    what,
    forS: since === null ? null : Math.max(0, (nowMs - Date.parse(since)) / 1000),
    lastFailure,
    againInS: nextAt === null ? null : Math.max(0, (Date.parse(nextAt) - nowMs) / 1000),
  };
}

/** Null where too few steps are made, or none is left. */
export function etaOf({ step, maxSteps, trend }: Pick<RunStatus, 'step' | 'maxSteps' | 'trend'>): number | null {
  const took = medianStepSeconds(trend);
  return took === null || step >= maxSteps ? null : (maxSteps - step) * took;
}

/** Null where too few steps are made. */
export function medianStepSeconds(trend: RunStatus['trend']): number | null {
  const took = trend.slice(-stepsOfMedian).map(([, , , one]) => one);
  return took.length < 2 ? null : median(took);
}

function shownCurves({ trend, evals }: Curves): Curve[] {
  const of = (name: string, value: (entry: StepTrend) => number | null): Curve[] => {
    const values = trend.map(value);
    const last = values.findLast((one) => one !== null);
    return last === undefined ? [] : [{ name, values, last, note: '' }];
  };
  const newest = evals.at(-1);
  const same = evals.filter(({ environment }) => environment === newest?.environment);
  const score = (one: (typeof evals)[number]): number | null => one.exact ?? one.reward;
  const scored = newest ? score(newest) : null;
  return [
    ...of('reward', ([, reward]) => reward),
    ...of('exact', ([, , exact]) => exact),
    ...(scored === null ? [] : [{ name: 'eval', values: same.map(score), last: scored, note: `v${newest!.step}` }]),
  ];
}

/** `groups` compares with what a whole batch needs, which stays the same however many rounds are sampled for it. */
function barsOf(
  { progress, latest, step: committed }: RunStatus,
  pending: RunSnapshot['pending'],
  nowMs: number,
): Bar[] {
  const { collecting, training } = progress;
  const underWay = (pending ?? []).reduce((sum, { name, done }) => sum + (name === 'playGroups' ? (done ?? 0) : 0), 0);
  const bars: Bar[] = [];
  if (collecting === null) {
    bars.push(idle('groups'));
  } else {
    const { doing, rollouts, step, kept, needed, dropped, round } = collecting;
    const played = Math.min(rollouts.of, rollouts.done + underWay);
    const rounds = round > 1 ? `, ${ordinal(round)} round` : '';
    const note = [
      `kept ${kept}/${needed} for step ${step}${rounds}`,
      ...describeDropped(dropped),
      `${played} rollouts played`,
    ].join(' · ');
    bars.push({ name: 'groups', share: Math.min(1, kept / needed), note, isActive: doing !== 'nothing' });
  }
  const tookS = numberIn(latest, 'train_s');
  if (training === null) {
    return [
      ...bars,
      tookS === null ? idle('train') : { ...idle('train'), share: 1, note: `v${committed} in ${seconds(tookS)}` },
    ];
  }
  const forS = Math.max(0, (nowMs - Date.parse(training.since)) / 1000);
  const last = tookS === null ? '' : `, last ${seconds(tookS)}`;
  // Nobody knows how far one optimizer step is: the bar compares it with the last one, and says so.
  const share = tookS === null || tookS === 0 ? null : Math.min(0.95, forS / tookS);
  return [...bars, { name: 'train', share, note: `v${training.step} ${seconds(forS)}${last}`, isActive: true }];
}

/** One for each environment and version, which may be sampled and asked greedily beside it. */
function evalBarsOf(evaluations: readonly EvaluationProgress[]): Bar[] {
  const together = new Map<string, EvaluationProgress[]>();
  for (const one of evaluations) {
    const named = [versionIn(one.workflow), one.environment].join(' ');
    together.set(named, [...(together.get(named) ?? []), one]);
  }
  return [...together].map(([named, parts]) => {
    const done = parts.reduce((sum, part) => sum + part.done, 0);
    const of = parts.reduce((sum, part) => sum + (part.of ?? 0), 0);
    const isCounted = parts.every((part) => part.of !== null) && of > 0;
    return {
      name: 'eval',
      share: isCounted ? done / of : null,
      note: isCounted ? `${done}/${of} ${named}` : named,
      isActive: true,
    };
  });
}

/** `1st`, `2nd`, `3rd`, `4th`, `11th`, `21st`. */
function ordinal(number: number): string {
  const isTeen = Math.floor(number / 10) % 10 === 1;
  return `${number}${(isTeen ? undefined : ['th', 'st', 'nd', 'rd'][number % 10]) ?? 'th'}`;
}

function idle(name: Bar['name']): Bar {
  return { name, share: null, note: '', isActive: false };
}

/** `3 easy · 1 hard · 2 failed`: what became of groups that were not kept. */
function describeDropped(dropped: Readonly<Record<string, number>>): string[] {
  const words: Readonly<Record<string, string>> = { 'filtered:too_easy': 'easy', 'filtered:too_hard': 'hard' };
  const counts = new Map<string, number>();
  for (const [state, count] of Object.entries(dropped)) {
    const word =
      words[state] ?? (state.startsWith('failed:') ? 'failed' : state.replace(/^filtered:/, '').replaceAll('_', ' '));
    counts.set(word, (counts.get(word) ?? 0) + count);
  }
  return [...counts].filter(([, count]) => count > 0).map(([word, count]) => `${count} ${word}`);
}

function figuresOf({ latest, learningRate }: RunStatus): ViewModel['figures'] {
  const kl = numberIn(latest, 'kl');
  const [mean, max] = [numberIn(latest, 'off_policy/mean'), numberIn(latest, 'off_policy/max')];
  const truncated = numberIn(latest, 'train/agg/all/is_truncated/mean');
  return [
    ...(mean === null ? [] : [{ name: 'off-policy', value: `${mean.toFixed(1)} mean ${max ?? 0} max` }]),
    ...(kl === null ? [] : [{ name: 'kl', value: kl.toPrecision(2) }]),
    { name: 'lr', value: (numberIn(latest, 'learning_rate') ?? learningRate).toExponential(1) },
    ...(truncated === null ? [] : [{ name: 'truncated', value: `${(truncated * 100).toFixed(1)}%` }]),
  ];
}

function numberIn(values: RunStatus['latest'], name: string): number | null {
  const value = values[name];
  return typeof value === 'number' ? value : null;
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)]!;
}

/** `0.4s`, `12s`, `3m05s`, `2h07m`. */
export function seconds(value: number): string {
  if (value < 9.95) return `${value.toFixed(1)}s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole}s`;
  const two = (number: number): string => String(number).padStart(2, '0');
  if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
}
