import type { LostWork } from '../../core/rl/lost-work.ts';
import type { RunEvent } from '../../workflows/control/messages.ts';
import type { EvalFigures } from '../../core/rl/figures.ts';
import { onOneLine } from '../output/plain-text.ts';
import type { ViewPosition } from './keys.ts';
import { folded, type Line } from './lines.ts';
import type { ShownGroup, ShownRollout } from './stored-rollouts.ts';
import { seconds } from './view-model.ts';

interface RolloutsInput {
  readonly place: ViewPosition;
  /** null when the store cannot be reached. */
  readonly groups: readonly ShownGroup[] | null;
  /** Error of reading the store; null when it was not asked. */
  readonly storeProblem: string | null;
  /** Step of the groups. */
  readonly step: number;
  readonly columns: number;
  readonly rows: number;
}

/** The groups of a step, or one rollout of the chosen one. */
export function rolloutsPage({ place, groups, storeProblem, step, columns, rows }: RolloutsInput): Line[] {
  if (groups === null) {
    const text =
      storeProblem === null
        ? 'rollouts are read from the store, which this command does not reach: name it with --store URI'
        : `the store does not answer: ${onOneLine(storeProblem)}`;
    return [[{ text: ` ${text}`, style: 'yellow' }]];
  }
  const group = groups[Math.min(place.group, groups.length - 1)];
  if (!group) return [[{ text: ` no scored rollouts of step ${step} in the store yet`, style: 'dim' }]];
  const rollout =
    place.rollout === null ? undefined : group.rollouts[Math.min(place.rollout, group.rollouts.length - 1)];
  if (rollout) {
    const [head, ...lines] = rolloutLines(group, rollout, columns) as [Line, ...Line[]];
    const room = Math.max(1, rows - 1);
    const above = Math.max(0, Math.min(place.scroll, lines.length - room));
    const where = lines.length <= room ? '' : `   lines ${above + 1}–${above + room} of ${lines.length}`;
    return [[...head, { text: where, style: 'dim' }], ...scrolled(lines, place.scroll, room)];
  }
  const title: Line = [{ text: ` groups of step ${step}: rewards of each rollout`, style: 'dim' }];
  const room = Math.max(1, rows - 1);
  const first = Math.max(0, Math.min(place.group - Math.floor(room / 2), groups.length - room));
  return [title, ...groupLines(groups, group).slice(first, first + room)];
}

/** One line of rewards for each group; names the environment only if there are several. */
function groupLines(groups: readonly ShownGroup[], chosen: ShownGroup): Line[] {
  const hasSeveral = new Set(groups.map(({ environment }) => environment)).size > 1;
  const nameOf = ({ environment, exampleId }: ShownGroup): string =>
    `${hasSeveral ? `${onOneLine(environment)} ` : ''}#${exampleId}`;
  const widest = Math.max(...groups.map((group) => nameOf(group).length));
  return groups.map((group): Line => {
    const { ordinal, policyStep, rollouts } = group;
    const rewards = rollouts.map(({ reward, outcome }) => (reward === null ? outcome : reward.toFixed(2))).join(' ');
    const isChosen = group === chosen;
    const text = ` ${isChosen ? '▸' : ' '} group ${String(ordinal).padEnd(6)} ${nameOf(group).padEnd(widest)} v${policyStep}  ${rewards}`;
    return [{ text, ...(isChosen ? { style: 'inverse' } : {}) }];
  });
}

/** Title and conversation of a rollout. */
export function rolloutLines(group: ShownGroup, rollout: ShownRollout, columns: number): Line[] {
  const { index, outcome, reward, error, turns } = rollout;
  const says = reward === null ? outcome : `reward ${reward.toFixed(3)}${outcome === 'ok' ? '' : ` (${outcome})`}`;
  const title: Line = [
    { text: ` group ${group.ordinal}, rollout ${index + 1} of ${group.rollouts.length}: ${says}`, style: 'bold' },
  ];
  const failure: Line[] =
    error === null ? [] : folded(error, columns - 4).map((text): Line => [{ text: `   ${text}`, style: 'yellow' }]);
  return [
    title,
    ...failure,
    ...turns.flatMap(({ prompt, completion }): Line[] => [
      ...folded(prompt.trim(), columns - 4).map((text): Line => [{ text: `   ${text}`, style: 'dim' }]),
      ...folded(completion, columns - 6).map((text, i): Line => [
        { text: `   ${i === 0 ? '→' : ' '} ${text}`, style: 'cyan' },
      ]),
    ]),
  ];
}

/** Newest first. */
export function evalsPage(evals: readonly EvalFigures[], scroll: number, rows: number): Line[] {
  if (evals.length === 0) return [[{ text: ' no evaluation has ended yet', style: 'dim' }]];
  const shown = (value: number | null): string => (value === null ? '–' : value.toFixed(3)).padStart(8);
  const title: Line = [{ text: ' version  environment             reward   exact   greedy   exact', style: 'dim' }];
  const lines = evals
    .toReversed()
    .map(({ step, environment, reward, exact: share, greedyReward, greedyExact }): Line => {
      const figures = `${shown(reward)}${shown(share)} ${shown(greedyReward)}${shown(greedyExact)}`;
      return [{ text: ` ${`v${step}`.padEnd(8)} ${onOneLine(environment).slice(0, 22).padEnd(22)}${figures}` }];
    });
  return [title, ...scrolled(lines, scroll, rows - 1)];
}

interface FaultsInput {
  readonly faults: readonly RunEvent[];
  readonly lost: LostWork | null;
  readonly scroll: number;
  readonly columns: number;
  readonly rows: number;
}

/** Faults and recoveries, newest first. */
export function faultsPage({ faults, lost, scroll, columns, rows }: FaultsInput): Line[] {
  const sum =
    lost === null || lost.recoveries === 0
      ? 'no recoveries in this attempt of the run'
      : `${lost.recoveries} recoveries in this attempt of the run: ${seconds(lost.seconds)}, ${lost.rollouts} rollouts and ${lost.tokens} tokens lost`;
  const lines = faults.toReversed().flatMap(({ time, kind, step, text, values }): Line[] => {
    const what = kind === 'step' ? failedOf(values) : text;
    const head = ` ${time.slice(11, 19)} step ${step} ${(kind === 'step' ? 'failed' : kind).padEnd(8)} `;
    return folded(onOneLine(what), columns - head.length).map((row, i): Line => [
      { text: i === 0 ? head : ' '.repeat(head.length), style: 'dim' },
      { text: row, ...(kind === 'recovery' ? {} : { style: 'yellow' }) },
    ]);
  });
  return [[{ text: ` ${sum}` }], ...scrolled(lines, scroll, rows - 1)];
}

/** Line for a step that lost rollouts to infrastructure failures: those never become a reward. */
function failedOf(values: RunEvent['values']): string {
  return `${values['failed_rollouts']} of ${values['rollouts']} rollouts failed, and were not trained: [r]ollouts, or ratchet rollouts`;
}

function scrolled(lines: readonly Line[], scroll: number, rows: number): Line[] {
  const first = Math.max(0, Math.min(scroll, lines.length - Math.max(1, rows)));
  return lines.slice(first, first + Math.max(1, rows));
}
