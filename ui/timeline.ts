import { layout } from '../runs/layout.ts';
import type { Store } from '../store/index.ts';
import type { Span, TimelineAnswer } from './answers.ts';

/** Spans of one log that are held: the newest. */
const spansHeld = 20_000;
/** Spans that one answer shows. */
const spansShown = 3_000;
const textMax = 2_000;

/** Activities in the order of a step; others come after. */
const order = [
  'leaseGroups',
  'playGroups',
  'filterGroups',
  'packBatch',
  'trainBatch',
  'commitStep',
  'broadcastWeights',
  'saveCheckpoint',
];

/** Activities that a run has one at a time: when one begins, an earlier one without an end lost its process. */
const oneAtATime: ReadonlySet<string> = new Set(['leaseTrainer', 'warmUp', 'trainBatch']);

interface OpenSpan {
  readonly from: number;
  readonly what: string;
}

/** Activities that began and ended, from one log. */
class LogSpans {
  readonly worker: string;
  readonly #store: Store;
  readonly #key: string;
  #offset = 0;
  #rest = '';
  #spans: Span[] = [];
  /** Open spans by the text logged at their start, oldest first. */
  readonly #open = new Map<string, OpenSpan[]>();

  constructor(store: Store, key: string, worker: string) {
    this.#store = store;
    this.#key = key;
    this.worker = worker;
  }

  async refresh(): Promise<void> {
    for (;;) {
      const piece = await this.#store.readFrom(this.#key, this.#offset);
      if (piece === null || piece.byteLength === 0) return;
      this.#offset += piece.byteLength;
      const lines = (this.#rest + Buffer.from(piece).toString('utf8')).split('\n');
      this.#rest = lines.pop() ?? '';
      for (const line of lines) this.#read(line);
      if (this.#spans.length > spansHeld) this.#spans = this.#spans.slice(-spansHeld / 2);
    }
  }

  /** Includes unfinished spans, except those begun again since: their process was lost. */
  all(): Span[] {
    const begun = [...this.#open.values()].flat();
    const starts = [...this.#spans.map(({ from, text }) => ({ from, what: text })), ...begun];
    const open = begun.map(({ from, what }): Span => {
      const again = starts
        .filter((other) => other.from > from && isAfter(other.what, what))
        .reduce((first, other) => Math.min(first, other.from), Infinity);
      const names = namesOf(what);
      if (again === Infinity) return { from, to: null, ...names, end: 'unknown' };
      return { from, to: again, ...names, end: 'failed', error: 'its process was gone before it was done' };
    });
    return [...this.#spans, ...open];
  }

  #read(line: string): void {
    const match =
      /^(\d{4}-\d\d-\d\dT[\d:.]+Z) (\w+(?: [^:]*?)?): (starts|done in ([\d.]+) s|ended,.*|failed: .*)$/.exec(line);
    if (!match) return this.#readMore(line);
    const [, time, what, end, seconds] = match as unknown as [string, string, string, string, string | undefined];
    const at = Date.parse(time);
    if (end === 'starts') {
      this.#open.set(what, [...(this.#open.get(what) ?? []), { from: at, what }]);
      return;
    }
    const told = seconds === undefined ? null : at - Number(seconds) * 1000;
    const begun = this.#take(what, told ?? at);
    const from = told ?? begun?.from ?? at;
    const span: Span = {
      from,
      to: at,
      ...namesOf(what),
      end: seconds !== undefined ? 'done' : end.startsWith('failed') ? 'failed' : 'cancelled',
      ...(end.startsWith('failed') ? { error: end.slice('failed: '.length, textMax) } : {}),
    };
    this.#spans.push(span);
  }

  /** A failure's stack follows its line; the first lines may belong to the message. */
  #readMore(line: string): void {
    const span = this.#spans.at(-1);
    if (span?.error === undefined || span.error.length > textMax || /^\s+at /.test(line)) return;
    this.#spans[this.#spans.length - 1] = { ...span, error: `${span.error}\n${line}`.slice(0, textMax) };
  }

  /**
   * Among open spans with the same start text, the one that began nearest to then: others may have lost their process.
   */
  #take(what: string, then: number): OpenSpan | undefined {
    const open = this.#open.get(what) ?? [];
    const away = ({ from }: OpenSpan): number => Math.abs(from - then);
    const found = open.reduce<OpenSpan | undefined>(
      (nearest, one) => (nearest === undefined || away(one) <= away(nearest) ? one : nearest),
      undefined,
    );
    const rest = open.filter((one) => one !== found);
    if (rest.length > 0) this.#open.set(what, rest);
    else this.#open.delete(what);
    return found;
  }
}

/** Whether the begin of `later` implies that `what`, which began before it, has ended. */
function isAfter(later: string, what: string): boolean {
  const { activity } = namesOf(what);
  if (oneAtATime.has(activity)) return namesOf(later).activity === activity;
  return later.trim() !== what.trim() && firstOf(later) === firstOf(what);
}

/** The part that is the same in every attempt. */
function firstOf(what: string): string {
  return what.replace(/ \(attempt \d+\)$/, '').trim();
}

function namesOf(what: string): Pick<Span, 'activity' | 'text' | 'attempt'> {
  const attempt = Number(/\(attempt (\d+)\)$/.exec(what)?.[1] ?? 1);
  return { activity: what.split(' ', 1)[0]!, text: what.trim(), attempt };
}

/** The workers' activities over time, from their logs. */
export class Timeline {
  readonly #store: Store;
  readonly #logs = new Map<string, LogSpans>();
  #reading: Promise<void> | null = null;

  constructor(store: Store) {
    this.#store = store;
  }

  /** Callers that ask meanwhile share the same read. */
  refresh(): Promise<void> {
    this.#reading ??= this.#read().finally(() => (this.#reading = null));
    return this.#reading;
  }

  async #read(): Promise<void> {
    for (const key of await this.#store.list(layout.allLogs())) {
      const worker = /attempt_(\d+)\/([^/]+)\.log$/.exec(key);
      if (!worker) continue;
      const log = this.#logs.get(key) ?? new LogSpans(this.#store, key, worker[2]!);
      this.#logs.set(key, log);
      await log.refresh();
    }
  }

  /** Failures, newest last. */
  failures(max: number): (Span & { readonly worker: string })[] {
    return [...this.#logs.values()]
      .flatMap((log) => log.all().flatMap((span) => (span.end === 'failed' ? [{ ...span, worker: log.worker }] : [])))
      .sort((a, b) => a.from - b.from)
      .slice(-max);
  }

  /** When servers had taken a version, the newest last. */
  broadcasts(max: number): { readonly version: string; readonly step: number; readonly at: number }[] {
    return [...this.#logs.values()]
      .flatMap((log) => log.all())
      .flatMap(({ activity, text, to, end }) => {
        const [version, step] = /\bv(\d+)(?:\.r\d+)?/.exec(text) ?? [];
        const isTaken = activity === 'broadcastWeights' && end === 'done' && to !== null;
        return isTaken && version !== undefined ? [{ version, step: Number(step), at: to }] : [];
      })
      .sort((a, b) => a.at - b.at)
      .slice(-max);
  }

  /** Spans of the last minutes; null = all in memory. */
  told(minutes: number | null): TimelineAnswer {
    const all = [...this.#logs.values()].flatMap((log) => log.all().map((span) => ({ worker: log.worker, span })));
    const to = all.reduce((last, { span }) => Math.max(last, span.to ?? span.from), 0);
    const begin = all.reduce((first, { span }) => Math.min(first, span.from), to);
    const from = minutes === null ? begin : Math.max(begin, to - minutes * 60_000);
    const inside = all.filter(({ span }) => (span.to ?? to) >= from);
    const lengthOf = ({ from: begun, to: ended, end }: Span): number =>
      end === 'done' ? (ended ?? to) - begun : Infinity;
    const shown = inside.toSorted((a, b) => lengthOf(b.span) - lengthOf(a.span)).slice(0, spansShown);
    const lanes = new Map<string, { worker: string; activity: string; spans: Span[] }>();
    for (const { worker, span } of shown) {
      const name = `${worker} ${span.activity}`;
      const lane = lanes.get(name) ?? { worker, activity: span.activity, spans: [] };
      lane.spans.push(span);
      lanes.set(name, lane);
    }
    return {
      from,
      to,
      lanes: [...lanes.values()]
        .map((lane) => ({
          ...lane,
          spans: lane.spans.sort((a, b) => a.from - b.from),
          used: to > from ? coveredOf(lane.spans, from, to) / (to - from) : 0,
        }))
        .sort((a, b) => rankOf(a.activity) - rankOf(b.activity) || a.worker.localeCompare(b.worker)),
      leftOut: inside.length - shown.length,
    };
  }
}

function rankOf(activity: string): number {
  const place = order.indexOf(activity);
  return place < 0 ? order.length : place;
}

/** Milliseconds in which at least one span was under way. */
function coveredOf(spans: readonly Span[], from: number, to: number): number {
  let [covered, until] = [0, from];
  for (const span of spans.toSorted((a, b) => a.from - b.from)) {
    const [begin, end] = [Math.max(span.from, until), Math.min(span.to ?? to, to)];
    if (end > begin) covered += end - begin;
    until = Math.max(until, end);
  }
  return covered;
}
