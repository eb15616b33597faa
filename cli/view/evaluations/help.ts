import type { DocumentLine } from './document.ts';

const keys: readonly (readonly [string, string])[] = [
  ['j k, arrows', 'move; space and page keys by a page, g G to the ends'],
  ['enter', 'open; fold or unfold what the cursor is on'],
  ['b, esc', 'back'],
  ['tab', 'of a run: its summary, its rollouts; of a rollout: the next place of what was searched for'],
  ['o', 'order of rollouts: as written, best first, worst first'],
  ['f', 'filter: all, right, wrong, failed, truncated'],
  ['n p', 'next and previous rollout, or example'],
  ['e x', 'expand all, collapse all'],
  ['s, /', 'search: in all rollouts of a run, or in the one that is seen; esc ends it'],
  ['r', 'of an example that is compared: the next of its rollouts'],
  ['c', 'copy the section, the rollout, or the path: by the terminal (OSC 52); tmux needs set-clipboard on'],
  ['v', 'compare: on one run, then on another'],
  ['R', 'read the folders again: evaluations that are still running have more rows by then'],
  ['q', 'quit'],
];

export const helpLines: readonly DocumentLine[] = keys.map(([key, does]): DocumentLine => ({
  line: [{ text: ` ${key.padEnd(12)} `, style: 'bold' }, { text: does }],
}));
