import type { Size } from '../terminal.ts';
import { titleOf } from '../../eval/figures.ts';
import { isBack, isEnter, isLeft, movedBy, signalOf, type TypedKey, within } from '../keys.ts';
import { compareLines, pairLength } from './compare-page.ts';
import { helpLines } from './help.ts';
import { copiedText, nextHit, rolloutLines, shownRow } from './rollout-page.ts';
import { listed, summaryLines } from './run-page.ts';
import {
  bodyRows,
  type BrowserData,
  type BrowserState,
  type CompareScreen,
  filters,
  isWide,
  orders,
  type PairScreen,
  type RolloutScreen,
  type RunScreen,
  type Screen,
  type TreeScreen,
} from './state.ts';
import { treeNodes } from './tree.ts';

/** Effect of a key: another state, the end, another look for evaluations, or a text for the clipboard. */
type Outcome = BrowserState | 'leave' | 'suspend' | 'look again' | { readonly copy: string; readonly what: string };

/** Characters of a search. */
const searchMax = 200;

export function afterKey(state: BrowserState, key: TypedKey, data: BrowserData, size: Size): Outcome {
  const { name = '' } = key;
  const signal = signalOf(key);
  if (signal !== null) return signal;
  const quiet = { ...state, note: null };
  if (state.typing !== null) return typed(quiet, state.typing, key, data, size);
  const screen = top(state);
  if (name === 'q') return 'leave';
  if (key.text === 'R') return 'look again';
  if (key.text === '?') return screen.is === 'help' ? back(quiet) : push(quiet, { is: 'help', cursor: 0 });
  if (name === 'c') return copied(screen, data, size) ?? { ...quiet, note: 'nothing to copy here' };
  if (name === 'v' && (screen.is === 'tree' || screen.is === 'run')) return compared(quiet, screen, data);
  if ((name === 's' || key.text === '/') && (screen.is === 'run' || screen.is === 'rollout'))
    return { ...quiet, typing: '' };
  const moved = movedBy(key, bodyRows(size));
  if (moved !== null) return moveTo(quiet, screen, data, size, moved);
  if (isBack(key) && 'search' in screen && screen.search !== '')
    return replace(quiet, { ...screen, search: '', cursor: 0 });
  if (isBack(key) || (isLeft(key) && screen.is !== 'tree')) return back(quiet);
  const pressed = isEnter(key) ? 'enter' : name;
  switch (screen.is) {
    case 'tree':
      return isEnter(key) || isLeft(key) ? treeKey(quiet, screen, data, size, isEnter(key)) : quiet;
    case 'run':
      return runKey(quiet, screen, data, pressed);
    case 'rollout':
      return rolloutKey(quiet, screen, data, size, pressed, key.shift === true);
    case 'compare':
      return compareKey(quiet, screen, data, size, pressed);
    case 'pair':
      return pairKey(quiet, screen, name);
    case 'help':
      return back(quiet);
    default:
      return screen satisfies never;
  }
}

function top({ screens }: BrowserState): Screen {
  return screens.at(-1)!;
}

function push(state: BrowserState, screen: Screen): BrowserState {
  return { ...state, screens: [...state.screens, screen] };
}

function replace(state: BrowserState, screen: Screen): BrowserState {
  return { ...state, screens: [...state.screens.slice(0, -1), screen] };
}

function back(state: BrowserState): BrowserState {
  return state.screens.length === 1 ? state : { ...state, screens: state.screens.slice(0, -1) };
}

function moveTo(state: BrowserState, screen: Screen, data: BrowserData, size: Size, by: number): BrowserState {
  const count = lengthOf(screen, data, size);
  // A cursor beyond the end (the list became shorter) moves from the end.
  return replace(state, { ...screen, cursor: within(within(screen.cursor, count) + by, count) });
}

/** Number of rows that the cursor moves in. */
function lengthOf(screen: Screen, data: BrowserData, size: Size): number {
  switch (screen.is) {
    case 'tree':
      return treeNodes(data, screen.toggled).length;
    case 'run':
      return screen.side === 'summary'
        ? summaryLines(data, screen, size.columns - 2).length
        : listed(data, screen).length;
    case 'rollout': {
      const row = shownRow(data, screen);
      return row === null || row === 'reading' ? 1 : rolloutLines(row, screen, size.columns - 1).length;
    }
    case 'compare':
      return compareLines(data, screen, size.columns - 1).length;
    case 'pair':
      return pairLength(data, screen, size.columns);
    case 'help':
      return helpLines.length;
    default:
      return screen satisfies never;
  }
}

function treeKey(
  state: BrowserState,
  screen: TreeScreen,
  data: BrowserData,
  size: Size,
  isOpening: boolean,
): BrowserState {
  const nodes = treeNodes(data, screen.toggled);
  const at = within(screen.cursor, nodes.length);
  const node = nodes[at];
  if (!node) return state;
  const { toggled } = screen;
  const flipped = (key: string): string[] =>
    toggled.includes(key) ? toggled.filter((one) => one !== key) : [...toggled, key];
  if (isOpening) {
    if (node.evaluation !== null) return push(state, openedRun(node.evaluation, size));
    return replace(state, { ...screen, cursor: at, toggled: flipped(node.key) });
  }
  if (node.evaluation === null && node.isOpen)
    return replace(state, { ...screen, cursor: at, toggled: flipped(node.key) });
  const parent = nodes.findLastIndex(({ depth }, i) => i < at && depth < node.depth);
  return parent < 0 ? state : replace(state, { ...screen, cursor: parent });
}

function openedRun(evaluation: number, size: Size): RunScreen {
  const side = isWide(size) ? 'rollouts' : 'summary';
  return { is: 'run', evaluation, side, cursor: 0, order: 'as written', filter: 'all', search: '' };
}

function runKey(state: BrowserState, screen: RunScreen, data: BrowserData, name: string): BrowserState {
  const next = <T>(all: readonly T[], now: T): T => all[(all.indexOf(now) + 1) % all.length]!;
  if (name === 'tab') {
    return replace(state, { ...screen, side: screen.side === 'summary' ? 'rollouts' : 'summary', cursor: 0 });
  }
  if (screen.side === 'summary')
    return name === 'enter' ? replace(state, { ...screen, side: 'rollouts', cursor: 0 }) : state;
  if (name === 'o') return replace(state, { ...screen, order: next(orders, screen.order), cursor: 0 });
  if (name === 'f') return replace(state, { ...screen, filter: next(filters, screen.filter), cursor: 0 });
  if (name !== 'enter') return state;
  const list = listed(data, screen);
  if (list.length === 0) return state;
  const { evaluation, search } = screen;
  const position = within(screen.cursor, list.length);
  const folds = { at: 'first', toggled: [] } as const;
  return push(state, { is: 'rollout', evaluation, list, position, cursor: 0, folds, search });
}

function rolloutKey(
  state: BrowserState,
  screen: RolloutScreen,
  data: BrowserData,
  size: Size,
  name: string,
  isShift: boolean,
): BrowserState {
  if (name === 'n' || name === 'p') {
    const position = screen.position + (name === 'n' ? 1 : -1);
    if (position < 0) return { ...state, note: 'this is the first' };
    if (position >= screen.list.length) return { ...state, note: 'this is the last' };
    return withListCursor(
      replace(state, { ...screen, position, cursor: 0, folds: { ...screen.folds, toggled: [] } }),
      position,
    );
  }
  if (name === 'e' || name === 'x') {
    return replace(state, { ...screen, folds: { at: name === 'e' ? 'open' : 'closed', toggled: [] }, cursor: 0 });
  }
  const row = shownRow(data, screen);
  if (row === null || row === 'reading') return state;
  const lines = rolloutLines(row, screen, size.columns - 1);
  const cursor = within(screen.cursor, lines.length);
  if (name === 'tab' && screen.search !== '') {
    const hit = nextHit(lines, screen.search, cursor, isShift ? -1 : 1);
    return hit === null ? { ...state, note: 'not in this rollout' } : replace(state, { ...screen, cursor: hit });
  }
  const target = lines[cursor]?.target;
  if (name !== 'enter' || target === undefined) return state;
  const { at, toggled } = screen.folds;
  const folds = {
    at,
    toggled: toggled.includes(target) ? toggled.filter((id) => id !== target) : [...toggled, target],
  };
  const after = rolloutLines(row, { ...screen, folds }, size.columns - 1);
  return replace(state, { ...screen, folds, cursor: after.findIndex((line) => line.target === target) });
}

/** Going back restores the cursor of that screen. */
function withListCursor(state: BrowserState, cursor: number): BrowserState {
  const screens = state.screens.map((screen, i): Screen =>
    i === state.screens.length - 2 && screen.is === 'run' && screen.side === 'rollouts'
      ? { ...screen, cursor }
      : screen,
  );
  return { ...state, screens };
}

function compareKey(
  state: BrowserState,
  screen: CompareScreen,
  data: BrowserData,
  size: Size,
  name: string,
): BrowserState {
  if (name === 'o') return replace(state, { ...screen, isReversed: !screen.isReversed });
  if (name !== 'enter') return state;
  const lines = compareLines(data, screen, size.columns - 1);
  const examples = lines.flatMap(({ target }) => (target === undefined ? [] : [target]));
  const target = lines[within(screen.cursor, lines.length)]?.target;
  if (target === undefined) return examples.length === 0 ? state : { ...state, note: 'enter on an example shows both' };
  const { a, b } = screen;
  return push(state, { is: 'pair', a, b, examples, position: examples.indexOf(target), rollout: 0, cursor: 0 });
}

function pairKey(state: BrowserState, screen: PairScreen, name: string): BrowserState {
  if (name === 'n' || name === 'p') {
    const position = screen.position + (name === 'n' ? 1 : -1);
    if (position < 0) return { ...state, note: 'this is the first' };
    if (position >= screen.examples.length) return { ...state, note: 'this is the last' };
    return replace(state, { ...screen, position, rollout: 0, cursor: 0 });
  }
  if (name === 'r') return replace(state, { ...screen, rollout: screen.rollout + 1, cursor: 0 });
  return state;
}

/** `v` takes the first, then the second of a comparison. */
function compared(state: BrowserState, screen: TreeScreen | RunScreen, data: BrowserData): BrowserState {
  const evaluation =
    screen.is === 'run'
      ? screen.evaluation
      : treeNodes(data, screen.toggled)[within(screen.cursor, treeNodes(data, screen.toggled).length)]?.evaluation;
  if (evaluation == null) return { ...state, note: 'v compares two evaluations: go to one of them' };
  if (state.marked === evaluation) return { ...state, marked: null, note: 'no longer chosen' };
  if (state.marked === null) {
    return {
      ...state,
      marked: evaluation,
      note: `A is ${titleOf(data.evaluations[evaluation]!)}; v on another compares`,
    };
  }
  const compare: Screen = { is: 'compare', a: state.marked, b: evaluation, cursor: 0, isReversed: false };
  return push({ ...state, marked: null }, compare);
}

function copied(screen: Screen, data: BrowserData, size: Size): Outcome | null {
  switch (screen.is) {
    case 'rollout': {
      const row = shownRow(data, screen);
      if (row === null || row === 'reading') return null;
      const lines = rolloutLines(row, screen, size.columns - 1);
      const { what, text } = copiedText(row, lines[within(screen.cursor, lines.length)]?.target);
      return { copy: text, what };
    }
    case 'run':
      return { copy: data.evaluations[screen.evaluation]!.where, what: 'where it is' };
    case 'tree': {
      const nodes = treeNodes(data, screen.toggled);
      const evaluation = nodes[within(screen.cursor, nodes.length)]?.evaluation ?? null;
      return evaluation === null ? null : { copy: data.evaluations[evaluation]!.where, what: 'where it is' };
    }
    case 'compare': {
      const [a, b] = [screen.a, screen.b].map((one) => data.evaluations[one]!.where);
      return { copy: `npx ratchet-rl eval compare ${a} ${b}`, what: 'the command that prints this' };
    }
    case 'pair':
    case 'help':
      return null;
    default:
      return screen satisfies never;
  }
}

function typed(
  state: BrowserState,
  typing: string,
  { name = '', ctrl = false, text = '' }: TypedKey,
  data: BrowserData,
  size: Size,
): BrowserState {
  if (name === 'escape') return { ...state, typing: null };
  if (name === 'backspace') return { ...state, typing: withoutLast(typing) };
  if (ctrl && name === 'u') return { ...state, typing: '' };
  if (name !== 'return' && name !== 'enter') {
    const isText = text !== '' && !/\p{Cc}/u.test(text);
    return isText ? { ...state, typing: (typing + text).slice(0, searchMax) } : state;
  }
  const screen = top(state);
  const done = { ...state, typing: null };
  if (screen.is === 'run') return replace(done, { ...screen, side: 'rollouts', search: typing, cursor: 0 });
  if (screen.is !== 'rollout') return done;
  const searched = { ...screen, search: typing };
  const row = shownRow(data, screen);
  if (typing === '' || row === null || row === 'reading') return replace(done, searched);
  const hit = nextHit(rolloutLines(row, searched, size.columns - 1), typing, -1, 1);
  return hit === null
    ? { ...replace(done, searched), note: `“${typing}” is not in this rollout` }
    : replace(done, { ...searched, cursor: hit });
}

/** Removes one grapheme, so that an emoji goes as a whole. */
function withoutLast(text: string): string {
  const letters = [...new Intl.Segmenter().segment(text)];
  return text.slice(0, letters.at(-1)?.index ?? 0);
}
