/** Rows of metrics, and who takes them. */

/** A row of `metrics.jsonl`: flat numbers of one step. Evaluations are rows of their own. */
export interface MetricsRow {
  readonly step: number;
  readonly lineage: string;
  readonly [name: string]: number | string;
}

/** A row of metrics and its number: rows are handed on in this order, and a number means the same row for good. */
export interface NumberedRow {
  readonly number: number;
  readonly row: MetricsRow;
}

/** A destination of metrics besides `metrics.jsonl`: a projection that may be made again at any time. */
export interface MetricsSink {
  readonly name: string;
  /** The number of the row it wants next, as what it wrote itself says; `cursor` is what was noted of it, where it cannot say. */
  open(cursor: number): Promise<number>;
  /** Takes rows in the order of their numbers; each is given once, unless the sink is opened again. */
  send(rows: readonly NumberedRow[]): Promise<void>;
  /** Address at which the metrics are shown; null without one. */
  place(): string | null;
  /** `isRunOver`: no further rows will come, and it has them all. */
  close(isRunOver: boolean): Promise<void>;
}

/** `sinks/state.json`: how far each sink is, by name. */
export interface SinkState {
  /** The number of the next row: all before were sent. */
  readonly next: number;
  /** Rows there are to send. */
  readonly rows: number;
  readonly place: string | null;
  /** Why it does not go on at present. */
  readonly failing: string | null;
  /** The run has ended and everything was sent. */
  readonly isDone: boolean;
}
export type SinkStates = Readonly<Record<string, SinkState>>;
