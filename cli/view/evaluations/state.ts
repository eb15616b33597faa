import type { Size } from '../terminal.ts';
import type { Comparison } from '../../../core/eval/comparison.ts';
import type { ResultRow } from '../../../core/eval/result-rows.ts';
import type { EvaluationFigures } from '../../../core/eval/summary.ts';
import type { FoundEvaluation } from '../../../runs/evaluations/evaluation.ts';
import type { IndexedRow } from '../../../runs/evaluations/result-file.ts';

/** Position in the evaluation browser: a stack of screens, of which the last is visible. Evaluations are numbered. */
export interface BrowserState {
  readonly screens: readonly Screen[];
  /** The evaluation that `v` compares with the next one. */
  readonly marked: number | null;
  /** A search that is being typed. */
  readonly typing: string | null;
  /** A message shown once, in the last row. */
  readonly note: string | null;
}

export type Screen = TreeScreen | RunScreen | RolloutScreen | CompareScreen | PairScreen | HelpScreen;

export interface TreeScreen {
  readonly is: 'tree';
  readonly cursor: number;
  /** Branches that are not as they are at first: closed, or those of training opened. */
  readonly toggled: readonly string[];
}

export interface RunScreen {
  readonly is: 'run';
  readonly evaluation: number;
  readonly side: 'summary' | 'rollouts';
  /** Row of the visible side. */
  readonly cursor: number;
  readonly order: Order;
  readonly filter: Filter;
  /** '' = all. */
  readonly search: string;
}

export interface RolloutScreen {
  readonly is: 'rollout';
  readonly evaluation: number;
  /** Rows in the list's order, and the visible one. */
  readonly list: readonly number[];
  readonly position: number;
  readonly cursor: number;
  readonly folds: Folds;
  readonly search: string;
}

/** Sections folded differently from their default. */
export interface Folds {
  readonly at: 'first' | 'open' | 'closed';
  readonly toggled: readonly string[];
}

export interface CompareScreen {
  readonly is: 'compare';
  readonly a: number;
  readonly b: number;
  readonly cursor: number;
  /** The greatest loss first. */
  readonly isReversed: boolean;
}

/** One example of two evaluations. */
export interface PairScreen {
  readonly is: 'pair';
  readonly a: number;
  readonly b: number;
  /** Ids in the comparison's order. */
  readonly examples: readonly string[];
  readonly position: number;
  /** Index of the example's rollout. */
  readonly rollout: number;
  readonly cursor: number;
}

interface HelpScreen {
  readonly is: 'help';
  readonly cursor: number;
}

export const orders = ['as written', 'best first', 'worst first'] as const;
type Order = (typeof orders)[number];
export const filters = ['all', 'right', 'wrong', 'failed', 'truncated'] as const;
type Filter = (typeof filters)[number];

export const beginning: BrowserState = {
  screens: [{ is: 'tree', cursor: 0, toggled: [] }],
  marked: null,
  typing: null,
  note: null,
};

/** The same position after a reload, which may have found other evaluations: the tree. */
export function lookedAgain({ screens }: BrowserState): BrowserState {
  return { ...beginning, screens: screens.slice(0, 1) };
}

/** Rows read so far; they grow while the file is read. */
export interface EvaluationRows {
  readonly rows: readonly IndexedRow[];
  readonly unreadable: number;
  readonly figures: EvaluationFigures;
  /** 0 to 1; 1 when all is read. */
  readonly progress: number;
  /** Error of reading. */
  readonly problem: string | null;
}

export interface Hits {
  readonly rows: ReadonlySet<number>;
  readonly progress: number;
}

/** Data of the browser. A lookup returns at once; missing data arrives later. */
export interface BrowserData {
  readonly evaluations: readonly FoundEvaluation[];
  readonly incomplete: number;
  readonly rows: (evaluation: number) => EvaluationRows;
  /** `reading` until it is read, null when it cannot be. */
  readonly row: (evaluation: number, index: number) => ResultRow | 'reading' | null;
  /** null until both are read. */
  readonly comparison: (a: number, b: number) => Comparison | null;
  /** Rows whose texts contain the words. */
  readonly hits: (evaluation: number, words: string) => Hits;
}

/** Rows between the title and the last row. */
export function bodyRows({ rows }: Size): number {
  return Math.max(1, rows - 3);
}

/** Whether the list and the summary of a run have room side by side. */
export function isWide({ columns }: Size): boolean {
  return columns >= 100;
}
