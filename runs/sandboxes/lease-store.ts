import { createHash, randomBytes } from 'node:crypto';
import type { SandboxProviderSpec } from '../../core/settings/sandboxes.ts';
import { openRunStore, type Store } from '../../store/index.ts';
import { isRecord, type Shape } from '../../store/objects.ts';
import { decodeStored, encodeStored } from '../forms/stored-forms.ts';
import type {
  EndedSandbox,
  LeaseEnd,
  SandboxCreating,
  SandboxLease,
  SandboxLive,
  SandboxPool,
  SandboxProject,
} from './lease-records.ts';

/** Keys in the folder of sandboxes, which is beside the runs': a sandbox may outlive its run. */
export const sandboxKeys = {
  project: () => 'sandboxes.json',
  pool: (pool: string) => `${sandboxKeys.pools()}${pool}.json`,
  pools: () => 'providers/',
  open: () => 'open/',
  lease: (name: string) => `${sandboxKeys.open()}${name}/lease.json`,
  creating: (name: string) => `${sandboxKeys.open()}${name}/creating.json`,
  live: (name: string) => `${sandboxKeys.open()}${name}/live.json`,
  /** By day, so that nobody has to list all that ever was. */
  ended: (name: string, createdAtMs: number) => `${sandboxKeys.endedOn(dayOf(createdAtMs))}${name}.json`,
  endedOn: (day: string) => `ended/${day}/`,
  allEnded: () => 'ended/',
  places: (pool: string) => `places/${pool}/`,
  place: (pool: string, place: number, turn: number) =>
    `${sandboxKeys.places(pool)}place_${place}/turn_${String(turn).padStart(12, '0')}.json`,
  snapshot: (key: string) => `${sandboxKeys.snapshots()}${key}`,
  snapshots: () => 'snapshots/',
} as const;

/** A lease that has not ended, with what is known of its sandbox. */
export interface OpenLease {
  readonly lease: SandboxLease;
  readonly creating: SandboxCreating | null;
  readonly live: SandboxLive | null;
}

/** The leases of all runs in one place of runs. Every record is written once; which of them are there is the state. */
export class LeaseStore {
  readonly store: Store;

  constructor(uri: string) {
    this.store = openRunStore(uri, 'sandboxes');
  }

  /** The same for all workers, made by the first. */
  async project(): Promise<string> {
    const key = sandboxKeys.project();
    const mine: SandboxProject = { id: `p-${randomBytes(8).toString('hex')}` };
    const { bytes } = await this.store.putIfAbsent(key, encodeStored(key, mine));
    return decodeStored<SandboxProject>(bytes, key, ({ id }) => ({ 'an id': typeof id === 'string' })).id;
  }

  /** Writes down that a provider may have sandboxes; returns its name here. */
  async addPool(provider: SandboxProviderSpec): Promise<string> {
    const pool = createHash('sha256').update(JSON.stringify(provider)).digest('hex').slice(0, 16);
    const key = sandboxKeys.pool(pool);
    const record: SandboxPool = { provider };
    await this.store.putIfAbsent(key, encodeStored(key, record));
    return pool;
  }

  async pools(): Promise<ReadonlyMap<string, SandboxProviderSpec>> {
    const pools = new Map<string, SandboxProviderSpec>();
    for (const key of await this.store.list(sandboxKeys.pools())) {
      const pool = await this.#read<SandboxPool>(key, poolShape);
      if (pool) pools.set(key.slice(sandboxKeys.pools().length, -'.json'.length), pool.provider);
    }
    return pools;
  }

  async open(lease: SandboxLease): Promise<void> {
    const key = sandboxKeys.lease(lease.name);
    const { stored } = await this.store.putIfAbsent(key, encodeStored(key, lease));
    if (!stored) throw new Error(`there is a lease of the name ${lease.name} already`);
  }

  async markCreating(name: string, creating: SandboxCreating): Promise<void> {
    const key = sandboxKeys.creating(name);
    await this.store.putIfAbsent(key, encodeStored(key, creating));
  }

  /** False where the lease was ended meanwhile: its sandbox belongs to nobody. */
  async markLive(name: string, live: SandboxLive): Promise<boolean> {
    const key = sandboxKeys.live(name);
    const { stored } = await this.store.putIfAbsent(key, encodeStored(key, live));
    if (stored && (await this.isOpen(name))) return true;
    if (stored) await this.store.removeAll(key);
    return false;
  }

  async isOpen(name: string): Promise<boolean> {
    return (await this.store.read(sandboxKeys.lease(name))) !== null;
  }

  /** Names of leases that have not ended. */
  async openNames(): Promise<ReadonlySet<string>> {
    const keys = await this.store.list(sandboxKeys.open());
    return new Set(keys.filter((key) => key.endsWith('/lease.json')).map((key) => key.split('/')[1]!));
  }

  /** null where it ended meanwhile. */
  async read(name: string): Promise<OpenLease | null> {
    const lease = await this.#read<SandboxLease>(sandboxKeys.lease(name), leaseShape);
    if (lease === null) return null;
    const [creating, live] = await Promise.all([
      this.#read<SandboxCreating>(sandboxKeys.creating(name), ({ atMs }) => ({ 'a time': isTime(atMs) })),
      this.#read<SandboxLive>(sandboxKeys.live(name), liveShape),
    ]);
    return { lease, creating, live };
  }

  async readOpen(): Promise<readonly OpenLease[]> {
    const all = await Promise.all([...(await this.openNames())].map((name) => this.read(name)));
    return all.filter((one) => one !== null);
  }

  /**
   * Closes the account of a lease whose sandbox is gone. Idempotent: the first end counts. The account is written before
   * the lease goes, so after a crash between the two the next sweep does the rest.
   */
  async end(
    { lease, creating, live }: OpenLease,
    { atMs, why }: { readonly atMs: number; readonly why: LeaseEnd },
  ): Promise<EndedSandbox> {
    const key = sandboxKeys.ended(lease.name, lease.createdAtMs);
    const seconds = creating === null ? 0 : Math.max(0, atMs - creating.atMs) / 1000;
    const { name, pool, createdAtMs, costPerHour } = lease;
    const cost = (seconds / 3600) * costPerHour;
    const mine: EndedSandbox = {
      name,
      pool,
      owner: live?.owner ?? lease.owner,
      createdAtMs,
      endedAtMs: atMs,
      why,
      seconds,
      cost,
    };
    const { bytes } = await this.store.putIfAbsent(key, encodeStored(key, mine));
    await this.store.removeAll(`${sandboxKeys.open()}${name}/`);
    return decodeStored<EndedSandbox>(bytes, key, endedShape);
  }

  async ended(day: string): Promise<readonly EndedSandbox[]> {
    const keys = await this.store.list(sandboxKeys.endedOn(day));
    const all = await Promise.all(keys.map((key) => this.#read<EndedSandbox>(key, endedShape)));
    return all.filter((one) => one !== null);
  }

  async endedDays(): Promise<readonly string[]> {
    const keys = await this.store.list(sandboxKeys.allEnded());
    return [...new Set(keys.map((key) => key.split('/')[1]!))].toSorted();
  }

  /** Accounts of a day long past: their seconds are also in the rollouts that had them. */
  async forget(day: string): Promise<void> {
    await this.store.removeAll(sandboxKeys.endedOn(day));
  }

  async #read<T>(key: string, shape: Shape): Promise<T | null> {
    const bytes = await this.store.read(key);
    return bytes === null ? null : decodeStored<T>(bytes, key, shape);
  }
}

export function dayOf(ms: number): string {
  return new Date(ms).toISOString().slice(0, 10);
}

const isTime = (value: unknown): boolean => typeof value === 'number' && Number.isFinite(value);
const isOwner = (value: unknown): boolean =>
  isRecord(value) && typeof value['run'] === 'string' && typeof value['worker'] === 'string';

const poolShape: Shape = ({ provider }) => ({
  'a provider with its kind': isRecord(provider) && typeof provider['kind'] === 'string',
});
const leaseShape: Shape = ({ name, pool, owner, createdAtMs, deadlineAtMs }) => ({
  'a name and a pool': typeof name === 'string' && typeof pool === 'string',
  'an owner with run and worker': isOwner(owner),
  'when it was made, and its deadline': isTime(createdAtMs) && isTime(deadlineAtMs),
});
const liveShape: Shape = ({ atMs, owner, deadlineAtMs }) => ({
  'an owner with run and worker': isOwner(owner),
  'when it began, and its deadline': isTime(atMs) && isTime(deadlineAtMs),
});
const endedShape: Shape = ({ name, owner, seconds, cost }) => ({
  'a name and an owner': typeof name === 'string' && isOwner(owner),
  'seconds and cost': isTime(seconds) && isTime(cost),
});
