import { postNotice, webhookOf } from '../../backends/webhook.ts';
import type { Store } from '../../store/index.ts';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { causeOf } from '../../host/fetch-cause.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { layout } from '../../runs/layout.ts';
import { markSent, Notices, unsentNotices } from '../../runs/metrics/notices.ts';

/** Delay before a refused notice is sent again; it grows. */
const retryMs = { first: 2_000, most: 5 * 60_000 };
/** Older notices are not sent: last month's run need not alert anyone. */
const ageMsMax = 7 * 24 * 3_600_000;

interface Options {
  readonly log: (line: string) => void;
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
}

/** Sends the notices of one run to its webhook, oldest first. Failures to send do not affect the run. */
export class NoticePost {
  readonly #spec: Pick<RunSpec, 'name' | 'notify'>;
  readonly #store: Store;
  readonly #notices: Notices;
  readonly #options: Options;
  #busy: Promise<void> | null = null;
  #failing: string | null = null;
  #failures = 0;
  #retryAt = 0;
  #isUpToDate = false;

  constructor(spec: Pick<RunSpec, 'name' | 'notify'>, store: Store, options: Options) {
    this.#spec = spec;
    this.#store = store;
    this.#notices = new Notices(store);
    this.#options = options;
  }

  /** null for a run whose file names no webhook. */
  static of(
    spec: Pick<RunSpec, 'name' | 'notify'>,
    store: Store,
    options: Options,
  ): Pick<NoticePost, 'advance' | 'isUpToDate'> {
    const isNamed = spec.notify !== undefined && (spec.notify.webhook ?? spec.notify.webhookVar) !== null;
    return isNamed ? new NoticePost(spec, store, options) : { advance: () => Promise.resolve(), isUpToDate: true };
  }

  /** Whether nothing was left to send at the last look. */
  get isUpToDate(): boolean {
    return this.#isUpToDate && this.#busy === null;
  }

  /** Begins a look unless one is under way; a slow webhook blocks no caller. */
  advance(): Promise<void> {
    this.#busy ??= this.#send().finally(() => (this.#busy = null));
    return this.#busy;
  }

  async #send(): Promise<void> {
    if (performance.now() < this.#retryAt) return;
    const { name, notify } = this.#spec;
    try {
      const unsent = await unsentNotices(this.#store, this.#notices);
      this.#isUpToDate = unsent.length === 0;
      if (this.#isUpToDate) return;
      const webhook = webhookOf(notify, this.#options.environment ?? process.env);
      if (webhook === null) return;
      for (const notice of unsent) {
        const isOld = Date.now() - Date.parse(notice.time) > ageMsMax;
        if (!isOld) await postNotice(webhook, name, notice);
        await markSent(this.#store, notice, isOld ? 'it was too old to be sent' : 'sent');
      }
      this.#isUpToDate = true;
      await this.#is(null);
    } catch (error) {
      this.#retryAt = performance.now() + Math.min(retryMs.most, retryMs.first * 2 ** this.#failures);
      this.#failures += 1;
      const { message, code } = error as NodeJS.ErrnoException;
      await this.#is(message === '' ? (code ?? causeOf(error)) : message.replaceAll(/\s+/g, ' '));
    }
  }

  /** Records the webhook's state, which `ratchet status` shows. */
  async #is(failing: string | null): Promise<void> {
    if (failing === this.#failing) return;
    const { log } = this.#options;
    log(failing === null ? 'webhook: works again' : `webhook: ${failing}; tried again later, training continues`);
    this.#failing = failing;
    if (failing === null) this.#failures = 0;
    // If the state cannot be written either, the log has the message.
    await this.#store
      .put(layout.webhook(), encodeStored(layout.webhook(), { failing }))
      .catch((error: unknown) => log(`webhook: its state could not be written: ${(error as Error).message}`));
  }
}
