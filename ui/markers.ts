import { changedSettings } from '../config/changed-settings.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { begunLineages, readCommit, type RunPlace, storeOf } from '../runs/run-access.ts';
import type { FollowedHead } from '../runs/lineages/followed-head.ts';
import type { StoredNotice } from '../core/rl/notices.ts';
import { specIn } from '../runs/forms/record-shapes.ts';
import type { RunEvent } from '../workflows/control/messages.ts';
import type { Marker, MarkerKind } from './answers.ts';
import type { MetricsTable } from './metrics-table.ts';
import { rowsOnTheWay } from './overview.ts';
import type { Timeline } from './timeline.ts';

const failuresShown = 200;
const weightsShown = 500;
const textMax = 400;

/** Kinds of run events drawn on the charts; events of other kinds are left out. */
const kindOf: Partial<Record<RunEvent['kind'], MarkerKind>> = {
  recovery: 'fault',
  refused: 'fault',
  regression: 'notice',
  warning: 'notice',
  paused: 'notice',
  resumed: 'notice',
  stopping: 'notice',
  prompt: 'settings',
  set: 'settings',
  upgraded: 'settings',
  rewound: 'rewind',
};

/** Markers from the store, the logs and the run's own events, oldest first. */
export class Markers {
  readonly #place: RunPlace;
  readonly #table: MetricsTable;
  readonly #head: FollowedHead;
  #changes: readonly Marker[] = [];
  #changesUpTo = -1;

  constructor(place: RunPlace, table: MetricsTable, head: FollowedHead) {
    this.#place = place;
    this.#table = table;
    this.#head = head;
  }

  async all(timeline: Timeline, notices: readonly StoredNotice[], events: readonly RunEvent[]): Promise<Marker[]> {
    await timeline.refresh();
    const rows = await rowsOnTheWay(this.#place, this.#table);
    const found = [
      ...(await this.#lineages()),
      ...(await this.#settings()),
      ...this.#faults(rows),
      ...this.#failures(timeline, rows),
      ...timeline.broadcasts(weightsShown).map(({ version, step, at }): Marker => ({
        kind: 'weights',
        step,
        time: isoOf(at),
        text: `servers have ${version}`,
      })),
      ...notices.map(({ kind, step, time, text }): Marker => ({
        kind: 'notice',
        step,
        time,
        text: `${kind}: ${text}`,
      })),
      ...events.flatMap(({ kind, step, time, text }): Marker[] => {
        const as = kindOf[kind];
        // The run's own pause is one of its notices.
        if (kind === 'paused' && notices.some((one) => text === `paused: ${reasonIn(one)}`)) return [];
        return as === undefined ? [] : [{ kind: as, step, time, text }];
      }),
    ];
    return found.sort((a, b) => a.time.localeCompare(b.time) || a.step - b.step);
  }

  async #lineages(): Promise<Marker[]> {
    return (await begunLineages(this.#place)).map(({ lineage, origin, begunAt }) => ({
      kind: 'rewind',
      step: origin.step,
      time: begunAt,
      text: `lineage ${lineage} begins at step ${origin.step} of ${origin.lineage}${origin.run === this.#place.name ? '' : ` of ${origin.run}`}`,
    }));
  }

  /** Lost work and restarted processes, from the metrics of steps. */
  #faults(rows: readonly number[]): Marker[] {
    const table = this.#table;
    const isFault = (row: number): boolean =>
      (table.value(row, 'recovery/count') ?? 0) + (table.value(row, 'recovery/restarts') ?? 0) > 0;
    return rows.filter(isFault).map((row): Marker => {
      const value = (name: string): number => table.value(row, name) ?? 0;
      const [recoveries, restarts] = [value('recovery/count'), value('recovery/restarts')];
      const said = [
        ...(recoveries > 0 ? [`${recoveries} × something was done again`] : []),
        ...(restarts > 0 ? ['the orchestrator was started anew'] : []),
        ...(value('lost/rollouts') > 0 ? [`${value('lost/rollouts')} rollouts under way were lost`] : []),
        ...(value('lost/seconds') > 0 ? [`${value('lost/seconds').toFixed(1)} s`] : []),
      ];
      const at = table.timeOf(row);
      return { kind: 'fault', step: table.stepOf(row), time: isoOf(at), text: said.join(', ') };
    });
  }

  #failures(timeline: Timeline, rows: readonly number[]): Marker[] {
    return timeline.failures(failuresShown).map(({ worker, text, error = '', to, from }) => {
      const after = rows.find((row) => this.#table.timeOf(row) >= (to ?? from)) ?? rows.at(-1);
      return {
        kind: 'fault',
        step: after === undefined ? 0 : this.#table.stepOf(after),
        time: isoOf(to ?? from),
        text: `${worker}: ${text} failed: ${error.split('\n', 1)[0]!.slice(0, textMax)}`,
      };
    });
  }

  /**
   * Steps at which settings or overrides differ from the step before. Compares commits by bisection: a stretch with
   * equal ends counts as unchanged.
   */
  async #settings(): Promise<readonly Marker[]> {
    const { lineage, head } = await this.#head.now();
    const place = { ...this.#place, lineage };
    const last = head?.commit.step ?? -1;
    if (last <= this.#changesUpTo) return this.#changes;
    const begun = (await begunLineages(place)).find((one) => one.lineage === lineage);
    const first = Math.max(begun?.origin.step ?? 0, this.#changesUpTo);
    const read = async (step: number): Promise<StepCommit | null> => (await readCommit(place, step))?.commit ?? null;
    const found: Marker[] = [];
    const between = async (a: StepCommit | null, b: StepCommit | null): Promise<void> => {
      if (!a || !b || (a.spec.sha256 === b.spec.sha256 && setIn(a) === setIn(b))) return;
      if (b.step - a.step <= 1) {
        found.push({ kind: 'settings', step: b.step, time: b.committedAt, text: await this.#change(a, b) });
        return;
      }
      const middle = await read(Math.floor((a.step + b.step) / 2));
      await between(a, middle);
      await between(middle, b);
    };
    await between(await read(first), await read(last));
    this.#changes = [...this.#changes, ...found];
    this.#changesUpTo = last;
    return this.#changes;
  }

  async #change(a: StepCommit, b: StepCommit): Promise<string> {
    const store = storeOf(this.#place);
    const spec = async ({ spec }: StepCommit): Promise<RunSpec> => specIn(await store.get(spec), spec.key);
    const settings = a.spec.sha256 === b.spec.sha256 ? [] : changedSettings(await spec(a), await spec(b));
    const set = setIn(a) === setIn(b) ? [] : changedSettings(a.state.overrides, b.state.overrides);
    return `settings: ${[...settings, ...set].join(', ').slice(0, textMax) || 'read from another file'}`;
  }
}

/** The reason in the run's own words. */
function reasonIn({ kind, text }: StoredNotice): string {
  return kind === 'breaker' ? `breaker: ${text}` : text;
}

function setIn({ state }: StepCommit): string {
  return JSON.stringify(state.overrides);
}

function isoOf(at: number): string {
  return Number.isNaN(at) ? '' : new Date(at).toISOString();
}
