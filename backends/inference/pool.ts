import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import { inferencePatienceMs, stickySessionsMax } from '../../core/limits.ts';
import {
  ConnectionStale,
  ModelServer,
  serverRoot,
  type ServerAddress,
  type ServerOptions,
  usualRemedy,
} from './model-server.ts';
import { PoolMember } from './pool-member.ts';
import { ServerBusy } from './refusal.ts';
import { Sticky } from './sticky.ts';
import { type TurnstileAnswer, Turnstile } from './turnstile.ts';

export interface PoolOptions extends ServerOptions {
  /** Prompts in flight at one server, at most; others wait their turn. */
  readonly maxConcurrent: number;
  /** How long one waits for servers of which none answers. */
  readonly patienceMs?: number;
  /** How long a server may owe an answer before it is probed; for tests. */
  readonly quietMs?: number | undefined;
  /** What speaks with one of them; a plain {@link ModelServer} when missing. */
  readonly openServer?: (address: ServerAddress, options: ServerOptions) => ModelServer;
  /** Told when a server is quarantined, is back, joins or leaves. */
  readonly say?: ((line: string) => void) | undefined;
}

/** Who asks, and how much at once. */
export interface PoolCall {
  /** One rollout: its turns stay on one server while that one can be asked. */
  readonly session?: string | undefined;
  /** The rollouts of a group stay on one server while it has room: they share the beginning of their prompts. */
  readonly group?: string | undefined;
  /** Prompts that travel together; 1 when missing. */
  readonly size?: number;
  /** Where it goes if that can be asked, as `place` said. */
  readonly to?: PoolMember | null;
  /** Roots of servers that will not do. */
  readonly avoid?: readonly string[];
  /** No other server will do. */
  readonly isOnlyThere?: boolean;
  readonly signal?: AbortSignal | undefined;
}

interface Ticket extends PoolCall {
  /** It failed last: another one is asked if there is one. */
  readonly not: PoolMember | null;
}

/** Between asking and asking again. What failed once is asked again at once. */
const firstWaitMs = 100;
const waitMsMax = 2_000;
/** Of one request: it may be what makes the servers fail. */
const failuresMax = 12;
/** How long a server is left alone that is busy and does not say for how long. */
const busyMs = 1_000;

/**
 * Several servers as one. Who asks gets the server of its rollout, else that of its group, else the one with the least to
 * do; waits in turn where it is full; and asks again elsewhere when the server fails. A server that fails several times in a
 * row is quarantined, looked at from time to time, and tried with one request before it takes part again.
 */
export class ServerPool {
  readonly #options: PoolOptions;
  readonly #say: (line: string) => void;
  readonly #patienceMs: number;
  readonly #turnstile: Turnstile<Ticket, PoolMember>;
  readonly #sessions = new Sticky<PoolMember>(stickySessionsMax);
  readonly #groups = new Sticky<PoolMember>(stickySessionsMax);
  #members: readonly PoolMember[] = [];
  /** So that servers with equally much to do are taken in turn. */
  #turn = 0;
  #answeredAt = Number.NEGATIVE_INFINITY;

  constructor(addresses: readonly ServerAddress[], options: PoolOptions) {
    this.#options = options;
    this.#say = options.say ?? (() => undefined);
    this.#patienceMs = options.patienceMs ?? inferencePatienceMs;
    this.#turnstile = new Turnstile(
      (ticket, taken) => this.#admit(ticket, taken),
      (ticket, waitedMs) => this.#whyInVain(ticket, waitedMs),
    );
    this.#members = unique(addresses).map((address) => this.#open(address, false));
  }

  /** From now on these are the servers. One that leaves ends what it is doing; one that joins is brought to versions first. */
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
    this.#turnstile.stir();
  }

  get members(): readonly PoolMember[] {
    return this.#members;
  }

  /** What is said while no server answers; null while one does. */
  silence(): string | null {
    const away = this.#members.flatMap(({ away }) => (away === null ? [] : [away.because]));
    return away.length === 0 || away.length < this.#members.length ? null : [...new Set(away)].join(' ');
  }

  /** The server that a call would go to, with `planned` prompts beside those in flight; null = whichever can be asked first. */
  place(call: PoolCall, planned: ReadonlyMap<PoolMember, number>): PoolMember | null {
    const member = this.#best({ ...call, not: null }, (one) => one.inFlight + (planned.get(one) ?? 0));
    if (member) this.#remember(call, member);
    return member;
  }

  /**
   * Does `work` with a server, and again with another one while servers fail. Throws what asking again does not help, and
   * `InferenceUnavailable` when nobody has answered for a while; what a server said last when `signal` is raised between
   * two attempts.
   */
  async use<T>(call: PoolCall, work: (member: PoolMember) => Promise<T>): Promise<T> {
    const { size = 1, signal } = call;
    const trouble = new Trouble();
    for (;;) {
      if (signal?.aborted) throw trouble.last?.error ?? (signal.reason as Error);
      const ticket = { ...call, not: trouble.notThere };
      const member = this.#turnstile.enterNow(ticket) ?? (await this.#wait(ticket, trouble));
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
        this.#turnstile.stir();
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
      onChange: () => this.#turnstile.stir(),
    });
  }

  async #wait(ticket: Ticket, { last }: Trouble): Promise<PoolMember> {
    try {
      return await this.#turnstile.wait(ticket, ticket.signal);
    } catch (error) {
      if (ticket.signal?.aborted && last) throw last.error; // why it was not answered tells more
      throw error;
    }
  }

  #admit(ticket: Ticket, taken: ReadonlySet<PoolMember>): TurnstileAnswer<PoolMember> {
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

  /** Whether to leave it to whoever called: this request fails whoever is asked, or nobody answers anybody. */
  #isHopeless({ failures, since }: Trouble): boolean {
    if (failures >= failuresMax) return true;
    return performance.now() - since > this.#patienceMs && this.#answeredAt < since;
  }

  #whyHopeless(error: RatchetError): RatchetError {
    const isOneOfMany = this.#members.length > 1 && this.#members.every(({ away }) => away !== null);
    return isOneOfMany ? this.#nobody(this.#members) : error;
  }

  /** Before asking again; not at all the first time, or where another server may be asked. */
  async #rest({ failures, last }: Trouble, signal: AbortSignal | undefined): Promise<void> {
    const hasOthers = this.#members.some((member) => member !== last?.member && member.isOpen);
    if (failures <= 1 || hasOthers) return;
    const waitMs = Math.min(firstWaitMs * 2 ** (failures - 2), waitMsMax);
    await delay(waitMs, undefined, signal ? { signal } : {}).catch(() => {
      throw last!.error; // stopped: why it was not answered tells more
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
    const { remedy = usualRemedy } = this.#options;
    const helps = which.includes(remedy) ? '' : ` ${remedy}`;
    return new RatchetError('InferenceUnavailable', `No inference server can be asked: ${which}.${helps}`);
  }
}

/** What went wrong with one request so far. */
class Trouble {
  /** Those that count: of a server that is busy none does. */
  failures = 0;
  /** When the first of them came. */
  since = Number.POSITIVE_INFINITY;
  last: { readonly member: PoolMember; readonly error: RatchetError } | null = null;

  /** A connection that broke says little about the server, which knows the rollout: it is asked once more. */
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

/** Asking again may help, and takes no less. */
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
