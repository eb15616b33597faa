export interface StepChoice {
  /** These alone; null = all there are. */
  readonly steps: readonly number[] | null;
  /** Whether v0, the base model, is among them unless it is named. */
  readonly includesBase: boolean;
}

/** Ascending. `missing` are requested steps without a checkpoint. */
export function selectSteps(
  sealed: readonly number[],
  { steps, includesBase }: StepChoice,
): { readonly chosen: readonly number[]; readonly missing: readonly number[] } {
  const ascending = (list: Iterable<number>): number[] => [...new Set(list)].sort((a, b) => a - b);
  const there = new Set(sealed);
  if (steps === null) {
    return { chosen: ascending(sealed).filter((step) => includesBase || step !== 0), missing: [] };
  }
  // The base model is evaluated beside the named steps, as in prime-rl.
  const wanted = ascending(includesBase && there.has(0) ? [0, ...steps] : steps);
  return { chosen: wanted.filter((step) => there.has(step)), missing: wanted.filter((step) => !there.has(step)) };
}

/** `10,50,100` → steps; null if the text is no such list. */
export function readSteps(text: string): number[] | null {
  const steps = text
    .replace(/^\[|\]$/g, '')
    .split(',')
    .map((part) => part.trim());
  return steps.every((part) => /^\d{1,9}$/.test(part)) ? steps.map(Number) : null;
}
