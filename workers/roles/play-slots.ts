import type { ActivitySlotInfo, CustomSlotSupplier, SlotPermit, SlotReserveContext } from '@temporalio/worker';
import type { Slots } from '../../play/slots.ts';
import { onAbort } from '../../core/on-abort.ts';

/** Activities that play what they were handed as there is room for it. */
const leases = ['playGroups', 'evaluateChunk', 'answerSearch'];

/** Limit for all activities of a rollout worker together. */
const activitiesMax = 1_000;

/**
 * Asks for another lease only while there is room for a typical one, so that leases wait in the queue for a worker that
 * can begin them, and not at a full one. The newest lease's size is taken as typical.
 */
export class PlaySlots implements CustomSlotSupplier<ActivitySlotInfo> {
  readonly type = 'custom';
  readonly #slots: Slots;
  /** Whether a poll waits. */
  #isAsking = false;
  /** Permits for leases, and for other work. */
  #leases = 0;
  #others = 0;
  readonly #waiting = new Set<() => void>();

  constructor(slots: Slots) {
    this.#slots = slots;
    slots.onChange = () => this.#look();
  }

  async reserveSlot(_: SlotReserveContext, signal: AbortSignal): Promise<SlotPermit> {
    while (!this.#hasRoom()) await this.#change(signal);
    this.#isAsking = true;
    return {};
  }

  tryReserveSlot(): null {
    return null;
  }

  markSlotUsed({ slotInfo }: { readonly slotInfo: ActivitySlotInfo }): void {
    this.#isAsking = false;
    this.#count(slotInfo, 1);
    this.#look();
  }

  releaseSlot({ slotInfo }: { readonly slotInfo?: ActivitySlotInfo }): void {
    if (slotInfo) this.#count(slotInfo, -1);
    else this.#isAsking = false;
    this.#look();
  }

  #count({ activityType }: ActivitySlotInfo, change: number): void {
    if (leases.includes(activityType)) this.#leases += change;
    else this.#others += change;
  }

  #hasRoom(): boolean {
    // One poll at a time: with more, one worker would get most chunks of a round, and another none.
    if (this.#isAsking || this.#slots.isResting) return false;
    if (this.#leases + this.#others >= activitiesMax) return false;
    const { wanted, limit, leases } = this.#slots;
    const coming = Math.max(0, this.#leases - leases.held);
    return wanted + coming * leases.newest < limit;
  }

  #look(): void {
    for (const told of this.#waiting) told();
  }

  #change(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const told = (): void => {
        forget();
        this.#waiting.delete(told);
        resolve();
      };
      const forget = onAbort(signal, () => {
        this.#waiting.delete(told);
        reject(signal.reason as Error);
      });
      this.#waiting.add(told);
    });
  }
}
