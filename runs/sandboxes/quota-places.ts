import { randomInt } from 'node:crypto';
import { isRecord } from '../../store/objects.ts';
import { decodeStored, encodeStored } from '../forms/stored-forms.ts';
import type { SandboxPlace } from './lease-records.ts';
import { type LeaseStore, sandboxKeys } from './lease-store.ts';

/**
 * The places of a quota, over all workers. Each place has turns; a turn is taken by whoever writes its record first, and
 * lasts as long as the lease that it names is open. So no turn has to be given back, and a worker that dies holds
 * its place exactly as long as its sandbox may be there.
 */
export class QuotaPlaces {
  readonly #leases: LeaseStore;
  readonly #pool: string;
  /** Holders by key: a record never changes. */
  readonly #holders = new Map<string, string>();

  constructor(leases: LeaseStore, pool: string) {
    this.#leases = leases;
    this.#pool = pool;
  }

  /** Tries once to get a place for a lease, which has to be open; false where none is free. */
  async take(name: string, quota: number): Promise<boolean> {
    // Places first: a lease that a place names was opened before, so it is among the open ones unless it has ended.
    const newest = await this.#newestTurns();
    const open = await this.#leases.openNames();
    const from = randomInt(quota);
    for (let i = 0; i < quota; i++) {
      const place = (from + i) % quota;
      const turn = newest.get(place) ?? 0;
      if (turn > 0 && open.has(await this.#holder(place, turn))) continue;
      if (await this.#win(place, turn + 1, name)) return true;
    }
    return false;
  }

  async #win(place: number, turn: number, name: string): Promise<boolean> {
    const key = sandboxKeys.place(this.#pool, place, turn);
    const mine: SandboxPlace = { name };
    const { stored } = await this.#leases.store.putIfAbsent(key, encodeStored(key, mine));
    if (!stored) return false;
    this.#holders.set(key, name);
    // Whoever was asleep since it looked may have written a turn that others took and removed long ago.
    const turns = await this.#turns(place);
    if (Math.max(...turns) !== turn) return false;
    // The turn before stays: it shows to a sleeper that its own is not the newest.
    for (const past of turns.filter((one) => one < turn - 1)) {
      const pastKey = sandboxKeys.place(this.#pool, place, past);
      this.#holders.delete(pastKey);
      await this.#leases.store.removeAll(pastKey);
    }
    return true;
  }

  async #holder(place: number, turn: number): Promise<string> {
    const key = sandboxKeys.place(this.#pool, place, turn);
    const known = this.#holders.get(key);
    if (known !== undefined) return known;
    const bytes = await this.#leases.store.read(key);
    if (bytes === null) return ''; // removed, so there is a newer one: the attempt to write the next turn shows it
    const { name } = decodeStored<SandboxPlace>(bytes, key, (value) => ({
      'the name of a lease': isRecord(value) && typeof value['name'] === 'string',
    }));
    this.#holders.set(key, name);
    return name;
  }

  async #newestTurns(): Promise<ReadonlyMap<number, number>> {
    const newest = new Map<number, number>();
    for (const key of await this.#leases.store.list(sandboxKeys.places(this.#pool))) {
      const [, place, turn] = /\/place_(\d+)\/turn_(\d+)\.json$/.exec(key) ?? [];
      if (place === undefined) continue;
      newest.set(Number(place), Math.max(newest.get(Number(place)) ?? 0, Number(turn)));
    }
    return newest;
  }

  async #turns(place: number): Promise<readonly number[]> {
    const keys = await this.#leases.store.list(`${sandboxKeys.places(this.#pool)}place_${place}/`);
    return keys.map((key) => Number(/turn_(\d+)\.json$/.exec(key)?.[1] ?? 0));
  }
}
