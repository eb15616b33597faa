import { shortModelName } from '../../core/names.ts';
import type { RunEvent } from '../../workflows/control/messages.ts';
import { describeEffects } from '../../core/rl/rollout/effects.ts';
import type { EvalFigures } from '../../core/rl/figures.ts';
import { onOneLine } from '../output/plain-text.ts';
import type { ViewPosition } from './keys.ts';
import { bar, cut, folded, type Line, padded, sparkline, type Span, widthOf } from './lines.ts';
import { evalsPage, faultsPage, rolloutsPage } from './pages.ts';
import type { ShownGroup } from './stored-rollouts.ts';
import { type Bar, seconds, type ViewModel, type Wait } from './view-model.ts';

export interface FrameInput {
  /** null before the run has answered. */
  readonly model: ViewModel | null;
  /** Obstacles of the run; empty without any. */
  readonly trouble?: string;
  readonly run: string;
  readonly place: ViewPosition;
  /** null when the store cannot be reached. */
  readonly groups: readonly ShownGroup[] | null;
  /** Step of the groups, which may be an earlier one. null before any was read. */
  readonly groupsStep: number | null;
  /** Error of reading the store. */
  readonly storeProblem: string | null;
  readonly evals: readonly EvalFigures[];
  /** Recoveries, refusals, warnings, pauses; oldest first. */
  readonly faults: readonly RunEvent[];
  /** Effect of leaving: detach when another command owns the processes, else stop them. */
  readonly leaving: 'detach' | 'stop';
  readonly columns: number;
  readonly rows: number;
}

/** Rows that stay free above the live part, so that events are seen going by. */
const rowsAbove = 3;
const linesMax = 30;
/** One of groups, one of training and an evaluation, one of evaluations. */
const barRowsMax = 3;
/** Rows for one wait, and for the reason of a pause. */
const waitsShown = { narrow: 2, tall: 5 };

/** Live part of the view as rows, never taller than the terminal. */
export function frame(input: FrameInput): Line[] {
  const { columns, rows, model, run } = input;
  const height = Math.max(1, Math.min(linesMax, rows - 1 - (rows > 20 ? rowsAbove : 0)));
  const footer = footerOf(input);
  if (model === null) {
    const opening: Line = [{ text: ' ratchet ', style: 'bold' }, { text: `${run} · waiting for the run to open` }];
    const trouble = folded(onOneLine(input.trouble ?? ''), columns - 2).filter((row) => row !== '');
    const rowsOfTrouble = trouble.slice(0, linesMax - 4).map((row): Line => [{ text: ` ${row}`, style: 'yellow' }]);
    return [rule(columns), opening, ...rowsOfTrouble, footer].slice(-height);
  }
  const isTall = rows >= 36;
  const top = [rule(columns), titleOf(model, columns), stepOf(model, columns)];
  const body = [...curvesOf(model, columns), ...barsOf(model, columns)];
  const figures = [policyOf(model), errorsOf(model), ...inPlayOf(model)];
  const waits = waitsOf(model, isTall ? waitsShown.tall : waitsShown.narrow, columns);
  const whole = [...top, ...body, ...figures, ...waits];
  if (input.place.page !== 'run') {
    // The page gets the rows that the figures leave; on a small screen it gets theirs, too.
    const head = height >= whole.length + 12 ? whole : top;
    const room = height - head.length - 1;
    return [...head, ...pageOf(input, room), footer].slice(-height);
  }
  const sample = sampleOf(input, isTall);
  const all = [...whole, ...sample, footer];
  if (all.length <= height) return all;
  // Drops the least important parts first: the sample, the curves and bars, the figures.
  for (const fewer of [
    [...whole, footer],
    [...top, ...figures, ...waits, footer],
    [...top, ...waits, footer],
  ]) {
    if (fewer.length <= height) return fewer;
  }
  return [top[1]!, top[2]!, footer].slice(0, height);
}

function pageOf(input: FrameInput, rows: number): Line[] {
  const { place, groups, groupsStep, storeProblem, evals, faults, model, columns } = input;
  switch (place.page) {
    case 'rollouts':
      return rolloutsPage({ place, groups, storeProblem, step: groupsStep ?? model?.step ?? 0, columns, rows });
    case 'evals':
      return evalsPage(evals, place.scroll, rows);
    case 'faults':
      return faultsPage({ faults, lost: model?.lost ?? null, scroll: place.scroll, columns, rows });
    case 'run':
      return [];
    default:
      return place.page satisfies never;
  }
}

function rule(columns: number): Line {
  return [{ text: '─'.repeat(columns), style: 'dim' }];
}

const phaseStyles = {
  training: 'green',
  'warm-up': 'cyan',
  finishing: 'green',
  finished: 'green',
  stopped: 'yellow',
  paused: 'yellow',
} as const;

function titleOf(model: ViewModel, columns: number): Line {
  const { run, environments, lineage, attempt, phase, lost } = model;
  const left = [
    `attempt ${attempt}`,
    `lineage ${lineage}`,
    onOneLine(environments.join(', ')),
    onOneLine(shortModelName(model.model)),
  ];
  const text = ` · ${left.join(' · ')}`;
  const recovered =
    lost.recoveries === 0
      ? ''
      : ` · ${lost.recoveries} ${lost.recoveries === 1 ? 'recovery' : 'recoveries'}, ${seconds(lost.seconds)}, ${lost.rollouts} rollouts lost`;
  const state: Span[] = [
    { text: recovered, style: 'yellow' },
    { text: '   ● ', style: phaseStyles[phase] },
    { text: phase, style: phaseStyles[phase] },
  ];
  const name: Span[] = [
    { text: ' ratchet ', style: 'dim' },
    { text: run, style: 'bold' },
  ];
  const room = columns - widthSum(name) - widthSum(state);
  return [...name, { text: cut(text, room) }, ...state];
}

function stepOf({ step, maxSteps, elapsedS, etaS }: ViewModel, columns: number): Line {
  const left = ` step  ${step}/${maxSteps} `;
  const right = ` ${maxSteps === 0 ? 0 : Math.floor((100 * step) / maxSteps)}%  ${seconds(elapsedS)}${etaS === null ? '' : `  eta ${seconds(etaS)}`}`;
  const room = columns - widthOf(left) - widthOf(right);
  return [
    { text: left },
    { text: bar(maxSteps === 0 ? 0 : step / maxSteps, Math.min(60, Math.max(4, room))), style: 'cyan' },
    { text: right },
  ];
}

/** Side by side, as many columns as they have values. */
function curvesOf({ curves }: ViewModel, columns: number): Line[] {
  if (curves.length === 0) return [];
  const share = Math.floor(columns / curves.length);
  return [
    curves.flatMap(({ name, values, last, note }): Span[] => {
      const label = ` ${name} ${last.toFixed(3)}${note === '' ? '' : ` ${note}`} `;
      const graph = sparkline(values, share - widthOf(label) - 1);
      return [{ text: label }, { text: padded(graph, share - widthOf(label)), style: 'green' }];
    }),
  ];
}

/** The step's groups get a row of their own, since they have much to show; the others two in a row. */
function barsOf({ bars }: ViewModel, columns: number): Line[] {
  const half = Math.floor(columns / 2);
  const one = ({ name, share, note, isActive }: Bar, width: number, noteColumns: number): Span[] => {
    const blocks = Math.min(24, Math.max(4, width - noteColumns));
    const label = ` ${name.padEnd(7)}`;
    const text = ` ${note}`;
    return [
      { text: label, ...(isActive ? { style: 'bold' } : {}) },
      { text: bar(share, blocks), style: isActive ? 'cyan' : 'dim' },
      { text: padded(text, width - widthOf(label) - blocks) },
    ];
  };
  const [groups, ...others] = bars;
  const rows = Math.min(barRowsMax - 1, Math.ceil(others.length / 2));
  return [
    ...(groups === undefined ? [] : [one(groups, columns, 70)]),
    ...Array.from({ length: rows }, (_, row) =>
      others.slice(2 * row, 2 * row + 2).flatMap((bar) => one(bar, half, 44)),
    ),
  ];
}

function policyOf({ policy, figures }: ViewModel): Line {
  const parts = figures.map(({ name, value }) => `${name} ${value}`);
  return [{ text: ` policy ${[policy ?? 'none yet', ...parts].join(' · ')}` }];
}

function errorsOf({ errors }: ViewModel): Line {
  if (errors === null) return [{ text: ' errors none so far', style: 'dim' }];
  const { rollouts, infrastructure, policy, timedOut } = errors;
  const effects = describeEffects(errors.effects);
  const late = Object.entries(timedOut).map(([environment, count]) => `${onOneLine(environment)} ${count}`);
  const share = rollouts === 0 ? 0 : (100 * (infrastructure + policy)) / rollouts;
  const text = ` errors ${share.toFixed(1)}%: infrastructure ${infrastructure} · policy ${policy} · of ${rollouts} rollouts${late.length === 0 ? '' : ` · out of time ${late.join(', ')}`}${effects === '' ? '' : ` · effects ${effects}`}`;
  return [{ text, ...(infrastructure > 0 ? { style: 'yellow' } : {}) }];
}

/** Groups being generated in each environment, the age of the oldest, and its version. */
function inPlayOf({ inPlay }: ViewModel): Line[] {
  if (inPlay.length === 0) return [];
  const each = inPlay.map(
    ({ environment, groups, oldestS, policyStep }) =>
      `${onOneLine(environment)} ${groups}, the oldest for ${seconds(oldestS)} from v${policyStep}`,
  );
  const groups = inPlay.reduce((sum, one) => sum + one.groups, 0);
  return [[{ text: ` in play ${groups} groups: ${each.join(' · ')}` }]];
}

/** Reason of a pause, and each wait by name: since when, and the failure of its last attempt. */
function waitsOf({ run, phase, pausedBecause, waiting }: ViewModel, shown: number, columns: number): Line[] {
  const paused = pausedBecause === null ? [] : pauseOf(pausedBecause, shown, columns);
  if (phase === 'finished' || phase === 'stopped') return paused;
  if (waiting.length === 0) {
    const what = phase === 'paused' ? `you: npx ratchet-rl resume ${run}` : 'the next workflow task';
    return [...paused, [{ text: ` waiting on: ${what}`, style: phase === 'paused' ? 'yellow' : 'dim' }]];
  }
  const lines = waiting.slice(0, shown).map((wait, i): Line => {
    const more = i === shown - 1 && waiting.length > shown ? `  (and ${waiting.length - shown} more)` : '';
    const label = i === 0 ? ' waiting on: ' : '             ';
    return [
      { text: label },
      { text: describeWait(wait) + more, ...(wait.lastFailure === null ? {} : { style: 'yellow' }) },
    ];
  });
  return [...paused, ...lines];
}

/** Folds a pause's reason into the rows allowed; the log above has the full text. */
function pauseOf(because: string, shown: number, columns: number): Line[] {
  const rows = folded(`paused: ${onOneLine(because)}`, columns - 2);
  return rows
    .slice(0, shown)
    .map((row, i): Line => [{ text: ` ${row}${i === shown - 1 && rows.length > shown ? ' …' : ''}`, style: 'yellow' }]);
}

function describeWait({ what, forS, lastFailure, againInS }: Wait): string {
  const since = forS === null ? '' : ` (${seconds(forS)})`;
  const again = againInS === null ? '' : `, again in ${seconds(againInS)}`;
  const failure = lastFailure === null ? '' : `: ${lastFailure}`;
  return onOneLine(`${what}${since}${again}${failure}`);
}

/** One rollout of the newest step; another one with each step. */
function sampleOf({ groups, model }: FrameInput, isTall: boolean): Line[] {
  const group = groups?.[(model?.step ?? 0) % groups.length];
  const rollout = group?.rollouts[(model?.step ?? 0) % group.rollouts.length];
  const turn = rollout?.turns.at(-1);
  if (!group || !rollout || !turn) return [];
  const reward = rollout.reward === null ? rollout.outcome : `reward ${rollout.reward.toFixed(2)}`;
  const title = ` sample v${group.policyStep} ${reward}`;
  const prompt = onOneLine(turn.prompt.trim());
  if (!isTall) {
    return [
      [
        { text: `${title}  ` },
        { text: shortened(prompt, 30), style: 'dim' },
        { text: ' → ' },
        { text: onOneLine(turn.completion), style: 'cyan' },
      ],
    ];
  }
  return [
    [{ text: `${title}, group ${group.ordinal}, ${group.environment}` }],
    [{ text: '   ' }, { text: prompt, style: 'dim' }],
    [{ text: '   → ' }, { text: onOneLine(turn.completion), style: 'cyan' }],
  ];
}

/** Keeps the end, which holds the newest request. */
function shortened(text: string, columns: number): string {
  return widthOf(text) <= columns ? text : `…${text.slice(-columns)}`;
}

function footerOf({ place, leaving }: FrameInput): Line {
  const left = { detach: '[q] detach', stop: '[q] stop' }[leaving];
  const inside = place.rollout === null ? '[jk] move  [enter] open' : '[↑↓] scroll  [jk] next';
  const more = {
    run: leaving === 'detach' ? '  the run continues without this view' : '  the same command continues',
    rollouts: `  ${inside}  [esc] back`,
    evals: '  [jk] scroll  [esc] back',
    faults: '  [jk] scroll  [esc] back',
  }[place.page];
  return [{ text: ` ${left}  [r]ollouts  [e]vals  [f]aults${more}`, style: 'dim' }];
}

function widthSum(line: Line): number {
  return line.reduce((sum, { text }) => sum + widthOf(text), 0);
}
