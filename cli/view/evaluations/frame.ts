import type { Size } from '../terminal.ts';
import { counted } from '../../eval/figures.ts';
import { onOneLine } from '../../output/plain-text.ts';
import { cut, type Line, type Span, widthOf } from '../lines.ts';
import { compareLines, pairPage } from './compare-page.ts';
import { page } from './document.ts';
import { helpLines } from './help.ts';
import { rolloutPage } from './rollout-page.ts';
import { runPage } from './run-page.ts';
import { bodyRows, type BrowserData, type BrowserState, type Screen } from './state.ts';
import { treePage } from './tree.ts';

/** The screen as rows, always one fewer than the terminal has. */
export function browserFrame(state: BrowserState, data: BrowserData, size: Size): Line[] {
  const { columns, rows } = size;
  const screen = state.screens.at(-1)!;
  const body = bodyRows(size);
  const lines = bodyOf(state, screen, data, { ...size, body }).slice(0, body);
  const empty: Line[] = Array.from({ length: body - lines.length }, () => []);
  return [titleOf(state, data, columns), ...lines, ...empty, footerOf(state, screen, columns)].slice(
    -Math.max(1, rows - 1),
  );
}

function bodyOf(
  state: BrowserState,
  screen: Screen,
  data: BrowserData,
  size: Size & { readonly body: number },
): Line[] {
  const { columns, body } = size;
  switch (screen.is) {
    case 'tree':
      return treePage(data, screen, { columns, rows: body, marked: state.marked });
    case 'run':
      return runPage(data, screen, size);
    case 'rollout':
      return rolloutPage(data, screen, columns, body);
    case 'compare':
      return page(compareLines(data, screen, columns - 1), screen.cursor, body);
    case 'pair':
      return pairPage(data, screen, columns, body);
    case 'help':
      return page(helpLines, screen.cursor, body);
    default:
      return screen satisfies never;
  }
}

/** Path to the current screen; on a narrow terminal, its end. */
function titleOf({ screens }: BrowserState, data: BrowserData, columns: number): Line {
  const name: Span = { text: ' evaluations ', style: 'bold' };
  const way = wayOf(screens.at(-1)!, data).map(onOneLine);
  if (way.length === 0) {
    const { evaluations, incomplete } = data;
    const without = incomplete === 0 ? '' : `; ${counted(incomplete, 'folder')} without one of the two files left out`;
    return [name, { text: `${evaluations.length}${without}`, style: 'dim' }];
  }
  const room = columns - widthOf(name.text);
  while (way.length > 1 && widthOf(way.join(' › ')) > room) way.shift();
  return [name, { text: cut(way.join(' › '), room) }];
}

function wayOf(screen: Screen, data: BrowserData): string[] {
  const nameOf = (i: number): string[] => {
    const { environment, model, id } = data.evaluations[i]!;
    return [environment, model, id];
  };
  switch (screen.is) {
    case 'tree':
      return [];
    case 'run':
      return nameOf(screen.evaluation);
    case 'rollout': {
      const { evaluation, list, position } = screen;
      const row = data.rows(evaluation).rows[list[position]!];
      return [...nameOf(evaluation), `#${row?.exampleId ?? '?'}, ${position + 1} of ${list.length}`];
    }
    case 'compare':
      return [data.evaluations[screen.a]!.environment, 'A and B'];
    case 'pair':
      return [
        data.evaluations[screen.a]!.environment,
        `A and B, example #${screen.examples[screen.position]}, ${screen.position + 1} of ${screen.examples.length}`,
      ];
    case 'help':
      return ['keys'];
    default:
      return screen satisfies never;
  }
}

/** Most important first: a narrow screen cuts off the end. */
const keyHints: Readonly<Record<Screen['is'], readonly string[]>> = {
  tree: ['[enter] open', '[v] compare', '[c]opy path'],
  run: ['[enter] open', '[tab] summary/rollouts', '[s]earch', '[o]rder', '[f]ilter', '[v] compare'],
  rollout: ['[n]ext [p]revious', '[enter] fold', '[e]xpand [x] collapse', '[s]earch', '[c]opy'],
  compare: ['[enter] both', '[o]rder', '[c]opy command'],
  pair: ['[n]ext [p]revious', '[r]ollout'],
  help: [],
};

function keysIn(is: Screen['is'], columns: number): string {
  const always = is === 'tree' ? ['[q]uit', '[?] keys'] : ['[b]ack', '[?] keys'];
  const chosen = [...keyHints[is]];
  const all = (): string => ` ${[...chosen, ...always].join('  ')}`;
  while (chosen.length > 0 && widthOf(all()) > columns) chosen.pop();
  return all();
}

function footerOf({ typing, note }: BrowserState, screen: Screen, columns: number): Line {
  if (typing !== null) {
    // The end of the typed text, since that is being edited.
    let shown = onOneLine(typing);
    while (widthOf(shown) > Math.max(1, columns - 12)) shown = shown.slice(1);
    return [{ text: ' search: ' }, { text: shown, style: 'bold' }, { text: ' ', style: 'inverse' }];
  }
  if (note !== null) return [{ text: ` ${onOneLine(note)}`, style: 'yellow' }];
  return [{ text: keysIn(screen.is, columns), style: 'dim' }];
}
