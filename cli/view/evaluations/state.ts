import type { Size } from '../terminal.ts';
import type { Comparison } from '../../../core/eval/comparison.ts';
import type { ResultRow } from '../../../core/eval/result-rows.ts';
import type { EvaluationFigures } from '../../../core/eval/summary.ts';
import type { FoundEvaluation } from '../../../runs/evaluations/evaluation.ts';
import type { IndexedRow } from '../../../runs/evaluations/result-file.ts';

/** Where somebody is who looks through evaluations: a stack of screens, the last of which is seen. Evaluations by their number. */
export interface BrowserState {
  readonly screens: readonly Screen[];
  /** What `v` compares the next one with. */
  readonly marked: number | null;
  /** A search that is being typed. */
  readonly typing: string | null;
  /** Said once, in the last row. */
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
  /** In what that side shows. */
  readonly cursor: number;
  readonly order: Order;
  readonly filter: Filter;
  /** '' = all. */
  readonly search: string;
}

export interface RolloutScreen {
  readonly is: 'rollout';
  readonly evaluation: number;
  /** Rows as the list had them, and which of them is seen. */
  readonly list: readonly number[];
  readonly position: number;
  readonly cursor: number;
  readonly folds: Folds;
  readonly search: string;
}

/** Sections that are open or closed against what they are `at`. */
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
  /** In the comparison's order. */
  readonly examples: readonly string[];
  readonly position: number;
  /** Which rollout of it. */
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

/** The same place after another look, which may have found others: the tree. */
export function lookedAgain({ screens }: BrowserState): BrowserState {
  return { ...beginning, screens: screens.slice(0, 1) };
}

/** What is known of an evaluation's rows; they grow while the file is read. */
export interface EvaluationRows {
  readonly rows: readonly IndexedRow[];
  readonly unreadable: number;
  readonly figures: EvaluationFigures;
  /** 0 to 1; 1 when all is read. */
  readonly progress: number;
  /** What reading failed with. */
  readonly problem: string | null;
}

export interface Hits {
  readonly rows: ReadonlySet<number>;
  readonly progress: number;
}

/** What is looked through. Looking something up is free; what is not there yet comes by and by. */
export interface BrowserData {
  readonly evaluations: readonly FoundEvaluation[];
  readonly incomplete: number;
  readonly rows: (evaluation: number) => EvaluationRows;
  /** `reading` until it has been read, null where it cannot be. */
  readonly row: (evaluation: number, index: number) => ResultRow | 'reading' | null;
  /** Null until both are read. */
  readonly comparison: (a: number, b: number) => Comparison | null;
  /** Rows in whose texts the words are. */
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
