import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import { inferencePatienceMs, stickySessionsMax } from '../../core/limits.ts';
import {
  ConnectionStale,
  ModelServer,
  serverRoot,
  type ServerAddress,
  type ServerOptions,
  defaultRemedy,
} from './model-server.ts';
import { PoolMember } from './pool-member.ts';
import { ServerBusy } from './openai/refusal.ts';
import { Sticky } from './sticky.ts';
import { type Admission, AdmissionQueue } from './admission-queue.ts';

export interface PoolOptions extends ServerOptions {
  /** Bound on prompts in flight at one server; others wait. */
  readonly maxConcurrent: number;
  /** Patience while no server answers. */
  readonly patienceMs?: number;
  /** Time for which a server may owe an answer before it is probed; for tests. */
  readonly quietMs?: number | undefined;
  /** Opens the client of a server; a plain {@link ModelServer} when missing. */
  readonly openServer?: (address: ServerAddress, options: ServerOptions) => ModelServer;
  /** Receives messages when a server is quarantined, is back, joins or leaves. */
  readonly say?: ((line: string) => void) | undefined;
}

export interface PoolCall {
  /** Whose call it is: those who wait share the servers equally. */
  readonly of?: string | undefined;
  /** One rollout: its turns stay on one server while that is available. */
  readonly session?: string | undefined;
  /** The rollouts of a group stay on one server while it has room: they share the beginning of their prompts. */
  readonly group?: string | undefined;
  /** Prompts sent together; 1 when missing. */
  readonly size?: number;
  /** The preferred server from `place`, if it can be asked. */
  readonly to?: PoolMember | null;
  /** Roots of excluded servers. */
  readonly avoid?: readonly string[];
  /** Only the preferred server will do. */
  readonly isOnlyThere?: boolean;
  readonly signal?: AbortSignal | undefined;
}

interface Ticket extends PoolCall {
  /** It failed last: another one is preferred. */
  readonly not: PoolMember | null;
}

/** Wait between attempts. The first retry is immediate. */
const firstWaitMs = 100;
const waitMsMax = 2_000;
/** Failures of one request before it is given up: it may itself cause them. */
const failuresMax = 12;
/** Pause for a busy server that names none. */
const busyMs = 1_000;

/**
 * Several servers as one. A request goes to the server of its rollout, else to that of its group, else to the one with
 * the least load. It waits in a queue while that is full, and is retried elsewhere when the server fails. A server that
 * fails several times in a row is quarantined, probed from time to time, and tried with one request before it takes
 * part again.
 */
export class ServerPool {
  readonly #options: PoolOptions;
  readonly #say: (line: string) => void;
  readonly #patienceMs: number;
  readonly #queue: AdmissionQueue<Ticket, PoolMember>;
  readonly #sessions = new Sticky<PoolMember>(stickySessionsMax);
  readonly #groups = new Sticky<PoolMember>(stickySessionsMax);
  #members: readonly PoolMember[] = [];
  /** Makes equally loaded servers take turns. */
  #turn = 0;
  #answeredAt = Number.NEGATIVE_INFINITY;

  constructor(addresses: readonly ServerAddress[], options: PoolOptions) {
    this.#options = options;
    this.#say = options.say ?? (() => undefined);
    this.#patienceMs = options.patienceMs ?? inferencePatienceMs;
    this.#queue = new AdmissionQueue(
      (ticket, taken) => this.#admit(ticket, taken),
      (ticket, waitedMs) => this.#whyInVain(ticket, waitedMs),
    );
    this.#members = unique(addresses).map((address) => this.#open(address, false));
  }

  /** Replaces the servers. A leaving one finishes its work; a joining one loads versions first. */
  setServers(addresses: readonly ServerAddress[]): void {
    const wanted = unique(addresses);
    const isWanted = ({ server }: PoolMember) => wanted.some((address) => isSame(address, server.address));
    const isKnown = (address: ServerAddress) => this.#members.some(({ server }) => isSame(address, server.address));
    const joined = wanted.filter((address) => !isKnown(address)).map((address) => this.#open(address, true));
    for (const member of this.#members.filter((member) => !isWanted(member))) {
      member.leave();
      this.#say(`inference server ${member.server.root} has left`);
    }
    for (const { server } of joined) this.#say(`inference server ${server.root} has joined`);
    this.#members = [...this.#members.filter(isWanted), ...joined];
    this.#queue.stir();
  }

  get members(): readonly PoolMember[] {
    return this.#members;
  }

  /** The reasons while no server answers; null while one does. */
  silence(): string | null {
    const away = this.#members.flatMap(({ away }) => (away === null ? [] : [away.because]));
    return away.length === 0 || away.length < this.#members.length ? null : [...new Set(away)].join(' ');
  }

  /** The server of a call, with `planned` prompts beside those in flight; null = the first that becomes available. */
  place(call: PoolCall, planned: ReadonlyMap<PoolMember, number>): PoolMember | null {
    const member = this.#best({ ...call, not: null }, (one) => one.inFlight + (planned.get(one) ?? 0));
    if (member) this.#remember(call, member);
    return member;
  }

  /**
   * Does `work` with a server, and again with another one while servers fail. Throws errors that a retry cannot fix,
   * and `InferenceUnavailable` when no server has answered for a while; the last error when `signal` is raised between
   * two attempts.
   */
  async use<T>(call: PoolCall, work: (member: PoolMember) => Promise<T>): Promise<T> {
    const { size = 1, signal } = call;
    const trouble = new Trouble();
    for (;;) {
      if (signal?.aborted) throw trouble.last?.error ?? (signal.reason as Error);
      const ticket = { ...call, not: trouble.notThere };
      const member = this.#queue.enterNow(ticket) ?? (await this.#wait(ticket, trouble));
      try {
        const result = await work(member);
        this.#answeredAt = performance.now();
        member.answered();
        return result;
      } catch (error) {
        if (signal?.aborted || !(error instanceof RatchetError)) throw error;
        if (!isWeather(error)) {
          member.answered();
          throw error;
        }
        trouble.add(member, error);
        noteFailure(member, error);
        if (this.#isHopeless(trouble)) throw this.#whyHopeless(error);
      } finally {
        member.exit(size);
        this.#queue.stir();
      }
      await this.#rest(trouble, signal);
    }
  }

  close(): void {
    for (const member of this.#members) member.leave();
    this.#members = [];
  }

  #open(address: ServerAddress, isLate: boolean): PoolMember {
    const open = this.#options.openServer ?? ((at, options) => new ModelServer(at, options));
    return new PoolMember(open(address, this.#options), {
      isLate,
      maxConcurrent: this.#options.maxConcurrent,
      say: this.#say,
      quietMs: this.#options.quietMs,
      onChange: () => this.#queue.stir(),
    });
  }

  async #wait(ticket: Ticket, { last }: Trouble): Promise<PoolMember> {
    try {
      const { of = '', size = 1 } = ticket;
      return await this.#queue.wait(ticket, { of, size }, ticket.signal);
    } catch (error) {
      if (ticket.signal?.aborted && last) throw last.error; // the last error says more
      throw error;
    }
  }

  #admit(ticket: Ticket, taken: ReadonlySet<PoolMember>): Admission<PoolMember> {
    const { size = 1 } = ticket;
    const member = this.#best(ticket, (one) => one.inFlight);
    if (member === null) {
      const isForOne = ticket.isOnlyThere === true && ticket.to != null;
      return { waitsFor: isForOne ? ticket.to : null };
    }
    if (taken.has(member) || !member.hasRoomFor(size)) {
      const isFull = this.#members.every((one) => one === member || taken.has(one) || !one.isOpen);
      return { waitsFor: isFull ? null : member };
    }
    member.enter(size);
    this.#remember(ticket, member);
    return { entered: member };
  }

  #best(ticket: Ticket, load: (member: PoolMember) => number): PoolMember | null {
    const { session, group, to, isOnlyThere, not, avoid = [] } = ticket;
    if (isOnlyThere && to) return to.isOpen ? to : null;
    const open = this.#members.filter((member) => member.isOpen && !avoid.includes(member.server.root));
    const candidates = open.length > 1 ? open.filter((member) => member !== not) : open;
    if (to && candidates.includes(to)) return to;
    const own = session === undefined ? undefined : this.#sessions.get(session);
    if (own && candidates.includes(own)) return own;
    const shared = group === undefined ? undefined : this.#groups.get(group);
    if (shared && candidates.includes(shared) && load(shared) < this.#options.maxConcurrent) return shared;
    const first = this.#turn++;
    let best: PoolMember | null = null;
    for (let i = 0; i < candidates.length; i++) {
      const member = candidates[(first + i) % candidates.length]!;
      if (best === null || load(member) < load(best)) best = member;
    }
    return best;
  }

  #remember({ session, group }: PoolCall, member: PoolMember): void {
    if (session !== undefined) this.#sessions.set(session, member);
    if (group !== undefined) this.#groups.set(group, member);
  }

  /** Whether to give up: this request fails at every server, or no server answers any request. */
  #isHopeless({ failures, since }: Trouble): boolean {
    if (failures >= failuresMax) return true;
    return performance.now() - since > this.#patienceMs && this.#answeredAt < since;
  }

  #whyHopeless(error: RatchetError): RatchetError {
    const isOneOfMany = this.#members.length > 1 && this.#members.every(({ away }) => away !== null);
    return isOneOfMany ? this.#nobody(this.#members) : error;
  }

  /** Wait before a retry; none for the first, or if another server is available. */
  async #rest({ failures, last }: Trouble, signal: AbortSignal | undefined): Promise<void> {
    const hasOthers = this.#members.some((member) => member !== last?.member && member.isOpen);
    if (failures <= 1 || hasOthers) return;
    const waitMs = Math.min(firstWaitMs * 2 ** (failures - 2), waitMsMax);
    await delay(waitMs, undefined, signal ? { signal } : {}).catch(() => {
      throw last!.error; // stopped: the last error says more
    });
  }

  #whyInVain({ to, isOnlyThere }: Ticket, waitedMs: number): RatchetError | null {
    const isBetterElsewhere = this.#members.some((member) => member !== to && member.isOpen);
    if (isOnlyThere && to && (to.hasLeft || (to.away !== null && isBetterElsewhere))) return this.#nobody([to]);
    const awayForMs = Math.min(...this.#members.map((member) => member.awayForMs));
    return Math.min(waitedMs, awayForMs) > this.#patienceMs ? this.#nobody(this.#members) : null;
  }

  #nobody(members: readonly PoolMember[]): RatchetError {
    const said = members.map(({ server, away }) =>
      away === null ? `${server.root} has left` : `${server.root} (since ${away.since}: ${away.because})`,
    );
    const which = said.length === 0 ? 'none is named' : `none answers: ${said.join('; ')}`;
    const { remedy = defaultRemedy } = this.#options;
    const helps = which.includes(remedy) ? '' : ` ${remedy}`;
    return new RatchetError('InferenceUnavailable', `No inference server can be asked: ${which}.${helps}`);
  }
}

/** The failures of one request so far. */
class Trouble {
  /** Counts failures, except those of a busy server. */
  failures = 0;
  /** Time of the first failure. */
  since = Number.POSITIVE_INFINITY;
  last: { readonly member: PoolMember; readonly error: RatchetError } | null = null;

  /** A broken connection says little about the server, which knows the rollout: it is tried once more. */
  get notThere(): PoolMember | null {
    return this.failures > 1 && this.last ? this.last.member : null;
  }

  add(member: PoolMember, error: RatchetError): void {
    this.last = { member, error };
    if (error instanceof ServerBusy) return;
    this.failures += 1;
    this.since = Math.min(this.since, performance.now());
  }
}

function noteFailure(member: PoolMember, error: RatchetError): void {
  if (error instanceof ServerBusy) member.restFor(error.retryAfterMs ?? busyMs);
  else if (error.code === 'InferenceUnavailable' && !(error instanceof ConnectionStale)) member.failed(error.message);
}

/** Whether a retry may help, without asking for less. */
function isWeather(error: RatchetError): boolean {
  return error.isRetryable && error.code !== 'OutOfMemory';
}

function unique(addresses: readonly ServerAddress[]): ServerAddress[] {
  return addresses.filter((address, i) => addresses.findIndex((other) => isSame(address, other)) === i);
}

function isSame(a: ServerAddress, b: ServerAddress): boolean {
  return (
    serverRoot(a.url) === serverRoot(b.url) && JSON.stringify({ ...a, url: '' }) === JSON.stringify({ ...b, url: '' })
  );
}
