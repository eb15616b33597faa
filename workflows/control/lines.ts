import { present } from '../../core/present.ts';
import { plainMarkdown } from '../../core/markdown.ts';
import { describeEffectiveness, type Effectiveness } from '../../core/rl/effectiveness.ts';
import { warmUpStepsPerSegment } from '../../core/limits.ts';
import { firstLineage } from '../../core/names.ts';
import { environmentRewards } from '../../core/rl/metrics.ts';
import type { EvaluationSummary, OrchestratorActivities, Recovery } from '../../activities/index.ts';
import type { PromptStanding, RunEvent } from './messages.ts';

/** Texts of a run's events, one line each. */

export function unsoundLine({
  holes,
  duplicates,
  brokenLinks,
}: Omit<Awaited<ReturnType<OrchestratorActivities['auditRun']>>, 'effectiveness'>): string {
  return [
    'the record of this run is not sound:',
    ...(brokenLinks.length > 0
      ? [`commits ${brokenLinks.join(', ')} do not continue the one before them (it was changed or removed)`]
      : []),
    ...(holes.length > 0 ? [`groups ${holes.join(', ')} are unaccounted for`] : []),
    ...(duplicates.length > 0 ? [`groups ${duplicates.join(', ')} are accounted for twice`] : []),
  ].join(' ');
}

export function finishedLine(step: number, maxSteps: number, effectiveness: Effectiveness | undefined): string {
  const figures = effectiveness === undefined ? [] : [describeEffectiveness(effectiveness)];
  if (maxSteps === 0) return 'finished: v0, from supervised training alone';
  return [`${endOf(step, maxSteps)} at step ${step} of ${maxSteps}`, ...figures].join(' · ');
}

/** A run that made fewer steps than planned was stopped. */
export function endOf(step: number, maxSteps: number): 'finished' | 'stopped' {
  return step < maxSteps ? 'stopped' : 'finished';
}

export function finishedValues(effectiveness: Effectiveness | undefined): Record<string, number> {
  if (effectiveness === undefined) return {};
  const { ettr, lost } = effectiveness;
  return { ...present({ ettr: ettr ?? undefined }), ...lost };
}

export function rewoundLine(lineage: string, step: number): string {
  if (lineage === firstLineage) return `this run begins at step ${step} of another one`;
  return `lineage ${lineage} begins at step ${step}; later steps of the earlier lineage are superseded`;
}

export function upgradedLine(run: string, step: number, pausedBecause: string | null): string {
  return `upgrade: ${run} continues after step ${step} under the new code${asBefore(pausedBecause)}`;
}

export function brokenLine(run: string, step: number, pausedBecause: string | null): string {
  return `Temporal's history of ${run} could not be replayed; it continues after step ${step} with a new one${asBefore(pausedBecause)}`;
}

function asBefore(pausedBecause: string | null): string {
  return pausedBecause === null ? '' : `; it is paused as before: ${pausedBecause}`;
}

export function segmentAfter(step: number, total: number): string {
  return `steps ${step + 1}–${Math.min(step + warmUpStepsPerSegment, total)} of ${total}`;
}

export function stepLine(step: number, maxSteps: number, figures: Readonly<Record<string, number>>): string {
  if (figures['progress/rows'] !== undefined) return rowsLine(step, maxSteps, figures);
  const { reward, kept_groups, ended_groups, solved_all, solved_none, generate_s, train_s, step_s } = figures;
  return [
    `step ${step} of ${maxSteps}`,
    `reward ${reward?.toFixed(3) ?? '–'}${inEach(figures)}`,
    `kept ${kept_groups} of ${ended_groups} groups (${solved_all} all right, ${solved_none} all wrong)`,
    `generate ${generate_s?.toFixed(2)}s`,
    `train ${train_s?.toFixed(2)}s`,
    `step ${step_s?.toFixed(2)}s`,
  ].join('  ');
}

/** Line of a step trained on rows of `[data]`. */
function rowsLine(step: number, maxSteps: number, figures: Readonly<Record<string, number>>): string {
  const { loss, train_s, step_s } = figures;
  return [
    `step ${step} of ${maxSteps}`,
    `loss ${loss?.toFixed(3) ?? '–'}`,
    `${figures['batch/rows']} rows, ${figures['batch/trained_tokens']} tokens learned`,
    `train ${train_s?.toFixed(2)}s`,
    `step ${step_s?.toFixed(2)}s`,
  ].join('  ');
}

/** ` (short 0.610, long 0.354)`; empty with one environment. */
function inEach(figures: Readonly<Record<string, number>>): string {
  const rewards = environmentRewards(figures).map(([name, reward]) => `${name} ${reward.toFixed(3)}`);
  return rewards.length === 0 ? '' : ` (${rewards.join(', ')})`;
}

/** `cost`: what it took from the training, in seconds of standing still, or of waiting for its begin. */
export function evalLine(summary: EvaluationSummary, cost: Readonly<Record<string, number>> = {}): string {
  const { environment, step, rollouts, passAtK, sampled, greedy, says, failures = [], prompt } = summary;
  const { paused_s: paused, deferred_s: deferred } = cost;
  const exact = (value: number | null): string => (value === null ? '' : ` exact ${value.toFixed(3)}`);
  return [
    `eval v${step} ${environment} (${rollouts} ${passAtK === undefined ? 'held-out' : 'rollouts, held-out'}): reward ${rewardText(sampled.reward)}${exact(sampled.exact)}`,
    `greedy ${rewardText(greedy.reward)}${exact(greedy.exact)}`,
    `sampled: "${says.prompt}" → "${says.completion}" (right: "${says.answer}", reward ${says.reward?.toFixed(2) ?? '–'})`,
    ...(prompt === undefined
      ? []
      : [
          `prompt ${prompt.sha256.slice(0, 8)}${prompt.isHeldAgainst ? '' : ', the first under it: compared with none before'}`,
        ]),
    ...(paused === undefined ? [] : [`training paused ${paused.toFixed(1)}s for it`]),
    ...(deferred === undefined ? [] : [`deferred by ${deferred.toFixed(1)}s`]),
    ...(failures.length === 0 ? [] : [`failed: ${failures.join('; ')}`]),
  ].join('  ');
}

/** A missing reward is not a reward of 0. */
function rewardText(reward: number | null): string {
  return reward?.toFixed(3) ?? '–';
}

export function evalValues({ environment, sampled, greedy }: EvaluationSummary): Record<string, number | string> {
  return {
    environment,
    ...present({
      reward: sampled.reward ?? undefined,
      exact: sampled.exact ?? undefined,
      greedy_reward: greedy.reward ?? undefined,
      greedy_exact: greedy.exact ?? undefined,
    }),
  };
}

/** Lines on a trainer's recovery. `regenerated`: rollouts generated again because of it. */
export function recoveryLines(
  step: number,
  recovery: Recovery,
  regenerated: number,
  isExpected: boolean,
): Pick<RunEvent, 'kind' | 'text' | 'values'>[] {
  const { restoredFrom, replayedSteps, seconds, damaged, differs, engines } = recovery;
  const lines: Pick<RunEvent, 'kind' | 'text' | 'values'>[] = damaged.map((damage) => ({
    kind: 'warning',
    text: `checkpoint passed over: ${damage}`,
    values: {},
  }));
  if (!isExpected) {
    const from = restoredFrom === null ? 'continued from memory' : `restored from checkpoint ${restoredFrom}`;
    lines.push({
      kind: 'recovery',
      text: `trainer ${from}, ${replayedSteps} stored batches trained again in ${seconds.toFixed(1)}s, ${regenerated} rollouts generated for it`,
      values: {
        restored_from: restoredFrom ?? 'memory',
        replayed_steps: replayedSteps,
        seconds,
        rollouts_regenerated: regenerated,
      },
    });
  }
  // Then one line says all of it.
  const isOther = differs?.isOfOtherTrainer === true;
  if (engines && !isOther) {
    lines.push({
      kind: 'warning',
      text: `another engine trains from step ${step} on: ${engines.now}; before it was ${engines.before}. The same batches may give other bits`,
      values: { engine: engines.now, engine_before: engines.before },
    });
  }
  if (differs) {
    const which = engines ? ` (${engines.before}; now ${engines.now})` : '';
    const other = `another trainer made version ${differs.step}${which}: its weights are trained on, and the optimizer begins anew`;
    const why = differs.isSameEngine
      ? 'The engine is the same, and promises equal bits: this is a bug in Ratchet, please report it'
      : 'The engine does not promise equal bits, or is another one';
    lines.push({
      kind: 'warning',
      text: `${isOther ? other : `training up to step ${step - 1} again gave other weights, first at step ${differs.step} (${differs.digest.slice(0, 12)}…). ${why}`}. The run continues from them as a version of its own`,
      values: {
        differs_at: differs.step,
        same_engine: String(differs.isSameEngine),
        ...(isOther && engines ? { engine: engines.now, engine_before: engines.before } : {}),
      },
    });
  }
  return lines;
}

/** Story of a run as markdown: its newest events, and work under way. */
export function storyOf(
  title: string,
  of: {
    readonly events: readonly RunEvent[];
    readonly prompts: readonly PromptStanding[];
    readonly store: string;
  },
): string {
  const { events, prompts, store } = of;
  const evals = events.filter(({ kind }) => kind === 'eval').slice(-3);
  const branches = events.filter(({ kind, values }) => kind !== 'eval' && 'verdict' in values).slice(-2);
  const rest = events.filter((event) => event.kind !== 'eval' && !branches.includes(event)).slice(-8);
  const told = [...evals, ...branches, ...rest].sort((a, b) => a.sequence - b.sequence);
  return [
    title,
    '',
    ...[...told.map(({ text }) => plainMarkdown(text)), ...prompts.flatMap(underWayLines)].map((text) => `- ${text}`),
    '',
    `Files: \`${store}\``,
  ].join('\n');
}

/** A chunk being generated; some of its groups may have ended. `since` is in ms since 1970. */
export interface ChunkUnderWay {
  readonly environment?: string;
  readonly groups: number;
  readonly policyStep: number;
  readonly since: number;
}

/** Chunks being generated for a run, by environment and age. */
export function chunksText(run: string, chunks: readonly ChunkUnderWay[]): string {
  const names = [...new Set(chunks.map(({ environment }) => environment))];
  const lines = names.map((name) => {
    const own = chunks.filter(({ environment }) => environment === name);
    const oldest = own.reduce((one, other) => (other.since < one.since ? other : one));
    const groups = own.reduce((sum, one) => sum + one.groups, 0);
    const since = new Date(oldest.since).toISOString();
    const of = name === undefined ? '' : `${plainMarkdown(name)}: `;
    return `- ${of}${chunksOf(own.length)} of ${groups} groups, the oldest since ${since} from v${oldest.policyStep}`;
  });
  return [`Rollouts of run ${run}: ${chunksOf(chunks.length)} in play`, '', ...lines].join('\n').trimEnd();
}

const chunksOf = (count: number): string => (count === 1 ? '1 chunk' : `${count} chunks`);

function underWayLines({ environment, branch, offered }: PromptStanding): string[] {
  const { step, workflow } = branch ?? {};
  const where = workflow == null ? '' : `: workflow \`${workflow}\``;
  return [
    ...(step === undefined ? [] : [`gepa: a better prompt for ${environment} is looked for from v${step}${where}`]),
    ...(offered === null ? [] : [`gepa: a prompt for ${environment} waits for a yes: \`${offered.ref.key}\``]),
  ];
}

/** Line of a step that ran out of memory and is retried. */
export function halvedLine(
  step: number,
  { halvedTo, reason }: { readonly halvedTo?: number | undefined; readonly reason?: string | undefined },
): string {
  return `step ${step}: out of memory; tried once more with ${halvedTo} rows at a time. ${reason ?? ''}`;
}
