import type { FailpointPlan, FiredFailpoint } from '../../store/failpoints.ts';
import { type Column, type Gap, gapOf } from './columns.ts';
import { isContinuous, kindOf, type StageKindName } from './stage-kinds.ts';
import type { FaultStage, RunSummary, StagedRun } from './stage.ts';

/** Long enough for a checkpoint, a step after it, and one to recover in. */
export const stepsOfRun = 4;

/** State when a fault strikes: the failpoint of its column has fired, and holds if the row's action is `hold`. */
export interface Struck {
  readonly stage: FaultStage;
  readonly run: StagedRun;
  readonly column: Column;
  readonly fired: FiredFailpoint;
  /** Lets the held process continue, now and not after the strike. */
  readonly release: () => void;
  /** The harm is over: from here it is counted how long the run takes to its next commit; from the strike if not called. */
  readonly harmEnds: () => void;
  /** Counts what is in flight now, for harm that reaches the workers later. The largest count is what may be lost. */
  readonly noteInFlight: () => Promise<void>;
}

/** A kind of fault. */
export interface Row {
  /** Which stage its cells need; rows of one kind share it. */
  readonly stage: StageKindName;
  readonly action: FailpointPlan['action'];
  /**
   * Does the harm, and fails unless it was done: a cell shows that its fault fired. Returns the run that is waited for
   * where another one than that which was struck.
   */
  readonly strike: (struck: Struck) => Promise<StagedRun | void>;
  /** Number of steps of its runs; {@link stepsOfRun} when missing. */
  readonly steps?: number;
  /**
   * Different settings of its runs, as `--key value` on the command line; compared with an undisturbed run with the
   * same.
   */
  readonly overrides?: Readonly<Record<string, string>>;
  /** Failpoints that stand for a column's own, where its stage never passes that. */
  readonly gaps?: Readonly<Partial<Record<Column, Gap>>>;
  /** Columns in which it runs; all by default. */
  readonly columns?: { readonly only: readonly Column[]; readonly because: string };
  /** Columns that it cannot be in, and why: it says so in the table. */
  readonly cannot?: Readonly<Partial<Record<Column, string>>>;
  /** The fault does not affect sampling: not even a rollout in flight may be sampled again. */
  readonly losesNothing?: boolean;
  /** How the run's end is judged, where not by the weights and the ledger of the undisturbed run. */
  readonly judge?: (judged: Judged) => void | Promise<void>;
  /** How long a cell may take; see `cellLimitMs`. */
  readonly limitMs?: number;
}

export interface Judged {
  readonly stage: FaultStage;
  readonly run: StagedRun;
  readonly column: Column;
  readonly summary: RunSummary;
  /** sha256 of the file with the last weights. */
  readonly weights: string;
  readonly undisturbed: UndisturbedRun;
}

/** Columns in which an engine's run can be struck. */
export function atWork(...only: readonly Column[]): Pick<Row, 'columns'> {
  const because =
    'the engine does nothing in this gap, so it is as in the gap before; the same row of the first table has the rest';
  return { columns: { only, because } };
}

/** The run that a cell's is compared with. */
export interface UndisturbedRun {
  readonly summary: RunSummary;
  readonly weights: string;
  /** Outcome of its branch, if it had one. */
  readonly branch?: string;
}

export type Rows = Readonly<Record<string, Row>>;

const severalVersions =
  'its servers hold several versions, and the run would not wait for its branch: test/e2e/prompt-branches.slow.test.ts strikes it while the run is paused';

const elsewhere = 'no run of this row has such a server';
const ofNoEngine = 'of the run alone, whatever it trains and samples on: see the rows of the first table';

/** Why there is no such cell; null when there is. */
export function whyNot(row: Row, column: Column): string | null {
  const { hasBranch, continuesAsNew, engine: needed } = gapOf(column);
  const { engine } = kindOf(row.stage);
  if (needed !== undefined && needed !== engine) return elsewhere;
  if (engine !== undefined && hasBranch) return ofNoEngine;
  if (engine !== undefined && !isContinuous(engine) && continuesAsNew) return ofNoEngine;
  if (hasBranch === true && row.stage === 'real') return severalVersions;
  const reason = row.cannot?.[column];
  if (reason !== undefined) return reason;
  return row.columns === undefined || row.columns.only.includes(column) ? null : row.columns.because;
}
