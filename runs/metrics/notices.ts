import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import { type Notice, type NoticeKind, noticeKinds, type StoredNotice } from '../../core/rl/notices.ts';
import { sha256 } from '../../store/file-store.ts';
import { orIfDamaged } from '../../store/objects.ts';
import { decodeStored, encodeStored } from '../forms/stored-forms.ts';
import type { Store } from '../../store/types.ts';
import { layout, noticeIdOf } from '../layout.ts';
import { currentLineage, readHead, type RunPlace, storeOf } from '../run-access.ts';

const textMax = 2_000;

/** Writes an operator's note at the run's present step. Throws `ConfigInvalid` when it is empty or too long. */
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

/** Notice of a run that stands still without a user's pause. The same pause is written once, also after a kill. */
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

/** A notice's id comes from its subject, so that it is written once, also by another process after a kill. */
export async function writeNotice(store: Store, notice: Notice, id = idOf(notice)): Promise<StoredNotice> {
  const key = layout.notice(id);
  const { bytes } = await store.putIfAbsent(key, encodeStored(key, notice));
  return noticeIn(bytes, key);
}

/** One notice for each reason and step at which a run stands still or fails. */
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

  /** One line for each notice that cannot be read; the others can. */
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

/** Notices not sent yet, oldest first. */
export async function unsentNotices(store: Store, notices: Notices): Promise<StoredNotice[]> {
  const all = await notices.all();
  if (all.length === 0) return [];
  const sent = new Set(await store.list(layout.sentNotices()));
  return all.filter(({ id }) => !sent.has(layout.sentNotice(id)));
}

interface SentNotice {
  /** Answer of the webhook. */
  readonly said: string;
}

/** Written after sending: after a kill in between it is sent again, under the same id. */
export async function markSent(store: Store, { id }: StoredNotice, said: string): Promise<void> {
  const key = layout.sentNotice(id);
  await store.put(key, encodeStored(key, { said } satisfies SentNotice));
}

interface WebhookState {
  readonly failing: string | null;
}

/** Why the run's webhook accepts no notices at present; null when it does, or there is none. */
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
  return { id, kind, lineage, step, time, text, ...present({ environment }) };
}
