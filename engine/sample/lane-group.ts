import { hash32 } from '../../core/random.ts';
import type { ModelConfig } from '../model/config.ts';
import { parameterCount } from '../model/parameter-layout.ts';
import type { Parameters } from '../model/parameters.ts';
import {
  DecodeLane,
  type Lane,
  type LaneCounters,
  type LaneEvents,
  type LaneOptions,
  type NewRow,
  noCounters,
} from './decode-lane.ts';
import type { DecodeProgram } from './decode-program.ts';
import { laneShare } from './sampling-limits.ts';
import { WorkerLane } from './worker-lane.ts';

/** A row goes to the lane of its prompt unless that lane has this many rows more than another. */
const affinityRows = 16;
/**
 * Rows times parameters from which a lane of its own is faster than a place in another, as each step has costs that do not
 * depend on its rows. On two busy cores, one lane's time ÷ that of two, fastest batches: 0.2 M parameters, 32 rows 0.9, 64
 * rows 1.5; 0.8 M, 16 rows 1.2, 32 rows 1.3.
 */
const laneWorkMin = 6_000_000;
/** Bound on prompts whose lanes are remembered. */
const rememberedPromptsMax = 4096;

interface LaneGroupParts {
  readonly program: DecodeProgram;
  readonly options: LaneOptions;
  readonly events: LaneEvents;
  /** A lane pays off from this many rows; by default the model's size decides. */
  readonly rowsMin?: number | undefined;
}

interface Member {
  readonly lane: Lane;
  /** Rows in progress. */
  readonly rows: Set<number>;
  counters: LaneCounters;
}

/**
 * Several lanes that share the rows: one on the calling thread, the others on worker threads, so that their steps and
 * draws run in parallel, each on one processor. A row's bits do not depend on its lane. Rows of one prompt stay
 * together while the lanes are balanced, so that it is computed once.
 */
export class LaneGroup implements Lane {
  #members: readonly Member[] = [];
  /** A lane pays off from this many rows. */
  readonly #rowsMin: number;
  /** Lanes that computed a prompt, by version and a hash of its tokens; the latest last. */
  readonly #lanesOfPrompt = new Map<string, Set<Member>>();

  private constructor(rowsMin: number) {
    this.#rowsMin = rowsMin;
  }

  /** The memory in `options` is that of all lanes together. */
  static async open(
    config: ModelConfig,
    count: number,
    { program, options, events, rowsMin }: LaneGroupParts,
  ): Promise<LaneGroup> {
    const share = { ...laneShare(options, count), workHereMax: options.workHereMax };
    const group = new LaneGroup(rowsMin ?? Math.ceil(laneWorkMin / parameterCount(config)));
    const others = await Promise.all(
      Array.from({ length: count - 1 }, (_, i) =>
        WorkerLane.open(config, program, { ...share, workHereMax: Infinity }, group.#events(i + 1, events)),
      ),
    );
    const lanes = [new DecodeLane(config, program, share, group.#events(0, events)), ...others];
    group.#members = lanes.map((lane) => ({ lane, rows: new Set(), counters: noCounters }));
    return group;
  }

  submit(version: number, parameters: Parameters, rows: readonly NewRow[]): void {
    const shares = new Map<Member, NewRow[]>();
    const rowCount = this.#members.reduce((sum, member) => sum + member.rows.size, rows.length);
    const worth = this.#members.slice(0, Math.max(1, Math.floor(rowCount / this.#rowsMin)));
    for (const row of rows) {
      const member = this.#choose(worth, `${version} ${hash32(...row.request.promptTokenIds)}`);
      member.rows.add(row.id);
      const share = shares.get(member);
      if (share) share.push(row);
      else shares.set(member, [row]);
    }
    for (const [{ lane }, share] of shares) lane.submit(version, parameters, share);
  }

  forget(version: number): void {
    for (const { lane } of this.#members) lane.forget(version);
  }

  drop(ids: readonly number[]): void {
    for (const { lane, rows } of this.#members) {
      const own = ids.filter((id) => rows.delete(id));
      if (own.length > 0) lane.drop(own);
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.#members.map(({ lane }) => lane.close()));
  }

  #choose(members: readonly Member[], prompt: string): Member {
    const least = leastLoaded(members);
    const known = this.#lanesOfPrompt.get(prompt) ?? new Set();
    const near = known.size > 0 ? leastLoaded([...known]) : least;
    const member = near.rows.size <= least.rows.size + affinityRows ? near : least;
    this.#lanesOfPrompt.delete(prompt);
    this.#lanesOfPrompt.set(prompt, known.add(member));
    if (this.#lanesOfPrompt.size > rememberedPromptsMax) {
      for (const oldest of this.#lanesOfPrompt.keys()) {
        this.#lanesOfPrompt.delete(oldest);
        break;
      }
    }
    return member;
  }

  #events(index: number, events: LaneEvents): LaneEvents {
    const done = (id: number): void => void this.#members[index]?.rows.delete(id);
    return {
      token: events.token,
      fail: (ids, error) => {
        ids.forEach(done);
        events.fail(ids, error);
      },
      stepped: (ends, counters) => {
        for (const { id } of ends) done(id);
        const member = this.#members[index];
        if (member) member.counters = counters;
        events.stepped(ends, this.#members.map((each) => each.counters).reduce(added));
      },
    };
  }
}

/** Returns the first of equals. */
function leastLoaded(members: readonly Member[]): Member {
  return members.reduce((least, member) => (member.rows.size < least.rows.size ? member : least));
}

function added(a: LaneCounters, b: LaneCounters): LaneCounters {
  return {
    rowsRunning: a.rowsRunning + b.rowsRunning,
    rowsWaiting: a.rowsWaiting + b.rowsWaiting,
    tokensTotal: a.tokensTotal + b.tokensTotal,
    keyValueBytesUsed: a.keyValueBytesUsed + b.keyValueBytesUsed,
    keyValueBytesKept: a.keyValueBytesKept + b.keyValueBytesKept,
    promptTokensTotal: a.promptTokensTotal + b.promptTokensTotal,
    promptTokensComputed: a.promptTokensComputed + b.promptTokensComputed,
  };
}
