import type { EnvironmentEntry } from '../../backends/environments/index.ts';

/** Makes the Temporal Schedule that ends what nobody owns of the sandboxes beside a store of runs, unless it is there. */
export type BeginSweeps = (store: string) => Promise<unknown>;

/** Before the first sandbox of these environments is taken: those of a run that vanishes are then ended without it. */
export async function sweepsFor(
  entries: readonly Pick<EnvironmentEntry, 'program'>[],
  store: string,
  begin: BeginSweeps | undefined,
): Promise<void> {
  if (entries.some(({ program }) => program !== undefined)) await begin?.(store);
}
