import { LineageWatch, type Notice, type NoticeLimits } from '../../core/rl/notices.ts';
import type { MetricsRow, MetricsSink, NumberedRow } from '../../core/rl/metric-rows.ts';
import { writeNotice } from './notices.ts';
import { type RunPlace, storeOf, stretchesOf } from '../run-access.ts';

/**
 * Writes notices about a run's metrics. Like a sink it receives all rows from the first one each time it is opened, and
 * finds the notices that it wrote before.
 */
export class NoticeWatch implements MetricsSink {
  readonly name = 'notices';
  readonly #run: RunPlace;
  readonly #limits: NoticeLimits;
  readonly #rows = new Map<string, MetricsRow[]>();
  readonly #watches = new Map<string, LineageWatch>();

  constructor(run: RunPlace, limits: NoticeLimits) {
    this.#run = run;
    this.#limits = limits;
  }

  open(): Promise<number> {
    this.#rows.clear();
    this.#watches.clear();
    return Promise.resolve(0);
  }

  async send(rows: readonly NumberedRow[]): Promise<void> {
    for (const { row } of rows) {
      const watch = this.#watches.get(row.lineage) ?? (await this.#begin(row.lineage));
      this.#rows.get(row.lineage)!.push(row);
      for (const notice of watch.take(row)) await this.#write(notice);
    }
  }

  place(): null {
    return null;
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  async #write(notice: Notice): Promise<void> {
    await writeNotice(storeOf(this.#run), notice);
  }

  /** A lineage continues from the metrics of the one before, whose notices are not repeated. */
  async #begin(lineage: string): Promise<LineageWatch> {
    const watch = new LineageWatch(this.#limits);
    const [, ...before] = await stretchesOf({ ...this.#run, lineage });
    for (const { lineage: earlier, upTo } of before.toReversed())
      for (const row of this.#rows.get(earlier) ?? []) if (row.step <= upTo) watch.take(row);
    this.#watches.set(lineage, watch);
    this.#rows.set(lineage, []);
    return watch;
  }
}
