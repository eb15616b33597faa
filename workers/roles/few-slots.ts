/** Slots for tasks other than activities. */
export const fewSlots = {
  workflowTaskSlotSupplier: { type: 'fixed-size', numSlots: 1 },
  localActivityTaskSlotSupplier: { type: 'fixed-size', numSlots: 1 },
  nexusTaskSlotSupplier: { type: 'fixed-size', numSlots: 1 },
} as const;
