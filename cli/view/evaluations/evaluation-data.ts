import { type Comparison, compareEvaluations } from '../../../core/eval/comparison.ts';
import type { ResultRow } from '../../../core/eval/result-rows.ts';
import { Summing } from '../../../core/eval/summary.ts';
import type { FoundEvaluations, FoundEvaluation } from '../../../runs/evaluations/evaluation.ts';
import { ResultFile } from '../../../runs/evaluations/result-file.ts';
import type { BrowserData, Hits, EvaluationRows } from './state.ts';

/** Evaluations whose rows are cached. */
const heldMax = 6;
/** Rows kept whole in memory. */
const rowsMax = 64;
/** Interval between new sums while a file is read. */
const summedEveryMs = 500;

interface Held {
  file: ResultFile | null;
  rows: EvaluationRows;
}

const nothing: EvaluationRows = {
  rows: [],
  unreadable: 0,
  figures: new Summing().figures(),
  progress: 0,
  problem: null,
};

/** Reads data when it is first shown, and reports when there is more. */
export class EvaluationData implements BrowserData {
  readonly evaluations: readonly FoundEvaluation[];
  readonly incomplete: number;
  readonly #onMore: () => void;
  readonly #stop = new AbortController();
  readonly #held = new Map<number, Held>();
  readonly #rows = new Map<string, ResultRow | 'reading' | null>();
  #compared: { key: string; comparison: Comparison } | null = null;
  #searched: { key: string; hits: Hits; stop: AbortController } | null = null;

  constructor({ evaluations, incomplete }: FoundEvaluations, onMore: () => void) {
    this.evaluations = evaluations;
    this.incomplete = incomplete.length;
    this.#onMore = onMore;
  }

  close(): void {
    this.#stop.abort();
    this.#searched?.stop.abort();
  }

  readonly rows = (evaluation: number): EvaluationRows => this.#hold(evaluation).rows;

  readonly row = (evaluation: number, index: number): ResultRow | 'reading' | null => {
    const key = `${evaluation} ${index}`;
    const known = this.#rows.get(key);
    if (known !== undefined) return known;
    const { file } = this.#hold(evaluation);
    if (file === null || index >= file.rows.length) return 'reading';
    this.#rows.set(key, 'reading');
    forgetFirst(this.#rows, rowsMax);
    const settle = (row: ResultRow | null): void => {
      this.#rows.set(key, row);
      this.#onMore();
    };
    file.row(index).then(settle, () => settle(null));
    return 'reading';
  };

  readonly comparison = (a: number, b: number): Comparison | null => {
    const [inA, inB] = [this.rows(a), this.rows(b)];
    if (inA.progress < 1 || inB.progress < 1 || inA.problem !== null || inB.problem !== null) return null;
    const key = `${a} ${b}`;
    if (this.#compared?.key !== key) this.#compared = { key, comparison: compareEvaluations(inA.rows, inB.rows) };
    return this.#compared.comparison;
  };

  readonly hits = (evaluation: number, words: string): Hits => {
    const key = `${evaluation} ${words}`;
    if (this.#searched?.key === key) return this.#searched.hits;
    const { file, rows } = this.#hold(evaluation);
    if (file === null || rows.progress < 1) return { rows: new Set(), progress: 0 };
    this.#searched?.stop.abort();
    const found = new Set<number>();
    const searched = { key, hits: { rows: found, progress: 0 } as Hits, stop: new AbortController() };
    this.#searched = searched;
    const onProgress = (progress: number): void => {
      searched.hits = { rows: found, progress };
      this.#onMore();
    };
    file.search(words, found, onProgress, searched.stop.signal).catch(() => onProgress(1));
    return searched.hits;
  };

  #hold(evaluation: number): Held {
    const known = this.#held.get(evaluation);
    if (known) return known;
    const held: Held = { file: null, rows: nothing };
    this.#held.set(evaluation, held);
    forgetFirst(this.#held, heldMax);
    this.#read(evaluation, held).catch((error: unknown) => {
      if (this.#stop.signal.aborted) return;
      held.rows = { ...held.rows, progress: 1, problem: error instanceof Error ? error.message : String(error) };
      this.#onMore();
    });
    return held;
  }

  async #read(evaluation: number, held: Held): Promise<void> {
    const { metadata, rows } = this.evaluations[evaluation]!;
    const file = new ResultFile(await rows(), metadata.rolloutsPerExample);
    held.file = file;
    let summing = new Summing(metadata.passThreshold);
    let [summed, summedAt] = [0, 0];
    const tell = (progress: number): void => {
      for (; summed < file.rows.length; summed++) summing.add(file.rows[summed]!);
      held.rows = { rows: file.rows, unreadable: file.unreadable, figures: summing.figures(), progress, problem: null };
      summedAt = performance.now();
      this.#onMore();
    };
    await file.read(({ bytesRead, bytesTotal }) => {
      if (performance.now() - summedAt > summedEveryMs) tell(Math.min(0.99, bytesRead / bytesTotal));
    }, this.#stop.signal);
    [summing, summed] = [new Summing(metadata.passThreshold), 0]; // which rows are of one example is settled only now
    tell(1);
  }
}

/** Drops the oldest entries of a map until `most` remain. */
function forgetFirst(map: Map<unknown, unknown>, most: number): void {
  for (const key of map.keys()) {
    if (map.size <= most) return;
    map.delete(key);
  }
}
