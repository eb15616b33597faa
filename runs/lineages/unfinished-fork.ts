import { RatchetError } from '../../core/errors.ts';
import { layout } from '../layout.ts';
import { firstLineage } from '../../core/names.ts';
import { forkOriginIn } from '../forms/record-shapes.ts';
import { type RunPlace, storeOf } from '../run-access.ts';

/** Origin of a fork, written to its `run.json` before anything is copied. */
export interface ForkOrigin {
  /** Run that it was forked from. */
  readonly from: string;
  readonly step: number;
}

/** Origin of a fork that was interrupted before its first commit; null for any other run, or without a run. */
export async function unfinishedFork(run: RunPlace): Promise<ForkOrigin | null> {
  const store = storeOf(run);
  const bytes = await store.read(layout.run());
  const origin = bytes && forkOriginIn(bytes, store.uri + layout.run());
  if (!origin) return null;
  return (await store.list(layout.commits(firstLineage))).length === 0 ? origin : null;
}

/** Throws, since training it would begin with a fresh model instead of the checkpoint. */
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
