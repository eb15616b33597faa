import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import PQueue from 'p-queue';
import type {
  LeaseBill,
  LeasedSandbox,
  LeaseRequest,
  Sandbox,
  SandboxLeases,
  SandboxProvider,
  SandboxRequest,
  TakeOptions,
} from '../../backends/sandboxes/types.ts';
import type { LeaseOwner } from '../../core/settings/sandboxes.ts';
import { RatchetError } from '../../core/errors.ts';
import type { EndedSandbox, LeaseEnd } from '../../runs/sandboxes/lease-records.ts';
import type { LeaseStore, OpenLease } from '../../runs/sandboxes/lease-store.ts';
import { QuotaPlaces } from '../../runs/sandboxes/quota-places.ts';
import { endLease, type Gone } from './end-lease.ts';
import { isGone } from '../../host/worker-process.ts';
import { isSameRollout } from './lease-owner.ts';

export interface LeasingOptions {
  readonly leases: LeaseStore;
  readonly provider: SandboxProvider;
  /** Name of the provider among the leases (`LeaseStore.addPool`). */
  readonly pool: string;
  /** Whose places are counted; all of the pool's by default. */
  readonly places?: string;
  readonly project: string;
  readonly quota: number | null;
  readonly costPerHour: number;
  /** How long after a request without an answer its sandbox may still come. */
  readonly settleMs?: number;
  /** Wait between two looks for a free place, or for a provider that is full. */
  readonly lookAgainMs?: number;
}

interface BeginOptions {
  readonly owner: LeaseOwner;
  readonly deadlineAtMs: number;
  readonly signal: AbortSignal;
  /** Whether it waits for a free place, or a provider that is full; true by default. */
  readonly waits?: boolean;
}

/** Far more than providers take to begin a sandbox. */
export const settleUsualMs = 120_000;
const lookAgainUsualMs = 500;
/** Tries of one `take` whose requests are never answered; each holds a place until it is settled. */
const unansweredMax = 3;

/** Sandboxes under leases, of one provider: see `SandboxLeases`. */
export class LeasedSandboxes implements SandboxLeases {
  readonly #options: Required<LeasingOptions>;
  readonly #places: QuotaPlaces;
  /** One of this process looks for a place at a time: more would only write turns that others win. */
  readonly #line = new PQueue({ concurrency: 1 });
  readonly #settling = new Set<Promise<void>>();
  readonly #closed = new AbortController();
  /** Owners that wait for a place, or for a provider that is full. */
  readonly #waiting = new Set<string>();
  /** Called when an owner begins to wait. */
  onWait: () => void = () => undefined;

  constructor(options: LeasingOptions) {
    this.#options = { settleMs: settleUsualMs, lookAgainMs: lookAgainUsualMs, places: options.pool, ...options };
    this.#places = new QuotaPlaces(options.leases, this.#options.places);
  }

  async take(request: LeaseRequest, { owner, deadlineS, waitS = 0, signal }: TakeOptions): Promise<LeasedSandbox> {
    await this.#endEarlierAttempts(owner);
    const lastAtMs = Date.now() + (waitS + deadlineS) * 1000;
    for (let unanswered = 1; ; unanswered++) {
      const begun = await this.begin(request, { owner, deadlineAtMs: lastAtMs, signal });
      if (begun === 'unanswered') {
        if (unanswered < unansweredMax) continue;
        throw new RatchetError('SandboxUnavailable', `${this.#options.provider.kind} answered none of ${unanswered} requests for a sandbox.`); // prettier-ignore
      }
      return this.handOver(begun, { owner, deadlineAtMs: Math.min(lastAtMs, Date.now() + deadlineS * 1000) });
    }
  }

  /** Whether an owner waits for what another sandbox has. */
  get isWaitedFor(): boolean {
    return this.#waiting.size > 0;
  }

  /** A sandbox with a lease that nobody has yet: `handOver` gives it to its owner. */
  async begin(
    request: LeaseRequest,
    { owner, deadlineAtMs, signal, waits = true }: BeginOptions,
  ): Promise<Sandbox | 'unanswered'> {
    const { leases, pool, project, costPerHour } = this.#options;
    signal.throwIfAborted();
    const name = `ratchet-${randomBytes(10).toString('hex')}`;
    await leases.open({ name, pool, owner, createdAtMs: Date.now(), deadlineAtMs, costPerHour });
    const labels = { project, owner: shownOwner(owner) };
    try {
      const waitsUntilMs = waits ? deadlineAtMs : 0;
      await this.#awaitPlace(name, waitsUntilMs, signal);
      return await this.#create({ ...request, name, labels }, waitsUntilMs, signal);
    } catch (error) {
      if (error instanceof RatchetError && error.code === 'SandboxUnanswered') {
        this.#settleLater(name);
        return 'unanswered';
      }
      await this.#end(name, 'failed');
      throw error;
    } finally {
      this.#waiting.delete(name);
    }
  }

  async handOver(
    sandbox: Sandbox,
    { owner, deadlineAtMs }: { readonly owner: LeaseOwner; readonly deadlineAtMs: number },
  ): Promise<LeasedSandbox> {
    const { name } = sandbox;
    if (!(await this.#options.leases.markLive(name, { atMs: Date.now(), owner, deadlineAtMs }))) {
      await sandbox.destroy();
      throw new RatchetError('SandboxUnavailable', `The lease of sandbox ${name} ended before it was there.`);
    }
    let ended: Promise<LeaseBill> | undefined;
    return {
      sandbox,
      lease: { name, deadlineAtMs },
      end: () => (ended ??= this.#end(name, 'returned')),
    };
  }

  /** Ends a sandbox that nobody took over. */
  async giveUp(name: string): Promise<void> {
    await this.#end(name, 'returned');
  }

  /** Ends the provider, after what was never answered has been looked for. */
  async close(): Promise<void> {
    this.#closed.abort();
    await Promise.all(this.#settling);
    await this.#options.provider.close();
  }

  /** An attempt that takes a sandbox shows that earlier attempts of its rollout are over. */
  async #endEarlierAttempts(owner: LeaseOwner): Promise<void> {
    if (owner.group === undefined || owner.index === undefined) return;
    const earlier = (await this.#options.leases.readOpen()).filter(
      ({ lease, live }) =>
        lease.pool === this.#options.pool &&
        isSameRollout(live?.owner ?? lease.owner, owner) &&
        ((live?.owner ?? lease.owner).attempt ?? 0) < (owner.attempt ?? 0),
    );
    await Promise.all(earlier.map((open) => this.#endOpen(open, 'superseded')));
  }

  async #awaitPlace(name: string, deadlineAtMs: number, signal: AbortSignal): Promise<void> {
    const { quota, lookAgainMs } = this.#options;
    if (quota === null) return;
    for (;;) {
      signal.throwIfAborted();
      if (await this.#line.add(() => this.#places.take(name, quota))) return;
      await this.#endOfDeadWorkers();
      requireTime(deadlineAtMs, `one of the ${quota} places for sandboxes became free (quota)`);
      this.#waits(name);
      await delay(lookAgainMs * (0.5 + Math.random()), undefined, { signal });
    }
  }

  /** Until its sandbox is there, or it is given up. */
  #waits(name: string): void {
    if (this.#waiting.has(name)) return;
    this.#waiting.add(name);
    this.onWait();
  }

  /** A worker of this machine that died holds its places until somebody looks: whoever waits for one does. */
  async #endOfDeadWorkers(): Promise<void> {
    const { leases, pool, provider } = this.#options;
    for (const open of await leases.readOpen()) {
      const { lease, creating, live } = open;
      if (lease.pool !== pool || !isGone((live ?? lease).owner.worker)) continue;
      // A request under way may still be answered by a sandbox: a sweep waits for that.
      const mayCome = creating !== null && live === null && !provider.traits.endsWithWorker;
      if (!mayCome) await this.#endOpen(open, 'worker gone');
    }
  }

  /** Asks again while the provider is full or away. What is thrown leaves no sandbox, but `SandboxUnanswered`. */
  async #create(request: SandboxRequest, deadlineAtMs: number, signal: AbortSignal): Promise<Sandbox> {
    const { leases, provider, lookAgainMs } = this.#options;
    for (let tries = 0; ; tries++) {
      signal.throwIfAborted();
      await leases.markCreating(request.name, { atMs: Date.now() });
      if (!(await leases.isOpen(request.name)))
        throw new RatchetError('SandboxUnavailable', `The lease of sandbox ${request.name} was ended while it waited.`);
      try {
        return await provider.create(request, signal);
      } catch (error) {
        if (!(error instanceof RatchetError) || error.code !== 'SandboxUnavailable') throw error;
        requireTime(deadlineAtMs, `${provider.kind} had a sandbox: ${error.message}`, error);
        this.#waits(request.name);
        const wait = error.retryAfterMs ?? Math.min(lookAgainMs * 2 ** tries, 30_000);
        await delay(wait * (0.5 + Math.random()), undefined, { signal });
      }
    }
  }

  /** Keeps the lease, and with it its place, for as long as its sandbox may still come. */
  #settleLater(name: string): void {
    const settling = this.#settle(name)
      .catch(() => undefined) // the lease stays, and a sweep ends it
      .finally(() => this.#settling.delete(settling));
    this.#settling.add(settling);
  }

  async #settle(name: string): Promise<void> {
    const { leases, provider, settleMs, lookAgainMs } = this.#options;
    const { signal } = this.#closed;
    for (const end = Date.now() + settleMs; Date.now() < end && !signal.aborted;) {
      await provider.destroy(name).catch(() => undefined);
      await delay(Math.min(lookAgainMs, settleMs), undefined, { signal }).catch(() => undefined);
    }
    if (signal.aborted) return;
    const open = await leases.read(name);
    if (open) await this.#endOpen(open, 'unanswered');
  }

  async #end(name: string, why: LeaseEnd): Promise<LeaseBill> {
    const open = await this.#options.leases.read(name);
    if (!open) return { seconds: 0, cost: 0 }; // a sweep was first
    const ended = await this.#endOpen(open, why);
    if (ended !== 'still there') return { seconds: ended.seconds, cost: ended.cost };
    // The lease stays until a sweep sees it gone; it is paid for until then.
    const seconds = open.creating ? (Date.now() - open.creating.atMs) / 1000 : 0;
    return { seconds, cost: (seconds / 3600) * open.lease.costPerHour };
  }

  #endOpen(open: OpenLease, why: LeaseEnd): Promise<EndedSandbox | Gone> {
    return endLease(this.#options.leases, this.#options.provider, open, why);
  }
}

function requireTime(deadlineAtMs: number, until: string, cause?: unknown): void {
  if (Date.now() < deadlineAtMs) return;
  throw new RatchetError('SandboxUnavailable', `The deadline of a sandbox passed before ${until}`, { cause });
}

function shownOwner({ run, lineage, group, index, attempt }: LeaseOwner): string {
  const parts = [run, lineage, group, index === undefined ? undefined : `rollout ${index}`, attempt === undefined ? undefined : `attempt ${attempt}`]; // prettier-ignore
  return parts.filter((part) => part !== undefined).join(', ');
}
