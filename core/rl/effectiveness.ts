import { addLost, lostOf, nothingLost, type LostWork } from './lost-work.ts';
import type { StepCommit } from './run-state.ts';

/**
 * Effective training time (ETTR): step time of an undisturbed run × steps ÷ wall time. A run has no undisturbed twin,
 * so its step time is taken from its undisturbed steps, all from the lineage's commits alone:
 *
 * - A step's wall time is the time between two commits, less the time during which a person had paused the run.
 * - An undisturbed step counts with all of its wall time. So ETTR is 1 without a disturbance, however unequal the
 *   steps are.
 * - A disturbed step counts with the median of the undisturbed ones; without any, with its own generation, scoring
 *   and training.
 * - A step is disturbed if it reports lost work or a start of its orchestrator, or if it took long without a reason:
 *   its time beside generation, scoring and training exceeds {@link restFactor} times the others', and {@link
 *   restSlackS}. This shows servers that were down and machines that were off.
 *
 * Time before the first commit (warm-up) and after the last is left out.
 */
export interface Effectiveness {
  /** From 0 to 1; null before the first step. */
  readonly ettr: number | null;
  /** ETTR with the time during which a person had paused the run. */
  readonly ettrWithPauses: number | null;
  readonly steps: number;
  /** Over the steps, without the time during which a person had paused the run. */
  readonly wallSeconds: number;
  readonly pausedSeconds: number;
  /** Duration of an undisturbed step; null if there was none. */
  readonly stepSeconds: number | null;
  /** Sum over all commits, including the first version's. */
  readonly lost: LostWork;
  /** Accounts for the time that was not effective. */
  readonly rest: readonly IneffectiveTime[];
}

/** Why a step took longer than an undisturbed one. */
type Disturbance = 'recovered' | 'restarted' | 'waited';

/** Seconds beyond the worth of its steps. */
interface IneffectiveTime {
  readonly because: Disturbance;
  readonly seconds: number;
  /** Those with most of it first. */
  readonly steps: readonly number[];
}

/** The part of a commit that times its step. */
export type TimedCommit = Pick<StepCommit, 'step' | 'committedAt' | 'metrics' | 'origin'>;

/** Metrics of a commit that are measured for this. A metric without a value is left out. */
export const timeMetrics = {
  /** Seconds during which a person had paused the run: paused it, or let it end and extended it later. */
  paused: 'time/paused',
  /** Seconds from the end of the step before until this one's groups were there. */
  waitForBatch: 'time/wait_for_batch',
  /** Working time of generation and scoring for this step's groups; at async level 1 parallel to the step before. */
  generation: 'rollout/generation_time',
  scoring: 'rollout/scoring_time',
  /** Seconds that training waited for servers which an evaluation used exclusively. */
  waitForEval: 'time/wait_for_eval',
  train: 'time/train',
  step: 'time/step',
  /** 1 if the orchestrator's process that made the commit was started after the previous commit. */
  restarts: 'recovery/restarts',
} as const;

/** Checkpoints, evaluations and a busy machine may stretch the median rest by this factor. */
const restFactor = 3;
/** Slack for steps of less than a second, where the machine may pause now and then. */
const restSlackS = 2;

interface TimedStep {
  readonly step: number;
  /** Wall time without pauses. */
  readonly seconds: number;
  readonly paused: number;
  /** Seconds of generation, scoring and training. */
  readonly atWork: number;
  readonly rest: number;
  /** Reported reason for its length. */
  readonly reported: Disturbance | null;
}

/** `commits`: a lineage's own, ascending. One taken over from another lineage (`origin`) only marks the start. */
export function effectivenessOf(commits: readonly TimedCommit[]): Effectiveness {
  const steps = commits.slice(1).map((commit, i) => timedStep(commits[i]!, commit));
  // The first step also brings the servers to their first version, for as long as that takes.
  const typicalRest =
    lowerMedian(steps.filter(({ reported }) => reported === null).map(({ rest }) => rest)) ?? Infinity;
  const isDisturbed = ({ reported, rest }: TimedStep, i: number): boolean =>
    reported !== null || (i > 0 && rest > typicalRest * restFactor + restSlackS);
  const stepSeconds = lowerMedian(steps.filter((step, i) => !isDisturbed(step, i)).map(({ seconds }) => seconds));
  const worth = steps.map((step, i) =>
    isDisturbed(step, i) ? Math.min(step.seconds, stepSeconds ?? step.atWork) : step.seconds,
  );
  const useful = sum(worth);
  const wallSeconds = sum(steps.map(({ seconds }) => seconds));
  const pausedSeconds = sum(steps.map(({ paused }) => paused));
  return {
    ettr: share(useful, wallSeconds),
    ettrWithPauses: share(useful, wallSeconds + pausedSeconds),
    steps: steps.length,
    wallSeconds,
    pausedSeconds,
    stepSeconds,
    lost: commits
      .filter(({ origin }) => origin === undefined)
      .map(({ metrics }) => lostOf(metrics))
      .reduce(addLost, nothingLost),
    rest: ineffectiveTimes(steps.map((step, i) => ({ ...step, beyond: step.seconds - worth[i]! }))),
  };
}

function ineffectiveTimes(steps: readonly (TimedStep & { readonly beyond: number })[]): IneffectiveTime[] {
  const longer = steps.filter(({ beyond }) => beyond > 0).sort((a, b) => b.beyond - a.beyond || a.step - b.step);
  return (['recovered', 'restarted', 'waited'] as const).flatMap((because) => {
    const own = longer.filter(({ reported }) => (reported ?? 'waited') === because);
    if (own.length === 0) return [];
    return [{ because, seconds: sum(own.map(({ beyond }) => beyond)), steps: own.map(({ step }) => step) }];
  });
}

function timedStep(before: TimedCommit, { step, committedAt, metrics }: TimedCommit): TimedStep {
  const value = (name: keyof typeof timeMetrics): number => metrics[timeMetrics[name]] ?? 0;
  const between = Math.max(0, (Date.parse(committedAt) - Date.parse(before.committedAt)) / 1000);
  // A new lineage may have been idle before its first step.
  const passed = before.origin === undefined ? between : Math.min(between, value('step') || between);
  const paused = Math.min(passed, value('paused'));
  const seconds = passed - paused;
  const collecting = value('generation') + value('scoring');
  const waited = metrics[timeMetrics.waitForBatch] ?? collecting;
  const atWork = Math.min(seconds, Math.min(waited, collecting) + value('train'));
  const { recoveries, seconds: lostSeconds } = lostOf(metrics);
  const reported = recoveries > 0 || lostSeconds > 0 ? 'recovered' : value('restarts') > 0 ? 'restarted' : null;
  return { step, seconds, paused, atWork, rest: seconds - atWork, reported };
}

const stepsNamed = 3;
const becauseText: Readonly<Record<Disturbance, string>> = {
  recovered: 'that did work again',
  restarted: 'whose orchestrator was started anew',
  waited:
    'that waited beside sampling and training: for a worker, a server, an evaluation, a checkpoint or a busy machine',
};

/** `14.2 s in 2 steps (41, 12) that waited …`; null if no time was lost, or its cause is unknown. */
export function describeRest({ ettr, rest }: Pick<Effectiveness, 'ettr' | 'rest'>): string | null {
  if (ettr === null || rest.length === 0 || ettr.toFixed(2) === '1.00') return null;
  return rest
    .map(({ because, seconds, steps }) => {
      const named = `${steps.slice(0, stepsNamed).join(', ')}${steps.length > stepsNamed ? ', …' : ''}`;
      return `${grouped(seconds, 1)} s in ${counted(steps.length, 'step', 'steps')} (${named}) ${becauseText[because]}`;
    })
    .join('; ');
}

/** `effective training time (ETTR) 0.97 · 2 recoveries · lost in flight: 12 rollouts, 3,400 tokens, 8.1 s · not effective: 8.1 s in 1 step (7) …` */
export function describeEffectiveness(effectiveness: Effectiveness): string {
  const { ettr, ettrWithPauses, pausedSeconds, lost } = effectiveness;
  const rest = describeRest(effectiveness);
  const { recoveries, rollouts, tokens, seconds } = lost;
  const isPaused = pausedSeconds > 0 && ettrWithPauses !== null;
  const isAnythingLost = rollouts > 0 || tokens > 0 || seconds > 0;
  return [
    `effective training time (ETTR) ${ettr === null ? '–' : ettr.toFixed(2)}`,
    ...(isPaused ? [`${ettrWithPauses.toFixed(2)} with ${grouped(pausedSeconds, 1)} s paused`] : []),
    recoveries === 0 ? 'no recoveries' : counted(recoveries, 'recovery', 'recoveries'),
    ...(isAnythingLost
      ? [
          `lost in flight: ${counted(rollouts, 'rollout', 'rollouts')}, ${counted(tokens, 'token', 'tokens')}, ${grouped(seconds, 1)} s`,
        ]
      : []),
    ...(rest === null ? [] : [`not effective: ${rest}`]),
  ].join(' · ');
}

function counted(count: number, one: string, many: string): string {
  return `${grouped(count, 0)} ${count === 1 ? one : many}`;
}

function grouped(value: number, digits: number): string {
  const [whole, fraction] = value.toFixed(digits).split('.');
  const separated = whole!.replace(/\B(?=(\d{3})+$)/g, ',');
  return fraction === undefined ? separated : `${separated}.${fraction}`;
}

/** The lower of the middle two, so that the quicker of two steps is the typical one. */
function lowerMedian(values: readonly number[]): number | null {
  return values.toSorted((a, b) => a - b)[Math.floor((values.length - 1) / 2)] ?? null;
}

function share(part: number, whole: number): number | null {
  return whole > 0 ? part / whole : null;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
