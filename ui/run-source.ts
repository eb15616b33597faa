import type { Effectiveness } from '../core/rl/effectiveness.ts';
import { orIfDamaged } from '../store/objects.ts';
import { FollowedHead } from '../runs/lineages/followed-head.ts';
import { Notices } from '../runs/metrics/notices.ts';
import type { RunPlace } from '../runs/run-access.ts';
import { currentLineage, storeOf } from '../runs/run-access.ts';
import type { FleetAnswer, RunOverview, SeriesAnswer, TimelineAnswer, Marker } from './answers.ts';
import { Evaluations } from './evaluations.ts';
import { History } from './history.ts';
import { Markers } from './markers.ts';
import { MetricsTable } from './metrics-table.ts';
import {
  type CommittedStand,
  effectOf,
  overviewOf,
  seriesOf,
  stateOf,
  type ToldByRun,
  type ToldOverview,
} from './overview.ts';
import { RolloutSource } from './rollout-source.ts';
import { Searches } from './searches.ts';
import { settingsOf } from './settings-of.ts';
import { Timeline } from './timeline.ts';

/**
 * Asks a run. null: it has ended, or there is no Temporal; `silent`: it runs without an orchestrator that answers; `no
 * answer`: the Temporal server itself does not answer.
 */
export type AskRun = (run: string) => Promise<ToldByRun | 'silent' | 'no answer' | null>;

/** Asks for all pools, as `FleetAnswer` has it. */
export type AskPools = () => Promise<FleetAnswer['pools']>;

/** Lists the running runs; `no answer` if the Temporal server does not answer. */
export type ListRunning = () => Promise<readonly string[] | 'no answer'>;

/** State shown instead of the folder's for a run that may be running. */
const unheard = { asking: 'asking it', silent: 'running, but its orchestrator does not answer' } as const;

/** The folder shows which runs have ended, but not whether a worker is at work on the others. */
function whileNoAnswer(stored: string): string {
  return stored === 'not running' ? 'not known: its Temporal server does not answer' : stored;
}

/** State of a run in one word, from its own answer and its folder. */
export function stateBy(told: Awaited<ReturnType<AskRun>>, stored: string): string {
  if (told === null) return stored;
  if (told === 'no answer') return whileNoAnswer(stored);
  return told === 'silent' ? unheard.silent : stateOf(told.status);
}

/** Points of a curve that a page is given at most. */
export const pointsMax = 2_000;

const noticesShown = 12;

/** Lifetime of the cached overview of commits, since a rewind changes no metrics. */
const saidForMs = 3_000;

/** Everything that the page shows of one run. Reads are cached, and only what is new is read again. */
export class RunSource {
  readonly place: RunPlace;
  readonly rollouts: RolloutSource;
  readonly history: History;
  readonly evaluations: Evaluations;
  readonly searches: Searches;
  readonly #table: MetricsTable;
  readonly #timeline: Timeline;
  readonly #markers: Markers;
  readonly #notices: Notices;
  readonly #ask: AskRun;
  readonly #head: FollowedHead;
  #effect: { readonly of: string; readonly effect: Promise<Effectiveness> } | null = null;
  #told: ToldByRun | null = null;
  /** `asking`: the first question is under way. */
  #asked: 'not yet' | 'asking' | 'silent' | 'no answer' | 'heard' = 'not yet';
  /** Number of the newest event received from the run. */
  #lastEvent = 0;
  #saidAt = 0;
  #said: { readonly of: string; readonly overview: Promise<ToldOverview> } | null = null;

  constructor(place: RunPlace, ask: AskRun) {
    this.place = place;
    this.#ask = ask;
    const store = storeOf(place);
    this.#table = new MetricsTable(store);
    this.#timeline = new Timeline(store);
    this.#notices = new Notices(store);
    this.#head = new FollowedHead(place);
    this.#markers = new Markers(place, this.#table, this.#head);
    this.rollouts = new RolloutSource(place);
    this.history = new History(place);
    this.evaluations = Evaluations.ofRun(place);
    this.searches = new Searches(place);
  }

  /** A number that changes whenever the run's folder or the run itself has news. */
  async look(): Promise<number> {
    const [notices] = await Promise.all([this.#notices.all(), this.#table.refresh()]);
    return this.#table.offset + notices.length + this.#notices.damaged.length + this.#lastEvent;
  }

  async askRun(): Promise<void> {
    if (this.#asked === 'not yet') this.#asked = 'asking';
    let told: Awaited<ReturnType<AskRun>> = null;
    try {
      told = await this.#ask(this.place.name);
    } finally {
      this.#asked = typeof told === 'string' ? told : 'heard';
    }
    this.#told = typeof told === 'string' ? null : told;
    this.#lastEvent = this.#told?.events.at(-1)?.sequence ?? this.#lastEvent;
  }

  /** Recomputed when something is new, and every few seconds. */
  async overview(): Promise<RunOverview> {
    await this.#table.refresh();
    const of = `${this.#table.offset} ${JSON.stringify(this.#told)}`;
    if (this.#said?.of !== of || performance.now() - this.#saidAt > saidForMs) {
      this.#saidAt = performance.now();
      this.#said = { of, overview: this.#overview() };
    }
    const { overview } = this.#said;
    overview.catch(() => (this.#said = null)); // the next caller reads it again
    const notices = await this.#notices.all();
    const shown = notices
      .slice(-noticesShown)
      .map(({ id, kind, step, time, text }) => ({ id, kind, step, time, text }));
    const { damaged: damagedNotices } = this.#notices;
    const told = await overview;
    const asked = this.#asked;
    const instead =
      asked === 'asking' || asked === 'silent'
        ? unheard[asked]
        : asked === 'no answer'
          ? whileNoAnswer(told.state)
          : told.state;
    return {
      ...told,
      ...(told.damage === null ? { state: instead } : {}),
      notices: shown,
      noticesOf: notices.length,
      damagedNotices,
      index: this.rollouts.standing,
    };
  }

  async #overview(): Promise<ToldOverview> {
    const { lineage, head, damage } = await this.#headOrDamage();
    const of = `${lineage} ${this.#table.offset}`;
    // Reads all steps, of which there may be many: only after a new one.
    if (this.#effect?.of !== of) this.#effect = { of, effect: effectOf(this.place, this.#table, lineage) };
    const { effect } = this.#effect;
    effect.catch(() => (this.#effect = null));
    return overviewOf(this.place, this.#table, { lineage, head, damage, effect: await effect }, this.#told);
  }

  /** If the newest commit is damaged, the position comes from the metrics. */
  async #headOrDamage(): Promise<Pick<CommittedStand, 'lineage' | 'head' | 'damage'>> {
    return orIfDamaged<Pick<CommittedStand, 'lineage' | 'head' | 'damage'>>(
      async () => ({ ...(await this.#head.now()), damage: null }),
      async (damage) => ({ lineage: await currentLineage(this.place), head: null, damage }),
    );
  }

  async series(names: readonly string[], points: number): Promise<SeriesAnswer> {
    await this.#table.refresh();
    return seriesOf(this.place, this.#table, names, Math.min(pointsMax, points));
  }

  async timeline(minutes: number | null): Promise<TimelineAnswer> {
    await this.#timeline.refresh();
    return this.#timeline.told(minutes);
  }

  async settings(): Promise<Readonly<Record<string, string>>> {
    const { head } = await this.#headOrDamage();
    return settingsOf(this.place, head?.commit.state.overrides ?? {});
  }

  async markers(): Promise<Marker[]> {
    await this.#table.refresh();
    return this.#markers.all(this.#timeline, await this.#notices.all(), this.#told?.events ?? []);
  }
}
