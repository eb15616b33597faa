import { setTimeout as delay } from 'node:timers/promises';
import type { ActivitySlotInfo, CustomSlotSupplier, SlotPermit, SlotReserveContext } from '@temporalio/worker';
import { MachineLoad, type Load } from './machine-load.ts';

/** Shares of the machine, or of the container, up to which a worker takes more work; missing: that one does not count. */
export interface LoadTarget {
  readonly cpu?: number;
  readonly memory?: number;
}

type Slots = CustomSlotSupplier<ActivitySlotInfo>;

/** What was begun shows in the load only after a while: so much time between two slots. */
const rampMs = 50;
const lookMs = 100;

/**
 * Offers the slots of another supplier while the machine's load is below a target, and always one. It does what the
 * SDK's resource-based supplier does, which cannot be put around another one.
 */
export class LoadSlots implements Slots {
  readonly type = 'custom';
  readonly #slots: Slots;
  readonly #target: LoadTarget;
  readonly #load: () => Load;
  #given = 0;
  #givenAt = Number.NEGATIVE_INFINITY;

  constructor(slots: Slots, target: LoadTarget, load: () => Load = loadHere()) {
    this.#slots = slots;
    this.#target = target;
    this.#load = load;
  }

  async reserveSlot(context: SlotReserveContext, signal: AbortSignal): Promise<SlotPermit> {
    const permit = await this.#slots.reserveSlot(context, signal);
    try {
      while (!this.#mayTake()) await delay(lookMs, undefined, { signal });
      this.#give();
      return permit;
    } catch (error) {
      this.#slots.releaseSlot({ permit });
      throw signal.aborted ? signal.reason : error;
    }
  }

  tryReserveSlot(context: SlotReserveContext): SlotPermit | null {
    if (!this.#mayTake()) return null;
    const permit = this.#slots.tryReserveSlot(context);
    if (permit !== null) this.#give();
    return permit;
  }

  markSlotUsed(context: Parameters<Slots['markSlotUsed']>[0]): void {
    this.#slots.markSlotUsed(context);
  }

  releaseSlot(context: Parameters<Slots['releaseSlot']>[0]): void {
    this.#given -= 1;
    this.#slots.releaseSlot(context);
  }

  #mayTake(): boolean {
    if (this.#given === 0) return true;
    if (performance.now() - this.#givenAt < rampMs) return false;
    const { cpu, memory } = this.#load();
    return cpu < (this.#target.cpu ?? Infinity) && memory < (this.#target.memory ?? Infinity);
  }

  #give(): void {
    this.#given += 1;
    this.#givenAt = performance.now();
  }
}

function loadHere(): () => Load {
  const machine = new MachineLoad();
  return () => machine.read();
}

/** The same slots, behind the target where there is one. */
export function withinLoad(slots: Slots, target: LoadTarget | undefined): Slots {
  return target === undefined ? slots : new LoadSlots(slots, target);
}
