import { randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../../core/errors.ts';
import type { JsonValue } from '../../../core/json-value.ts';
import { present } from '../../../core/present.ts';
import type { ProgramRun } from '../../../core/rl/rollout/program-run.ts';
import type { AgentProgram, ProgramResume } from '../../../core/settings/programs.ts';
import type { SnapshotRef } from '../../../core/settings/sandboxes.ts';
import type { Sandbox } from '../../sandboxes/types.ts';
import type { RolloutNotes, RolloutSandboxes } from '../types.ts';
import type { Capture, ResumedCalls } from './capture/types.ts';

/** Kind of the notes about snapshots; their keys count from 1. */
const kind = 'snapshot';

/** A snapshot as it is written down; `calls` are those since the one before it. */
interface SnapshotNote extends ResumedCalls {
  readonly snapshot: SnapshotRef;
  readonly after: string | null;
}

/** No snapshot before this counts: the program failed by itself, and would again. */
interface EndNote {
  readonly ended: string;
}

/** Where a program goes on. */
interface Resumed extends ResumedCalls {
  readonly snapshot: SnapshotRef;
}

interface FoundSnapshot extends Resumed {
  /** Key of its note. */
  readonly name: string;
  /** Key of the snapshot before it. */
  readonly older: string | null;
}

interface SnapshotOptions {
  readonly program: AgentProgram & { readonly resume: ProgramResume };
  readonly notes: RolloutNotes;
  readonly sandboxes: RolloutSandboxes;
  /** Ids of the calls that earlier attempts finished. */
  readonly earlier: ReadonlySet<string>;
  /** Ends the wait for a snapshot. */
  readonly signal: AbortSignal;
}

interface Running {
  readonly sandbox: Sandbox;
  readonly capture: Pick<Capture, 'heard' | 'underWay'>;
}

/**
 * Snapshots of the sandbox of a program that can go on in one. A snapshot is taken when a call comes, and is done before
 * its answer leaves: the program waits, and has recorded all that it heard before. It is written down beside the turns,
 * so the next attempt goes on with the call after it.
 */
export class ProgramSnapshots {
  /** null = it begins at the start. */
  readonly resumed: Resumed | null;
  readonly #options: SnapshotOptions;
  #running: Running | null = null;
  /** Number of the newest note of either kind. */
  #number: number;
  /** The newest snapshot, and how many calls were finished before it. */
  #newest: { readonly name: string; readonly key: string; readonly calls: number } | null = null;
  #taken = 0;
  readonly #putOff = { calls: 0, effects: 0 };
  #error: string | undefined;

  private constructor(options: SnapshotOptions, number: number, found: FoundSnapshot | null) {
    this.#options = options;
    this.#number = number;
    this.resumed = found;
    if (found) this.#newest = { name: found.name, key: found.snapshot.key, calls: found.calls.length };
  }

  static async open(options: SnapshotOptions): Promise<ProgramSnapshots> {
    const notes = await options.notes.all(kind);
    const found = newestIn(notes, options.earlier);
    // An attempt that died between the two may have left it.
    if (found?.older) await options.sandboxes.removeSnapshots(found.older);
    return new ProgramSnapshots(options, notes.size, found);
  }

  /** Refuses a sandbox that cannot be saved. */
  begin(running: Running): void {
    if (!running.sandbox.snapshot)
      throw new RatchetError(
        'SandboxRefused',
        `[env.resume] needs sandboxes that can be saved; those of kind "${this.#options.program.sandbox.pool.provider.kind}" here cannot. Take another kind, or leave the table out.`,
      );
    this.#running = running;
  }

  /** Called with each call of the policy; what it does ends before the call is answered. */
  async beside(): Promise<void> {
    const running = this.#running;
    if (running === null) return;
    const heard = running.capture.heard();
    const isDue = heard.calls.length - (this.#newest?.calls ?? 0) >= this.#options.program.resume.every;
    if (!isDue) return;
    const { open, effects } = running.capture.underWay();
    if (open > 1) this.#putOff.calls += 1;
    else if (effects > 0) this.#putOff.effects += 1;
    else await this.#take(running, heard);
  }

  /**
   * The program failed. One that was killed goes on in the snapshot, if there is a newer one than it began in; one that
   * ended by itself would do the same again, and begins at the start.
   */
  async programFailed(why: string, { isKilled }: { readonly isKilled: boolean }): Promise<void> {
    if (!isKilled || this.#taken === 0) await this.giveUp(why);
  }

  /** The next attempt begins at the start. */
  async giveUp(why: string): Promise<void> {
    if (this.#newest === null) return;
    await this.#note({ ended: why.slice(0, whyCharsMax) } satisfies EndNote);
    await this.#options.sandboxes.removeSnapshots(this.#newest.key);
    this.#newest = null;
  }

  report(): Pick<ProgramRun, 'snapshots'> {
    const { calls, effects } = this.#putOff;
    const putOff = calls + effects === 0 ? undefined : this.#putOff;
    return { snapshots: { taken: this.#taken, ...present({ error: this.#error, putOff }) } };
  }

  async #take({ sandbox, capture }: Running, { calls, ...more }: ResumedCalls): Promise<void> {
    const { sandboxes, program, signal } = this.#options;
    const before = capture.underWay().requests;
    await delay(program.resume.delayS * 1000, undefined, { signal });
    const key = `${sandboxes.snapshotPrefix}${calls.length}-${randomUUID()}`;
    let snapshot: SnapshotRef;
    try {
      snapshot = await sandbox.snapshot!({ key, bytesMax: program.sandbox.diskMb * 2 ** 20 });
    } catch (error) {
      if (!(error instanceof RatchetError)) throw error;
      this.#error = `${error.code}: ${error.message}`; // a death costs more; the rollout goes on
      return;
    }
    // Another thread asked for something: it may have changed the folder meanwhile.
    if (capture.underWay().requests !== before) {
      this.#putOff.calls += 1;
      return sandboxes.removeSnapshots(snapshot.key);
    }
    const older = this.#newest;
    const note: SnapshotNote = { snapshot, ...more, calls: calls.slice(older?.calls ?? 0), after: older?.name ?? null };
    const name = await this.#note(note);
    this.#taken += 1;
    this.#newest = { name, key: snapshot.key, calls: calls.length };
    // Nobody goes on from it: whoever has read the notes before has taken the rollout over, and `put` has failed.
    if (older) await sandboxes.removeSnapshots(older.key);
  }

  async #note(note: SnapshotNote | EndNote): Promise<string> {
    const name = String(++this.#number);
    await this.#options.notes.put(kind, name, note as unknown as JsonValue);
    return name;
  }
}

const whyCharsMax = 500;

/** The newest snapshot that counts, with all calls before it; null if there is none. */
function newestIn(notes: ReadonlyMap<string, JsonValue>, earlier: ReadonlySet<string>): FoundSnapshot | null {
  const at = (name: string): SnapshotNote | EndNote => notes.get(name) as unknown as SnapshotNote | EndNote;
  const [name] = [...notes.keys()].slice(-1);
  if (name === undefined) return null;
  const newest = at(name);
  if ('ended' in newest) return null;
  const calls: string[][] = [];
  for (let of: string | null = name; of !== null;) {
    const note = at(of) as SnapshotNote;
    calls.push([...note.calls]);
    of = note.after;
  }
  const all = calls.toReversed().flat();
  if (!all.every((id) => earlier.has(id))) return null; // its turns were not kept
  const older = newest.after === null ? null : (at(newest.after) as SnapshotNote).snapshot.key;
  const { after: _after, ...resumed } = newest;
  return { ...resumed, name, older, calls: all };
}
