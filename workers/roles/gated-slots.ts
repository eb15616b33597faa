import type { ActivitySlotInfo, CustomSlotSupplier, SlotPermit, SlotReserveContext } from '@temporalio/worker';
import type { StoreView } from '../../activities/around/store-view.ts';

type Slots = CustomSlotSupplier<ActivitySlotInfo>;

/**
 * Offers slots only while the process sees the stores that it works in. Otherwise the worker does not poll, and other workers get the
 * tasks.
 */
export class GatedSlots implements Slots {
  readonly type = 'custom';
  readonly #slots: Slots;
  readonly #view: StoreView;

  constructor(slots: Slots, view: StoreView) {
    this.#slots = slots;
    this.#view = view;
  }

  async reserveSlot(context: SlotReserveContext, signal: AbortSignal): Promise<SlotPermit> {
    const permit = await this.#slots.reserveSlot(context, signal);
    try {
      while (!this.#view.isClear) await this.#view.change(signal);
      return permit;
    } catch (error) {
      this.#slots.releaseSlot({ permit });
      throw error;
    }
  }

  tryReserveSlot(context: SlotReserveContext): SlotPermit | null {
    return this.#view.isClear ? this.#slots.tryReserveSlot(context) : null;
  }

  markSlotUsed(context: Parameters<Slots['markSlotUsed']>[0]): void {
    this.#slots.markSlotUsed(context);
  }

  releaseSlot(context: Parameters<Slots['releaseSlot']>[0]): void {
    this.#slots.releaseSlot(context);
  }
}

/** A fixed number of slots. */
export class CountedSlots implements Slots {
  readonly type = 'custom';
  readonly #max: number;
  #given = 0;
  readonly #waiting: (() => void)[] = [];

  constructor(max: number) {
    this.#max = max;
  }

  async reserveSlot(_: SlotReserveContext, signal: AbortSignal): Promise<SlotPermit> {
    while (this.#given >= this.#max) await this.#change(signal);
    this.#given += 1;
    return {};
  }

  tryReserveSlot(): SlotPermit | null {
    if (this.#given >= this.#max) return null;
    this.#given += 1;
    return {};
  }

  markSlotUsed(): void {
    // Nothing to do: slots count from their reservation.
  }

  releaseSlot(): void {
    this.#given -= 1;
    for (const told of this.#waiting.splice(0)) told();
  }

  #change(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true });
      this.#waiting.push(resolve);
    });
  }
}
