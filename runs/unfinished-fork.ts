import { RatchetError } from '../core/errors.ts';
import { layout } from './layout.ts';
import { firstLineage } from '../core/names.ts';
import { forkOriginIn } from './record-shapes.ts';
import { type RunPlace, storeOf } from './run-access.ts';

/** Where a fork begins; it stands in its `run.json` from before anything is copied. */
export interface ForkOrigin {
  /** The run it was taken from. */
  readonly from: string;
  readonly step: number;
}

/** What a fork was to begin with that was cut off before its first commit; null of any other run, and of none. */
export async function unfinishedFork(run: RunPlace): Promise<ForkOrigin | null> {
  const store = storeOf(run);
  const bytes = await store.read(layout.run());
  const origin = bytes && forkOriginIn(bytes, store.uri + layout.run());
  if (!origin) return null;
  return (await store.list(layout.commits(firstLineage))).length === 0 ? origin : null;
}

/** Trained, it would begin with a model of its own, and not with the checkpoint. */
export async function refuseUnfinishedFork(run: RunPlace): Promise<void> {
  const origin = await unfinishedFork(run);
  if (origin === null) return;
  throw new RatchetError(
    'ConfigInvalid',
    `${describeUnfinished(run.name, origin)} ${storeOf(run).uri} has only a part of it, and no run can train from that.`,
  );
}

export function describeUnfinished(name: string, { from, step }: ForkOrigin): string {
  return `${name} is a fork of step ${step} of ${from} that was not finished. The same command finishes it: npx ratchet-rl fork ${from} --step ${step} --name ${name}, with the settings that were typed then.`;
}
