import type { ModelServer } from './model-server.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';

interface MemberOptions {
  readonly maxConcurrent: number;
  readonly say: (line: string) => void;
  /** Overrides `quietMs` in tests. */
  readonly quietMs?: number | undefined;
  /** Called when it becomes available, or unavailable. */
  readonly onChange: () => void;
}

/** Failures in a row after which a server is quarantined. */
const failuresBeforeEjection = 3;
/** A server that owes an answer and stays silent this long is probed. A busy server still answers the probe. */
const quietMs = 20_000;
const quietLookMs = 5_000;
/** Wait between probes of a quarantined server, growing. */
const firstProbeMs = 100;
const probeMsMax = 2_000;
/** Least pause for a busy server, whatever it says; grows until it answers. */
const firstRestMs = 100;
const restMsMax = 2_000;

/** A server as a member of a pool: its load, its availability, and the versions that it has missed. */
export class PoolMember {
  readonly server: ModelServer;
  readonly #options: MemberOptions;
  #inFlight = 0;
  #failuresInRow = 0;
  #away: { readonly since: string; readonly because: string; readonly at: number } | null = null;
  /** Back, and not proven yet: one request at a time until one is answered. */
  #isOnTrial = false;
  #restUntil = 0;
  #restsInRow = 0;
  #probeMs = firstProbeMs;
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** Time since which the server owes an answer. */
  #quietSince = 0;
  #quietTimer: ReturnType<typeof setTimeout> | undefined;
  #hasLeft = false;
  #hasMissedVersions: boolean;
  /** Name and digest of each version: a run that was started over uses equal names for other weights. */
  #brought = new Set<string>();

  /** `isLate`: other servers loaded versions before it came. */
  constructor(server: ModelServer, { isLate, ...options }: MemberOptions & { readonly isLate: boolean }) {
    this.server = server;
    this.#options = options;
    this.#hasMissedVersions = isLate;
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  /** Start (ISO time) and reason of its quarantine; null = it takes part. */
  get away(): { readonly since: string; readonly because: string } | null {
    return this.#away && { since: this.#away.since, because: this.#away.because };
  }

  /** 0 while it takes part. */
  get awayForMs(): number {
    return this.#away === null ? 0 : performance.now() - this.#away.at;
  }

  get hasLeft(): boolean {
    return this.#hasLeft;
  }

  /** Whether it can be asked now, if it has room. */
  get isOpen(): boolean {
    if (this.#hasLeft || this.#away !== null || performance.now() < this.#restUntil) return false;
    return !this.#isOnTrial || this.#inFlight === 0;
  }

  /** A request larger than its limit is sent alone. */
  hasRoomFor(size: number): boolean {
    return this.#inFlight === 0 || this.#inFlight + size <= this.#options.maxConcurrent;
  }

  enter(size: number): void {
    if (this.#inFlight === 0) this.#quietSince = performance.now();
    this.#inFlight += size;
    if (this.#quietTimer === undefined) this.#lookLater(this.#options.quietMs ?? quietMs);
  }

  exit(size: number): void {
    this.#inFlight -= size;
    if (this.#hasLeft && this.#inFlight === 0) this.server.close();
  }

  answered(): void {
    this.#quietSince = performance.now();
    this.#failuresInRow = 0;
    this.#restsInRow = 0;
    if (!this.#isOnTrial) return;
    this.#isOnTrial = false;
    this.#probeMs = firstProbeMs;
    this.#options.say(`inference server ${this.server.root} is back`);
  }

  /** Records a missing answer or an error. */
  failed(because: string): void {
    this.#failuresInRow += 1;
    if (this.#isOnTrial || this.#failuresInRow >= failuresBeforeEjection) this.quarantine(because);
  }

  /** Pauses the server for the requested time; 0, or a time in the past, does not allow endless requests. */
  restFor(askedMs: number): void {
    const now = performance.now();
    if (now >= this.#restUntil) this.#restsInRow += 1; // simultaneous requests count as one
    const ms = Math.max(askedMs, Math.min(firstRestMs * 2 ** (this.#restsInRow - 1), restMsMax));
    this.#restUntil = Math.max(this.#restUntil, now + ms);
    setTimeout(this.#options.onChange, ms + 1).unref();
  }

  /** Excludes the server until it answers a probe; then it loads versions before it is asked for them. */
  quarantine(because: string): void {
    if (this.#away !== null || this.#hasLeft) return;
    this.#away = { since: new Date().toISOString(), because, at: performance.now() };
    this.#hasMissedVersions = true;
    this.#brought = new Set();
    if (!this.#isOnTrial) this.#options.say(`inference server ${this.server.root} is quarantined: ${because}`);
    this.#probeLater();
    this.#options.onChange();
  }

  /** Finishes its requests, but gets no others. */
  leave(): void {
    this.#hasLeft = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#quietTimer);
    if (this.#inFlight === 0) this.server.close();
  }

  async bring(policy: ServedPolicy): Promise<void> {
    await this.server.load(policy);
    this.#brought.add(nameOf(policy));
  }

  /** Whether it was away when this version was broadcast, so that it must load the version before use. */
  hasMissed(policy: ServedPolicy): boolean {
    return this.#hasMissedVersions && !this.#brought.has(nameOf(policy));
  }

  /** Probes a quiet server. Without this, one that accepts connections but never answers would block until the request times out. */
  async #lookIfQuiet(): Promise<void> {
    this.#quietTimer = undefined;
    if (this.#hasLeft || this.#inFlight === 0) return;
    const since = this.#quietSince;
    const quiet = this.#options.quietMs ?? quietMs;
    const isQuiet = this.#away === null && performance.now() - since >= quiet;
    if (isQuiet && !(await this.server.probe().catch(() => true)) && since === this.#quietSince) {
      const seconds = Math.round((performance.now() - since) / 1000);
      this.quarantine(
        `The inference server at ${this.server.root} has answered nothing for ${seconds} s, not even /health: it may hang. It is probed every ${probeMsMax / 1000} s and used again when it answers. Requests that time out are sent again. If it stays silent, restart it.`,
      );
    }
    if (this.#inFlight > 0 && this.#quietTimer === undefined) this.#lookLater(Math.min(quiet, quietLookMs));
  }

  #lookLater(ms: number): void {
    this.#quietTimer = setTimeout(() => void this.#lookIfQuiet(), ms).unref();
  }

  #probeLater(): void {
    this.#timer = setTimeout(() => void this.#probe(), this.#probeMs).unref();
    this.#probeMs = Math.min(this.#probeMs * 2, probeMsMax);
  }

  async #probe(): Promise<void> {
    const isBack = await this.server.probe().catch(() => false); // a missing key is reported by the next request
    if (this.#hasLeft) return;
    if (!isBack) return this.#probeLater();
    this.#away = null;
    this.#failuresInRow = 0;
    this.#isOnTrial = true;
    this.#options.onChange();
  }
}

function nameOf({ name, version }: ServedPolicy): string {
  return `${name}@${version.digest}`;
}
