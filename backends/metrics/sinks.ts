import type { MetricsRow } from '../../runs/metrics.ts';
import type { NumberedRow } from '../../runs/metrics-feed.ts';

/** Where metrics go besides `metrics.jsonl`: a projection that may be made again at any time. */
export interface MetricsSink {
  readonly name: string;
  /** The number of the row it wants next, as what it wrote itself says; `cursor` is what was noted of it, where it cannot say. */
  open(cursor: number): Promise<number>;
  /** Takes rows in the order of their numbers; each is given once, unless the sink is opened again. */
  send(rows: readonly NumberedRow[]): Promise<void>;
  /** What there is to know beside: where it is shown. */
  place(): string | null;
  /** `isRunOver`: no further rows will come, and it has them all. */
  close(isRunOver: boolean): Promise<void>;
}

/** When a row came to be, ms since 1970; an evaluation's row has no time of its own. */
export function timeOf({ time }: MetricsRow): number {
  const at = typeof time === 'string' ? Date.parse(time) : Number.NaN;
  return Number.isFinite(at) ? at : Date.now();
}
