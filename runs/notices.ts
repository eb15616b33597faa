import { RatchetError } from '../core/errors.ts';
import { type Notice, type NoticeKind, noticeKinds } from '../core/rl/notices.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { orIfDamaged } from '../backends/store/objects.ts';
import { decodeStored, encodeStored } from './stored-forms.ts';
import type { Store } from '../backends/store/types.ts';
import { layout, noticeIdOf } from './layout.ts';
import { currentLineage, readHead, type RunPlace, storeOf } from './run-access.ts';

/** A notice as the run's folder has it. Whoever notices the same again finds it there. */
export interface StoredNotice extends Notice {
  /** Names it in the folder, and to who is sent it. */
  readonly id: string;
}

const textMax = 2_000;

/** An operator's note on a run, at the step that it stands at. Throws `ConfigInvalid` where it says nothing, or too much. */
export async function writeNote(run: RunPlace, text: string): Promise<StoredNotice> {
  const said = text.trim();
  if (said === '' || said.length > textMax) {
    const got = said === '' ? 'nothing' : `${said.length} characters`;
    throw new RatchetError('ConfigInvalid', `A note: expected 1 to ${textMax} characters, got ${got}.`);
  }
  const lineage = await currentLineage(run);
  const step = (await readHead({ ...run, lineage }))?.commit.step ?? 0;
  const time = new Date().toISOString();
  const id = `note.${time.replaceAll(/\D/g, '')}.${sha256(Buffer.from(said)).slice(0, 8)}`;
  return writeNotice(storeOf(run), { kind: 'note', lineage, step, time, text: said }, id);
}

/** Why a run stands still that nobody paused. Whoever sees it again, in the same pause or after a kill, finds it there. */
export async function writePause(run: RunPlace, reason: string): Promise<StoredNotice> {
  const kind = reason.startsWith('breaker: ') ? 'breaker' : 'paused';
  return writeAtHead(run, kind, reason.replace(/^breaker: /, ''), 1);
}

/** Why an execution of its workflow ended. */
export async function writeFailure(run: RunPlace, reason: string): Promise<StoredNotice> {
  return writeAtHead(run, 'failed', reason, 0);
}

async function writeAtHead(run: RunPlace, kind: NoticeKind, reason: string, ahead: number): Promise<StoredNotice> {
  const lineage = await currentLineage(run);
  const head = await readHead({ ...run, lineage });
  const step = (head?.commit.step ?? 0) + (head === null ? 0 : ahead);
  const text = reason.length > textMax ? `${reason.slice(0, textMax - 1)}…` : reason;
  return writeNotice(storeOf(run), { kind, lineage, step, time: new Date().toISOString(), text });
}

/** What the run notices is named by what it is about: the same is written once, also by another process after a kill. */
export async function writeNotice(store: Store, notice: Notice, id = idOf(notice)): Promise<StoredNotice> {
  const key = layout.notice(id);
  const { bytes } = await store.putIfAbsent(key, encodeStored(key, notice));
  return noticeIn(bytes, key);
}

/** A run stands still, or fails, for one reason at one step. */
function idOf({ lineage, step, kind, environment, text }: Notice): string {
  const hasReason = kind === 'breaker' || kind === 'paused' || kind === 'failed';
  const more = environment ?? (hasReason ? sha256(Buffer.from(text)).slice(0, 8) : undefined);
  return [lineage, `step_${step}`, kind, ...(more === undefined ? [] : [more])].join('.');
}

/** The notices of a run, oldest first. Each is read once, and dropped from memory when its object is gone. */
export class Notices {
  readonly #store: Store;
  readonly #read = new Map<string, StoredNotice>();
  readonly #damaged = new Map<string, string>();
  #all: readonly StoredNotice[] = [];

  constructor(store: Store) {
    this.#store = store;
  }

  /** Why some cannot be read, a line each. They keep nobody from the others. */
  get damaged(): readonly string[] {
    return [...this.#damaged.values()];
  }

  /** Those that can be read; the same list until there is another one. */
  async all(): Promise<readonly StoredNotice[]> {
    const keys = (await this.#store.list(layout.notices())).filter((key) => noticeIdOf(key) !== null);
    const fresh = keys.filter((key) => !this.#read.has(key) && !this.#damaged.has(key));
    for (const key of fresh)
      await orIfDamaged(
        async () => {
          const bytes = await this.#store.read(key);
          if (bytes !== null) this.#read.set(key, noticeIn(bytes, key, this.#store.uri + key));
        },
        (why) => void this.#damaged.set(key, why),
      );
    const there = new Set(keys);
    const gone = [...this.#read.keys(), ...this.#damaged.keys()].filter((key) => !there.has(key));
    for (const key of gone) {
      this.#read.delete(key);
      this.#damaged.delete(key);
    }
    if (fresh.length > 0 || gone.length > 0)
      this.#all = [...this.#read.values()].sort((a, b) => a.time.localeCompare(b.time) || a.id.localeCompare(b.id));
    return this.#all;
  }
}

/** Those that nobody was sent yet, oldest first. */
export async function unsentNotices(store: Store, notices: Notices): Promise<StoredNotice[]> {
  const all = await notices.all();
  if (all.length === 0) return [];
  const sent = new Set(await store.list(layout.sentNotices()));
  return all.filter(({ id }) => !sent.has(layout.sentNotice(id)));
}

interface SentNotice {
  /** The webhook's answer. */
  readonly said: string;
}

/** After it was sent: who is killed between the two sends it again, under the same id. */
export async function markSent(store: Store, { id }: StoredNotice, said: string): Promise<void> {
  const key = layout.sentNotice(id);
  await store.put(key, encodeStored(key, { said } satisfies SentNotice));
}

interface WebhookState {
  readonly failing: string | null;
}

/** Why the run's webhook takes no notices at present; null where it does, or there is none. */
export async function webhookFailure(store: Store): Promise<string | null> {
  const bytes = await store.read(layout.webhook());
  if (bytes === null) return null;
  return decodeStored<WebhookState>(bytes, layout.webhook(), ({ failing }) => ({
    'why it fails, or null': failing === null || typeof failing === 'string',
  })).failing;
}

/** `notices/ID.json` */
function noticeIn(bytes: Uint8Array, key: string, place = key): StoredNotice {
  const id = noticeIdOf(key) ?? key;
  const notice = decodeStored<Notice>(bytes, place, ({ kind, lineage, step, time, text }) => ({
    [`one of ${noticeKinds.join(', ')} as its kind`]: noticeKinds.includes(kind as NoticeKind),
    'a lineage, a time and a text': [lineage, time, text].every((value) => typeof value === 'string'),
    'a step': Number.isSafeInteger(step),
  }));
  const { kind, lineage, step, time, text, environment } = notice;
  return { id, kind, lineage, step, time, text, ...(environment === undefined ? {} : { environment }) };
}
